"""Diagrams drawn by the real Mermaid in a headless Chromium. One page draws all of them and returns JSON."""

from __future__ import annotations

import fcntl
import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.browsers import browsing

MERMAID = Path(__file__).parents[2] / ".engines/node_modules/mermaid/dist/mermaid.min.js"
#: Timeout in seconds for the whole page on a busy machine.
LIMIT = 150

_OPTIONS = [
    # Milliseconds on the page's own clock, which stops while the page works.
    "--virtual-time-budget=100000",
    "--dump-dom",
]

# Lines are separated by <br>, because a name may contain line breaks.
_PAGE = """<!doctype html><meta charset="utf-8"><div id="drawn"></div><pre id="result"></pre>
<script src="MERMAID"></script>
<script>
mermaid.initialize({ startOnLoad: false, securityLevel: "strict" });
function lines(element) {
  const found = [""];
  (function walk(node) {
    if (node.nodeName.toLowerCase() === "br") found.push("");
    else if (node.nodeType === Node.TEXT_NODE) found[found.length - 1] += node.data;
    else node.childNodes.forEach(walk);
  })(element);
  return found;
}
function result(svg) {
  const all = [...svg.querySelectorAll("*")];
  return {
    error: "",
    nodes: [...svg.querySelectorAll(".node")].map((node) => ({
      id: node.id,
      classes: node.getAttribute("class").split(" "),
      lines: node.querySelector(".nodeLabel") ? lines(node.querySelector(".nodeLabel")) : [],
    })),
    titles: [...svg.querySelectorAll(".cluster-label .nodeLabel")].map((each) => each.textContent),
    edges: svg.querySelectorAll("path[data-edge='true'], path.transition").length,
    strangers: all.filter((each) => /^(script|img|a|iframe|object|i|math)$/i.test(each.localName)
      || [...each.attributes].some((attribute) => /^on/i.test(attribute.name))).map((each) => each.outerHTML),
  };
}
(async () => {
  const all = [];
  for (const [number, text] of TEXTS.entries()) {
    try {
      const place = document.getElementById("drawn");
      place.innerHTML = (await mermaid.render(`d${number}`, text)).svg;
      all.push(result(place.querySelector("svg")));
    } catch (error) {
      all.push({ error: String(error) });
    }
  }
  document.getElementById("result").textContent = JSON.stringify(all);
})();
</script>
"""


@dataclass(frozen=True)
class Shape:
    """A node in a drawn diagram."""

    id: str
    classes: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """A drawn diagram, or the error."""

    error: str
    nodes: tuple[Shape, ...] = ()
    titles: tuple[str, ...] = ()
    edges: int = 0
    #: Elements that our diagrams never contain.
    strangers: tuple[str, ...] = ()

    def node(self, first: str) -> Shape:
        """Return the node whose first line is ``first``."""
        [found] = [node for node in self.nodes if node.lines[:1] == (first,)]
        return found


def draw(texts: list[str], folder: Path) -> list[Picture]:
    """Draw each of ``texts``. Callers with the same ``folder`` share the result and one browser."""
    if shutil.which("chromium") is None or not MERMAID.exists():
        pytest.skip("chromium or mermaid is not installed; `make engines` installs them")
    folder.mkdir(exist_ok=True)
    result = folder / "result.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            result.write_text(_extracted(texts, folder), encoding="utf-8")
    return [_picture(each) for each in json.loads(result.read_text(encoding="utf-8"))]


def _extracted(texts: list[str], folder: Path) -> str:
    page = folder / "page.html"
    given = json.dumps(texts).replace("<", "\\u003c")
    page.write_text(_PAGE.replace("MERMAID", MERMAID.as_uri()).replace("TEXTS", given), encoding="utf-8")
    dom = _opened(page, folder / "profile")
    result = re.search(r'<pre id="result">(.+?)</pre>', dom, re.DOTALL)
    assert result, f"the page drew nothing: {dom[-2000:]}"
    return html.unescape(result[1])


def _opened(page: Path, profile: Path) -> str:
    """Return the page's document after it has finished."""
    with (
        (page.parent / "stderr").open("w") as errors,
        browsing(page.as_uri(), profile, *_OPTIONS, stdout=subprocess.PIPE, stderr=errors) as browser,
    ):
        return browser.communicate(timeout=LIMIT)[0].decode()


def _picture(result: dict[str, Any]) -> Picture:
    if result["error"]:
        return Picture(result["error"])
    return Picture(
        error="",
        nodes=tuple(Shape(each["id"], tuple(each["classes"]), tuple(each["lines"])) for each in result["nodes"]),
        titles=tuple(result["titles"]),
        edges=result["edges"],
        strangers=tuple(result["strangers"]),
    )
