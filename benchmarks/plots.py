"""Plots as small SVG files, drawn by hand: bars, and lines over a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#3f51b5", "#00897b", "#c62828", "#6a1b9a", "#ef6c00", "#546e7a")
GREY = "#90a4ae"
WIDTH, ROW, LEFT, RIGHT = 760, 22, 250, 70
HEIGHT, TOP, BOTTOM = 300, 40, 46


def svg(width: int, height: int, parts: Sequence[str], title: str) -> str:
    """A light background of its own: the page may be dark."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="sans-serif" font-size="12" fill="#263238">'
    )
    frame = f'<title>{escape(title)}</title><rect width="{width}" height="{height}" fill="#fff" rx="6"/>'
    return "\n".join([head, frame, text(12, 22, title, size=14), *parts, "</svg>\n"])


def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'


def bars(title: str, values: Mapping[str, tuple[float, bool]], *, line: float | None = None, digits: int = 2) -> str:
    """One bar for each name; ours (True) in colour. `line` is where the reference stands."""
    most = max([value for value, _ in values.values()] + [line or 0.0]) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / most
    height = TOP + ROW * len(values) + 14
    parts = []
    for number, (name, (value, ours)) in enumerate(values.items()):
        y = TOP + number * ROW
        parts += [
            text(LEFT - 8, y + 14, name, anchor="end"),
            f'<rect x="{LEFT}" y="{y + 3}" width="{max(1.0, value * scale):.1f}" height="{ROW - 7}" '
            f'fill="{COLOURS[0] if ours else GREY}"/>',
            text(LEFT + value * scale + 6, y + 14, f"{value:,.{digits}f}"),
        ]
    if line is not None:
        x = LEFT + line * scale
        parts.append(f'<path d="M{x:.1f} {TOP - 6}V{height - 8}" stroke="#263238" stroke-dasharray="4 3"/>')
    return svg(WIDTH, height, parts, title)


def lines(title: str, series: Mapping[str, Mapping[int, float]], *, across: str, up: str) -> str:
    """Values over a logarithmic axis, one line for each name. The vertical axis is logarithmic, too."""
    xs = sorted({x for points in series.values() for x in points})
    ys = [y for points in series.values() for y in points.values() if y > 0]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    high = max(high, low + 1)
    left, right = 70, 170
    first, last = math.log10(xs[0] or 1), math.log10(xs[-1] or 1)

    def place(x: float, y: float) -> tuple[float, float]:
        along = (math.log10(x or 1) - first) / ((last - first) or 1)
        above = (math.log10(y) - low) / (high - low)
        return left + along * (WIDTH - left - right), HEIGHT - BOTTOM - above * (HEIGHT - TOP - BOTTOM)

    parts = [text(left + (WIDTH - left - right) / 2, HEIGHT - 8, across, anchor="middle"), text(12, TOP + 2, up)]
    for power in range(low, high + 1):
        x, y = place(xs[0], 10**power)
        parts.append(f'<path d="M{x:.1f} {y:.1f}H{WIDTH - right}" stroke="#eceff1"/>')
        parts.append(text(x - 6, y + 4, f"{10**power:,}" if power >= 0 else f"{10**power:g}", anchor="end"))
    parts += [text(place(x, 10**low)[0], HEIGHT - BOTTOM + 18, f"{x:,}", anchor="middle") for x in xs]
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [place(x, points[x]) for x in sorted(points) if points[x] > 0]
        if not places:
            continue
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        at = TOP + 12 + number * 18
        parts.append(f'<rect x="{WIDTH - right + 14}" y="{at - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(text(WIDTH - right + 30, at, name))
    return svg(WIDTH, HEIGHT, parts, title)
