"""What the URL of a tiered store says, and which copies are its own."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any
from urllib.parse import urlsplit

from semel.errors import StoreMisconfigured
from semel.store import AsyncFronting
from semel.stores.open import url_of
from semel.stores.url import StoreUrl

LOCAL = {"", "localhost", "127.0.0.1", "::1"}
SAME = {"postgres": "postgresql", "mysql": "mariadb"}


@dataclass(frozen=True, slots=True)
class TieredSettings:
    """How the two stores work together."""

    name: str
    """Names the database among all whose copies are in this front. Every process that uses it must give the same."""
    front_timeout_ms: int = 100
    """How long the front is waited for, before the database is asked."""
    rest_ms: int = 1_000
    """How long a front that failed is not asked."""
    keep_ms: int = 60_000
    """How long a copy lives at most."""
    hint_ms: int = 0
    """How long a copy may tell that work is in progress; 0: only the database tells."""
    eager: bool = True
    """Copy results when they are completed, and not only when they are asked for again."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\x21-\x7e]{1,255}", self.name):
            raise StoreMisconfigured(
                f"the name of a tiered store must be 1 to 255 visible ASCII characters, not {self.name!r}"
            )
        for option, (least, most) in BOUNDS.items():
            if not least <= (given := getattr(self, option)) <= most:
                raise StoreMisconfigured(f"{option} of a tiered store must be from {least} to {most}, not {given}")

    @classmethod
    def of_stores(cls, front: object, back: object, options: Mapping[str, Any]) -> TieredSettings:
        """For stores that are open. Refuses those that cannot work together."""
        _check(front, back)
        if "name" in options:
            return cls(**options)
        if (url := url_of(back)) is None:
            raise StoreMisconfigured(
                f"this {type(back).__name__} was not opened by a URL: give the tiered store name=, which tells its "
                "copies from those of other databases"
            )
        return cls(name_of(url), **options)

    @classmethod
    def of(cls, url: StoreUrl, back: str) -> TieredSettings:
        def number(option: str) -> int:
            least, most = BOUNDS[option]
            return url.number(option, getattr(DEFAULTS, option), least=least, most=most)

        return cls(
            name=url.text_option("name") or name_of(back),
            front_timeout_ms=number("front_timeout_ms"),
            rest_ms=number("rest_ms"),
            keep_ms=number("keep_ms"),
            hint_ms=number("hint_ms"),
            eager=url.flag("eager", True),
        )


BOUNDS = {
    "front_timeout_ms": (1, 60_000),
    "rest_ms": (1, 60_000),
    "keep_ms": (1_000, 86_400_000),
    "hint_ms": (0, 5_000),
}
DEFAULTS = TieredSettings("defaults")


def check_front(front: object) -> None:
    if not isinstance(front, AsyncFronting):  # both faces spell it alike
        raise StoreMisconfigured(f"{type(front).__name__} cannot hold copies: the front is a Redis store, redis://host")


def _check(front: object, back: object) -> None:
    check_front(front)
    kind = type(back).__name__
    if isinstance(back, AsyncFronting) or not hasattr(back, "claim") or getattr(back, "in_transactions", False):
        raise StoreMisconfigured(f"{kind} cannot decide: the back is the store of a database, like postgresql://")
    if getattr(back, "seal", None) is not None:
        raise StoreMisconfigured(
            f"{kind} opens its results, so the front would hold them in the clear: put the seal around the tiered "
            "store, Sealed(TieredStore(front, back), keys=…)"
        )
    faces = {iscoroutinefunction(getattr(store, name)) for store, name in ((front, "answer_copy"), (back, "claim"))}
    if len(faces) > 1:
        raise StoreMisconfigured("one of the two stores is sync and the other async: open both in the same way")


def name_of(back: str) -> str:
    """The place of a database, without its user. What only this machine calls by that name is told with the machine."""
    url = StoreUrl.parse(back)
    parts = urlsplit(back)
    scheme, host = SAME.get(parts.scheme, parts.scheme), parts.hostname or url.options.get("host", "")
    machine = f"{platform.node()}/" if host in LOCAL or host.startswith("/") else ""
    port = f":{parts.port}" if parts.port else ""
    schema = f"?{url.options['schema']}" if "schema" in url.options else ""
    return f"{machine}{scheme}://{host}{port}{parts.path}{schema}"[-255:]


def take_url(url: StoreUrl, option: str) -> str:
    """The URL of one of the two stores."""
    if url.parts.netloc or url.parts.path:
        raise StoreMisconfigured(f"{url.shown}: a tiered store has no place of its own: write tiered:?front=…&back=…")
    given = url.text_option(option)
    example = {"front": "redis%3A%2F%2Fhost%2F0", "back": "postgresql%3A%2F%2Fhost%2Fdatabase"}[option]
    if not given:
        raise StoreMisconfigured(f"{url.shown}: option {option} must name a store, like {option}={example}")
    if re.search(r"[\s]", given):
        raise StoreMisconfigured(
            f"{url.shown}: option {option} holds a blank: percent-encode the URL (a + is written %2B), like {example}"
        )
    return given
