"""URLs of stores and brokers, taken apart once, with errors for the person who typed them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import ClassVar, Self
from urllib.parse import SplitResult, parse_qsl, urlsplit

from semel.errors import SemelError

DIGITS_MAX = 18
"""Python refuses to read numbers of thousands of digits, with an error of its own."""
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _masked(text: str) -> str:
    """Without what may be a password, which may hold an unescaped `/`, `?`, `#` or `@` and so hide from a parser."""
    before, at, place = text.rpartition("@")
    user = re.split("[:/?#]", before)[0]
    return f"{user}{':***' if user != before else ''}{at}{re.split('[?#]', place)[0]}"


def _is_only_options(text: str, parts: SplitResult) -> bool:
    """Whether the URL has no place of its own, like `tiered:?front=…&back=…`."""
    return text[len(parts.scheme) :].startswith(":?")


@dataclass
class ServiceUrl:
    """A parsed URL whose options are taken one by one; what is left over was not meant for us: `finish` refuses it."""

    what: ClassVar[str]
    """What the URL names, for messages."""
    examples: ClassVar[str]
    refusal: ClassVar[type[SemelError]]

    text: str
    parts: SplitResult
    options: dict[str, str]
    _known: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Self:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise cls.refusal(f"a {cls.what} URL is text like {cls.examples}, not {type(text).__name__}")
        try:
            parts = urlsplit(text)
        except ValueError as error:
            why = error if "@" not in text else "percent-encode what is special in its password"  # `error` may quote it
            raise cls.refusal(f"{_masked(text)!r} is not a {cls.what} URL: {why}") from None
        if not parts.scheme or ("://" not in text and not _is_only_options(text, parts)):
            raise cls.refusal(f"{_masked(text)!r} is not a {cls.what} URL: write something like {cls.examples}")
        return cls(text, parts, dict(parse_qsl(parts.query, keep_blank_values=True)))

    @property
    def shown(self) -> str:
        """The URL without its password and options, for messages."""
        if _is_only_options(self.text, self.parts):
            return f"{self.parts.scheme}:"
        place = f"{self.parts.netloc}{self.parts.path}"
        return f"{self.parts.scheme}://{_masked(self.text.partition('://')[2]) if self.parts.netloc else place}"

    def text_option(self, name: str, default: str = "") -> str:
        self._known.append(name)
        return self.options.pop(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.text_option(name, str(default)).lower()
        if value not in TRUE + FALSE:
            raise self.refusal(f"{self.shown}: option {name} must be true or false, not {self._quoted(value)}")
        return value in TRUE

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        value = self.text_option(name, str(default))
        if not value.isdecimal() or len(value) > DIGITS_MAX or not least <= int(value) <= most:
            raise self.refusal(
                f"{self.shown}: option {name} must be a number from {least} to {most}, not {self._quoted(value)}"
            )
        return int(value)

    def _quoted(self, text: str) -> str:
        """For a message. An unescaped `?` in the password makes options of the rest of it."""
        return "something secret (write %3F for a ? in the password)" if "@" in self.parts.query else repr(text[:80])

    def finish(self) -> None:
        """Refuse options that no part of semel reads: a misspelt safety option must not pass silently."""
        for name in self.options:
            close = get_close_matches(name, self._known, 1)
            hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(sorted(self._known)) or 'none'}"
            raise self.refusal(f"{self.shown}: unknown option {self._quoted(name)}; {hint}")
