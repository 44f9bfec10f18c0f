"""The picture of a key's life: where its boxes and arrows stand. What the arrows say comes from the tables of the code.

It is drawn as SVG inside of the page: it needs no script, no font and no other host, and takes the colours of the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

LINE_PX = 15
BOXES: Mapping[str, tuple[int, int, str]] = {
    "absent": (90, 150, "absent"),
    "in_progress": (450, 150, "in progress"),
    "finished": (810, 150, "finished"),
    "unknown": (450, 390, "unknown"),
    "tombstone": (810, 390, "tombstone"),
}
"""The middle of each box, and its words."""
ARROWS: Mapping[tuple[str, str], tuple[str, int, int, str]] = {
    ("absent", "in_progress"): ("M150 140 H385", 268, 100, "middle"),
    ("in_progress", "absent"): ("M385 162 H155", 268, 182, "middle"),
    ("in_progress", "in_progress"): ("M425 128 C405 70 495 70 475 126", 450, 40, "middle"),
    ("in_progress", "finished"): ("M515 150 H745", 630, 86, "middle"),
    ("in_progress", "unknown"): ("M430 172 V362", 420, 235, "end"),
    ("unknown", "in_progress"): ("M470 368 V178", 480, 218, "start"),
    ("unknown", "unknown"): ("M425 412 C405 470 495 470 475 414", 450, 474, "middle"),
    ("unknown", "finished"): ("M515 380 L760 176", 655, 300, "start"),
    ("unknown", "absent"): ("M385 380 L130 176", 232, 300, "end"),
    ("finished", "finished"): ("M785 128 C765 70 855 70 835 126", 810, 40, "middle"),
    ("finished", "tombstone"): ("M830 172 V362", 842, 225, "start"),
    ("finished", "absent"): ("M785 128 C700 -28 200 -28 105 124", 450, 2, "middle"),
    ("tombstone", "tombstone"): ("M785 412 C765 470 855 470 835 414", 810, 474, "middle"),
}
"""The line of each arrow, and where its words stand."""
WHAT = "The states of a key, and what leads from one to another"
HEAD = f"""<svg class="life" viewBox="-20 -16 960 540" role="img" aria-label="{WHAT}">
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0 8 4 0 8z"/></marker></defs>"""


def draw(arrows: Mapping[tuple[str, str], Sequence[str]]) -> str:
    """The picture. An arrow that has no place yet is a KeyError: give it one above."""
    parts = [HEAD]
    for ends, labels in arrows.items():
        line, x, y, anchor = ARROWS[ends]
        parts.append(f'<path class="arrow" d="{line}" marker-end="url(#tip)"/>')
        parts.append(_text(x, y, anchor, labels))
    for x, y, words in BOXES.values():
        parts.append(f'<rect x="{x - 62}" y="{y - 20}" width="124" height="40" rx="10"/>')
        parts.append(f'<text class="state" x="{x}" y="{y + 5}" text-anchor="middle">{words}</text>')
    return "\n".join([*parts, "</svg>"])


def _text(x: int, y: int, anchor: str, lines: Sequence[str]) -> str:
    spans = [f'<tspan x="{x}" y="{y + LINE_PX * row}">{escape(line)}</tspan>' for row, line in enumerate(lines)]
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{"".join(spans)}</text>'
