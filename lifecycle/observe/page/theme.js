// Runs before the page is drawn, so that the wrong theme is never visible.
try {
  const chosen = localStorage.getItem("lifecycle.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* storage is disabled, so the system's theme applies */ }
