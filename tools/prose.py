"""Report phrases that make text hard to read: ``python -m tools.prose [PATH...]``, by default in the whole repository.

It reads the text of Markdown files without code blocks, and the docstrings, comments and messages of Python files. The
exit status is 1 if it reports anything.

Exceptions are entries in ``[[tool.prose.exceptions]]`` in pyproject.toml, each with a reason. Unused exceptions are
reported too.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["main"]

ROOT = Path(__file__).parents[1]
PATHS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs",
    "lifecycle",
    "tests",
    "benchmarks",
    "examples",
    "tools",
)
SKIPPED = {"_build", "vendor", "node_modules"}

# Rules: the name, the phrases, and the advice to print.
RULES = [
    ("person", r"\b(?:who|whom|whoever|himself|his|him)\b", "name the component, and use it, its, which"),
    ("nobody", r"\b(?:nobody|somebody|anybody|everybody)\b", "name the actor, or write no process, a caller"),
    (
        "speaking",
        r"\b(?:says|said|tells|told|is asked|are asked|knows of|wants to know)\b",
        "sets, returns, prints, logs",
    ),
    (
        "old",
        r"\b(?:anew|for ever|whither|thither|besides?|forefathers|shall|seldom|of one's own|of its own accord)\b",
        "again, indefinitely, next to, should, rarely, custom",
    ),
    ("standing", r"\b(?:stands? (?:in|beside|for|alone|at)|goes on|go on|went on)\b", "is, is in, continues"),
    ("no", r"\b(?:is|are|was) no [a-z]+", "is not a, has no"),
    ("became", r"\b(?:became of|becomes? of|comes? of it|came of it)\b", "the result of"),
]
OPENING = re.compile(r"(?:What|Who|Whoever|Whose|Of what|Of a|Of the|That which)\b(?![^.]*\?)")
FINE = re.compile(
    r"\b(?:users?|people|persons?|readers?|developers?|operators?|maintainers?|teams?|those|anyone|everyone) who\b"
    r"|\bthere (?:is|are|was) no\b|\b(?:is|are|was) no longer\b|\bwho (?:is|are|can|may)\b[^.]*\?"
    r"|\bwho[:=]",
    re.IGNORECASE,
)
CODE = re.compile(r"``[^`]*``|`[^`]*`|\[([^\]]*)\]\([^)]*\)|<[^>]+>")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$|<!--.*?-->", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.)\s)|\s\|\s")
MESSAGES = {"print", "warning", "error", "info", "debug", "exception", "critical", "fail", "exit"}
HELP = {"help", "description", "epilog"}


@dataclass(frozen=True)
class Finding:
    """A sentence that breaks a rule."""

    path: str
    line: int
    rule: str
    sentence: str


def main(argv: Sequence[str]) -> int:
    """Print the findings and the unused exceptions, and return 1 if there are any."""
    exceptions = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"].get("prose", {}).get("exceptions", [])
    used: set[int] = set()
    failed = False
    for finding in (found for path in _files(argv or PATHS) for found in check(path)):
        matching = [n for n, each in enumerate(exceptions) if _excepts(each, finding)]
        used.update(matching)
        if not matching:
            failed = True
            advice = next((advice for name, _, advice in RULES if name == finding.rule), "begin with the actor")
            print(f"{finding.path}:{finding.line}: {finding.rule} ({advice}): {finding.sentence}")
    for each in (each for n, each in enumerate(exceptions) if not argv and n not in used):
        failed = True
        print(f"pyproject.toml: the exception {each['phrase']!r} for {each['path']} is not needed; remove it")
    return int(failed)


def _files(paths: Sequence[str]) -> Iterator[Path]:
    for root in (ROOT / path for path in paths):
        found = [root] if root.is_file() else sorted([*root.rglob("*.md"), *root.rglob("*.py")])
        yield from (path for path in found if not SKIPPED & set(path.parts))


def _excepts(exception: dict[str, str], finding: Finding) -> bool:
    return finding.path == exception["path"] and exception["phrase"] in finding.sentence


def check(path: Path) -> Iterator[Finding]:
    """Yield the findings for a Markdown or Python file."""
    name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for line, piece in _markdown(text) if path.suffix == ".md" else _python(text):
        for sentence in _sentences(piece):
            plain = FINE.sub("", sentence)
            for rule, pattern, _ in RULES:
                if re.search(pattern, plain, re.IGNORECASE):
                    yield Finding(name, line, rule, sentence)
            if OPENING.match(sentence):
                yield Finding(name, line, "opening", sentence)


def _sentences(text: str) -> Iterator[str]:
    text = " ".join(CODE.sub(lambda match: match[1] or "x", text).split())
    yield from (part.strip(" |*_-#>") for part in re.split(r"(?<=[.!?:;])\s+(?=[A-Z(\"'])", text))


def _markdown(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each paragraph, item, cell and heading. Code and comments become empty lines."""
    text = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    at = 0
    for gap in [*BLOCK.finditer(text), None]:
        end = gap.start() if gap else len(text)
        yield text.count("\n", 0, at) + 1, text[at:end]
        at = gap.end() if gap else end


def _python(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each paragraph of docstrings, each comment, and each message."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            line = node.body[0].lineno if node.body else 1
            yield from ((line + at - 1, piece) for at, piece in _markdown(ast.get_docstring(node) or ""))
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield from _strings(node.exc)
        elif isinstance(node, ast.Call):
            yield from _messages(node)
    yield from _comments(text)


def _messages(call: ast.Call) -> Iterator[tuple[int, str]]:
    """Yield the messages and help texts that a call prints, logs or raises."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    for argument in call.args if name in MESSAGES else ():
        yield from _strings(argument)
    for keyword in call.keywords:
        if keyword.arg in HELP:
            yield from _strings(keyword.value)


def _strings(node: ast.expr) -> Iterator[tuple[int, str]]:
    for each in ast.walk(node):
        if isinstance(each, ast.JoinedStr):
            yield each.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "x" for v in each.values)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.lineno, each.value


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield each comment. Consecutive comment lines are one comment."""
    first, lines, last = 0, list[str](), -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or token.string.startswith("# --"):
            continue
        if token.start[0] != last + 1:
            yield first, " ".join(lines)
            first, lines = token.start[0], []
        lines.append(token.string.lstrip("#: "))
        last = token.start[0]
    yield first, " ".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
