"""What a Redis URL says: our own options, and the place in the driver's words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from semel.errors import StoreMisconfigured
from semel.stores.url import StoreUrl

SCHEMES = {"redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss"}
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the user knows about the server, and accepts (see `check`)."""

    eviction: bool = False
    no_persistence: bool = False
    unverified: bool = False


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Where the server is and how to talk to it."""

    url: str
    shown: str
    """The place, for messages."""
    prefix: str = "semel"
    timeout_ms: int = 5_000
    pool_max: int = 16
    accepted: Accepted = field(default_factory=Accepted)
    tls: dict[str, Any] = field(default_factory=dict)

    @property
    def timeout_s(self) -> float:
        return self.timeout_ms / 1000

    def as_front(self, timeout_ms: int) -> RedisSettings:
        """For copies, which may be evicted and forgotten, and are not worth waiting for."""
        return replace(self, timeout_ms=min(self.timeout_ms, timeout_ms), accepted=Accepted(True, True, True))

    @classmethod
    def of(cls, url: StoreUrl) -> RedisSettings:
        """Take the options that are ours; what is left over is refused by `url.finish`."""
        prefix = url.text_option("prefix", "semel")
        if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", prefix):
            raise StoreMisconfigured(
                f"{url.shown}: option prefix must be 1 to 64 of A-Z a-z 0-9 _ . : -, not {prefix!r}"
            )
        accepted = Accepted(
            eviction=url.flag("accept_eviction"),
            no_persistence=url.flag("accept_no_persistence"),
            unverified=url.flag("accept_unverified"),
        )
        return cls(
            url=_driver_url(url),
            shown=url.shown,
            prefix=prefix,
            timeout_ms=url.number("timeout_ms", 5_000, least=1, most=600_000),
            pool_max=url.number("pool_max", 16, least=1, most=10_000),
            accepted=accepted,
            tls=_tls(url) if SCHEMES[url.parts.scheme] == "rediss" else {},
        )


def _driver_url(url: StoreUrl) -> str:
    """The same place in the driver's words: redis://host:port/database, or redis:///path/of/a.sock for a socket."""
    parts, place = url.parts, url.parts.path.lstrip("/")
    try:
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise StoreMisconfigured(f"{url.shown}: {error}") from None
    if not host and place and not place.isdecimal():
        database = url.number("database", 0, least=0, most=1_000_000)
        return f"unix://{parts.netloc}{parts.path}?db={database}"
    if place and not place.isdecimal():
        raise StoreMisconfigured(f"{url.shown}: the database of Redis is a number, not {place!r}")
    return parts._replace(scheme=SCHEMES[parts.scheme], query="", fragment="").geturl()


def _tls(url: StoreUrl) -> dict[str, Any]:
    given = {name: url.text_option(name) for name in TLS_FILES}
    return {name: value for name, value in given.items() if value}
