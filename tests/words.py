"""Words: how plain the English is. A help for writers, and no gate on style.

It counts words that hide who acts ("whoever", "somebody") and sentences of more than 35 words, in the pages of the docs
and in the docstrings, comments and texts of the source.

    make words                              # the counts
    make words ARGS=src                     # each place in the source, as file:line
    make words ARGS="docs/http.md README.md"
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeGuard

ROOT = Path(__file__).parents[1]
HIDING = "anybody everybody nobody somebody whichever whoever".split()
WORDS_MAX = 35
"""A sentence with more words than this is read twice."""
FINDING = re.compile(rf"\b({'|'.join(HIDING)})\b", re.IGNORECASE)
CODE = re.compile(
    r"\b(?:FROM|INSERT|SELECT|UPDATE|WHERE|WITH)\b.*\b(?:AND|CREATE|INTO|MATERIALIZED|SET|THEN|WHERE)\b"
    r"|redis\.call|<!doctype|CASE WHEN",
    re.DOTALL,
)
"""Texts that are SQL, Lua or HTML."""
NO_PROSE = re.compile(r"```.*?(?:```|\Z)|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)|https?://\S+", re.DOTALL)
INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)
"""Examples in docstrings."""
UNWRAPPED = re.compile(r"\x08\n.*?(?=\n\s*\n|\Z)", re.DOTALL)
"""A block that click prints as it stands: examples."""


class Found(NamedTuple):
    """One thing to look at again."""

    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.what}"


def find_in(text: str, path: Path, first_line: int = 1) -> Iterator[Found]:
    """The words and the long sentences of a text, which begins at this line of the file. Code is left out."""
    prose = NO_PROSE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]) if "\n" in code[0] else " x ", text)
    prose = INDENTED.sub("", prose)
    for match in FINDING.finditer(prose):
        yield Found(path, first_line + prose.count("\n", 0, match.start()), match[0].lower())
    for start, sentence in sentences(prose):
        size = len(re.findall(r"[^\W_][\w'’-]*", sentence))
        if size > WORDS_MAX:
            yield Found(path, first_line + prose.count("\n", 0, start), f"a sentence of {size} words")


def sentences(prose: str) -> Iterator[tuple[int, str]]:
    """Each sentence with its place. A paragraph, an item of a list and a cell of a table end one, too."""
    for match in re.finditer(r"(?:(?!\n\s*\n|\n\s*(?:[-*#>|]|\d+\.)\s|\|).)+", prose, re.DOTALL):
        place = match.start()
        for sentence in re.split(r"(?<=[.!?])(?=\s)", match[0]):
            yield place + len(sentence) - len(sentence.lstrip()), sentence
            place += len(sentence)


def find_in_source(path: Path) -> Iterator[Found]:
    """The same for the docstrings, comments and texts of a module. Comments on lines in a row are one text."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and is_prose(node.value):
            yield from find_in(UNWRAPPED.sub("", inspect.cleandoc(node.value)), path, node.lineno)
    for line, comment in comments(text):
        yield from find_in(comment, path, line)


def is_prose(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and " " in value and not CODE.search(value)


def comments(source: str) -> Iterator[tuple[int, str]]:
    block: list[str] = []
    last = first = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1 or not block:
                if block:
                    yield first, "\n".join(block)
                block, first = [], token.start[0]
            block.append(token.string.lstrip("# "))
            last = token.start[0]
    if block:
        yield first, "\n".join(block)


def find_all(places: list[Path]) -> Iterator[Found]:
    for place in places:
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix == ".py":
                yield from find_in_source(path)
            elif path.suffix == ".md":
                yield from find_in(path.read_text(), path)


SETS = {"src": [ROOT / "src"], "docs": [*sorted(ROOT.glob("*.md")), ROOT / "docs"]}


def count(found: list[Found]) -> tuple[int, int]:
    """How many words of the list there are, and how many long sentences."""
    long = sum(each.what.startswith("a sentence") for each in found)
    return len(found) - long, long


def main(names: list[str]) -> None:
    places = {name: [(ROOT / name).resolve()] for name in names} or SETS
    for name, paths in places.items():
        found = list(find_all(paths))
        words, long = count(found)
        if names:
            print(*found, sep="\n")
        print(f"{name}: {words} words that hide who acts, {long} sentences of more than {WORDS_MAX} words")
    if not names:
        print("make words ARGS=src shows each place")


if __name__ == "__main__":
    main(sys.argv[1:])
