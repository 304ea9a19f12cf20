"""What style says of the code, measured: ``python -m tools.shape [folder ...]`` (by default all).

A function's length is its lines of code, without docstring, comments and blank lines. Parameters count without ``self``
and ``cls``. Depth is that of inheritance among our own classes, errors left out. A public name is documented when its
docstring has words that neither its name nor its parameters have. Complexity is McCabe's.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Shape", "main", "shape"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef
Node = TypeVar("Node", bound=ast.AST)

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (*FUNCTION, ast.ClassDef)

#: Above these the page of house rules asks for a reason.
LONG, WIDE, MANY = 22, 6, 12
NEW_WORDS = 3

_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.match_case)


@dataclass(frozen=True)
class Module:
    """One file, read."""

    path: Path
    lines: list[str]
    tree: ast.Module

    @classmethod
    def read(cls, path: Path) -> Module:
        text = path.read_text(encoding="utf-8")
        return cls(path, text.splitlines(), ast.parse(text))


@dataclass(frozen=True)
class Shape:
    """The figures of some modules, and the places of those that stand out."""

    figures: dict[str, str]
    outliers: dict[str, list[str]]


def main(argv: Sequence[str]) -> None:
    """Print the figures a folder, and what stands out in the first."""
    folders = [Path(each) for each in argv] or [Path("lifecycle"), *_rooms(Path("lifecycle"))]
    shapes = {str(folder): shape(folder) for folder in folders}
    print("\n".join(_table({name: each.figures for name, each in shapes.items()})))
    for kind, places in next(iter(shapes.values())).outliers.items():
        print(f"\n{kind}:", *(places or ["none"]), sep="\n  ")


def shape(folder: Path) -> Shape:
    """Measure every module below ``folder``."""
    modules = [Module.read(path) for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts]
    functions = [(each, module) for module in modules for each in _functions(module.tree)]
    classes = [(each, module) for module in modules for each in _of(module.tree, ast.ClassDef)]
    lengths = sorted(_length(each, module) for each, module in functions)
    widths = sorted(_parameters(each) for each, _ in functions)
    methods = sorted(_methods(each) for each, _ in classes)
    public = [each for module in modules for each in _public(module)]
    sizes = sorted(len(module.lines) for module in modules)
    figures = {
        "modules": f"{len(modules)}",
        "lines": f"{sum(sizes):,}",
        "module median / p90 / max": _spread(sizes),
        "functions": f"{len(functions):,}",
        "function median / p90 / max": _spread(lengths),
        f"over {LONG} lines": _share(sum(each > LONG for each in lengths), len(lengths)),
        "complexity p90 / max": _spread(sorted(_complexity(each) for each, _ in functions)).partition(" / ")[2],
        "parameters p90 / max": _spread(widths).partition(" / ")[2],
        "classes": f"{len(classes)}",
        "methods p90 / max": _spread(methods).partition(" / ")[2],
        "depth": f"{_depth([each for each, _ in classes])}",
        "docstrings / comments, of the code": _docstrings(modules),
        "public names documented": _share(sum(map(_says_more, public)), len(public)),
    }
    outliers = {
        f"functions of more than {LONG} lines": [
            f"{_length(each, module)} {_place(each, module)}"
            for each, module in functions
            if _length(each, module) > LONG
        ],
        f"functions of more than {WIDE} parameters": [
            f"{_parameters(each)} {_place(each, module)}" for each, module in functions if _parameters(each) > WIDE
        ],
        f"classes of more than {MANY} methods": [
            f"{_methods(each)} {_place(each, module)}" for each, module in classes if _methods(each) > MANY
        ],
        "public names whose docstring says no more than the signature": [
            _place(each, module) for module in modules for each in _public(module) if not _says_more(each)
        ],
    }
    return Shape(figures, {kind: sorted(each, key=_number, reverse=True) for kind, each in outliers.items()})


def _rooms(package: Path) -> Iterator[Path]:
    return (path.parent for path in sorted(package.glob("*/__init__.py")))


def _of(tree: ast.AST, kind: type[Node]) -> Iterator[Node]:
    return (each for each in ast.walk(tree) if isinstance(each, kind))


def _functions(tree: ast.AST) -> Iterator[Function]:
    return (each for each in ast.walk(tree) if isinstance(each, FUNCTION))


def _length(function: Function, module: Module) -> int:
    """Lines from the first statement behind the docstring to the end, less blank ones and comments."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) else function.body
    if not body:
        return 0
    lines = (line.strip() for line in module.lines[body[0].lineno - 1 : function.end_lineno])
    return sum(bool(line) and not line.startswith("#") for line in lines)


def _parameters(function: Function) -> int:
    named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len(named) - (bool(named) and named[0].arg in {"self", "cls"})


def _complexity(function: Function) -> int:
    branches = sum(isinstance(each, _BRANCHES) for each in ast.walk(function))
    return 1 + branches + sum(len(each.values) - 1 for each in _of(function, ast.BoolOp))


def _methods(cls: ast.ClassDef) -> int:
    return sum(isinstance(each, FUNCTION) for each in cls.body)


def _depth(classes: Iterable[ast.ClassDef]) -> int:
    """How many of our own classes stand above one of them, at the most."""
    bases = {each.name: [base.id for base in each.bases if isinstance(base, ast.Name)] for each in classes}
    ours = {name: [base for base in above if base in bases and base != name] for name, above in bases.items()}

    def above(name: str) -> int:
        return 1 + max(map(above, ours[name])) if ours[name] else 0

    return max((above(name) for name in ours if not _is_error(name, ours)), default=0)


def _is_error(name: str, bases: dict[str, list[str]]) -> bool:
    return name == "LifecycleError" or any(_is_error(base, bases) for base in bases[name])


def _public(module: Module) -> Iterator[Documented]:
    """What ``__all__`` names and the module itself defines, and the public methods of its classes."""
    listed = {name for each in module.tree.body if isinstance(each, ast.Assign) for name in _exported(each)}
    for each in module.tree.body:
        if isinstance(each, DOCUMENTED) and each.name in listed:
            yield each
            if isinstance(each, ast.ClassDef):
                yield from (one for one in each.body if isinstance(one, FUNCTION) and not one.name.startswith("_"))


def _exported(assignment: ast.Assign) -> list[str]:
    if not any(isinstance(each, ast.Name) and each.id == "__all__" for each in assignment.targets):
        return []
    return [each.value for each in _of(assignment.value, ast.Constant) if isinstance(each.value, str)]


def _says_more(node: Documented) -> bool:
    """Whether at least three words of the docstring stand neither in the name nor among the parameters."""
    known = set(_words(node.name))
    if not isinstance(node, ast.ClassDef):
        known |= {word for each in _of(node.args, ast.arg) for word in _words(each.arg)}
    return len(set(_words(ast.get_docstring(node) or "")) - known) >= NEW_WORDS


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower())


def _docstrings(modules: Iterable[Module]) -> str:
    """Lines of docstrings and of comments, as shares of the lines of code."""
    docs = comments = code = 0
    for module in modules:
        told = sum(
            (ast.get_docstring(each, clean=False) or "").count("\n") + 1
            for each in ast.walk(module.tree)
            if isinstance(each, (*DOCUMENTED, ast.Module)) and ast.get_docstring(each)
        )
        noted = sum(line.strip().startswith("#") for line in module.lines)
        docs, comments = docs + told, comments + noted
        code += sum(bool(line.strip()) for line in module.lines) - told - noted
    return f"{docs / code:.0%} / {comments / code:.0%}"


def _spread(values: Sequence[int]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.0f} / {values[int(0.9 * (len(values) - 1))]} / {values[-1]}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _place(node: Documented, module: Module) -> str:
    return f"{module.path}:{node.lineno} {node.name}"


def _number(place: str) -> int:
    return int(place.split(maxsplit=1)[0]) if place[0].isdigit() else 0


def _table(figures: dict[str, dict[str, str]]) -> Iterator[str]:
    """Each figure, and below it one line a folder."""
    width = max(map(len, figures))
    for name in next(iter(figures.values())):
        yield name
        yield from (f"  {folder:<{width}}  {each[name]}" for folder, each in figures.items())


if __name__ == "__main__":
    main(sys.argv[1:])
