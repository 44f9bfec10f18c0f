"""Text for a terminal, in which nothing from a record, a server or a caller can control the screen.

Control characters of both sets, DEL, marks that turn the direction of writing, and lone surrogates are spelt out.
"""

from __future__ import annotations

import json


def visible(value: object) -> str:
    """One line of text with its control characters spelt out."""
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def visible_lines(text: str) -> str:
    """The same for text of several lines."""
    return "\n".join(map(visible, text.split("\n")))


def json_text(value: object, indent: int | None = None) -> str:
    """JSON with the same characters as `\\uXXXX`: the same document for a program, and harmless for a terminal."""
    lines = json.dumps(value, indent=indent, ensure_ascii=False).split("\n")  # line ends are only between members
    return "\n".join(line if line.isprintable() else "".join(map(_escape, line)) for line in lines)


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    return json.dumps(character)[1:-1] if character > "\x7f" else f"\\u{ord(character):04x}"
