"""Draws the curves as SVG files, and writes ``docs/reference/scaling.md``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Curve", "Points", "files"]

#: The values of each series, and of the limit.
Points: TypeAlias = tuple[dict[str, list[float]], list[float]]

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reference" / "scaling.md"

HEAD = """\
# Scaling

`make bench` measured these curves with the figures of [performance](performance.md) and wrote this page. Both axes are
logarithmic. A dashed line is the limit.
"""

#: The area of the plot inside the picture, and the colours of the series.
_WIDTH, _HEIGHT = 640, 320
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 16, 460, 264
_COLORS = ("#0b62a4", "#d1590b", "#2a7d2a", "#7a3da8")
_LIMIT_COLOR = "#b00020"
_FONT = 'font-size="13" font-family="sans-serif" fill="#333"'
_CENTRED = 'text-anchor="middle"'
#: The distance between two names of series.
_LABEL = 14


@dataclass(frozen=True)
class Curve:
    """The axes of a curve, the reason for its bends, and its limit in words."""

    title: str
    x: str
    y: str
    sizes: tuple[int, ...]
    limit: str
    note: str


def files(curves: Mapping[str, Curve], points: Mapping[str, Any]) -> dict[Path, str]:
    """Return the contents of the page and of the pictures, by path. ``points`` are the stored points of each curve."""
    parts = [HEAD]
    found: dict[Path, str] = {}
    for name, curve in curves.items():
        picture = f"scaling-{name}.svg"
        found[DOCS / "_static" / picture] = _svg(curve, points[name])
        text = fill(f"Limit: {curve.limit}. {curve.note}", 120)
        parts.append(f"## {curve.title}\n\n![{curve.title}: {curve.y}](../_static/{picture})\n\n{text}\n")
    return {PAGE: "\n".join(parts), **found}


def _svg(curve: Curve, points: Mapping[str, Sequence[float]]) -> str:
    values = [value for series in points.values() for value in series]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    across, up = _scale(curve.sizes[0], curve.sizes[-1], _LEFT, _RIGHT), _scale(10.0**low, 10.0**high, _BOTTOM, _TOP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        *(_grid_x(across(size), f"{size:,}") for size in curve.sizes),
        *(_grid_y(up(10.0**power), _number(10.0**power)) for power in range(low, high + 1)),
        f'<text x="{(_LEFT + _RIGHT) / 2:g}" y="{_HEIGHT - 10}" {_CENTRED}>{escape(curve.x)}</text>',
        f'<text transform="translate(14 {(_TOP + _BOTTOM) / 2:g}) rotate(-90)" {_CENTRED}>{escape(curve.y)}</text>',
        *_lines(curve, points, across, up),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _lines(
    curve: Curve, points: Mapping[str, Sequence[float]], across: Callable[[float], float], up: Callable[[float], float]
) -> Iterator[str]:
    """Draw each series, and its name at the end. Names that would overlap move down."""
    free = -math.inf
    for name, values in sorted(points.items(), key=lambda each: -each[1][-1]):
        color, dashes = _style(name, list(points))
        places = [(across(size), up(value)) for size, value in zip(curve.sizes, values, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>'
        if not dashes:
            yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places)
        free = max(places[-1][1] + 4, free + _LABEL)
        yield f'<text x="{_RIGHT + 8}" y="{free:.1f}" fill="{color}">{escape(name)}</text>'


def _style(name: str, names: list[str]) -> tuple[str, str]:
    """Return the colour of a series, and the attribute that makes the limit a dashed line."""
    return (_LIMIT_COLOR, ' stroke-dasharray="6 4"') if name == "limit" else (_COLORS[names.index(name)], "")


def _scale(first: float, last: float, start: float, end: float) -> Callable[[float], float]:
    """Return a function that places a number between two points, on a logarithmic scale."""
    unit = (end - start) / math.log(last / first)
    return lambda value: start + unit * math.log(value / first)


def _grid_x(at: float, text: str) -> str:
    line = f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_BOTTOM}" stroke="#e4e4e4"/>'
    return f'{line}<text x="{at:.1f}" y="{_BOTTOM + 18}" {_CENTRED}>{text}</text>'


def _grid_y(at: float, text: str) -> str:
    line = f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e4e4e4"/>'
    return f'{line}<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{text}</text>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
