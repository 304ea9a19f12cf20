// Runs before the page is drawn, so that it never flashes in the wrong colours.
try {
  const chosen = localStorage.getItem("lifecycle.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* storage is switched off: the system's choice holds */ }
