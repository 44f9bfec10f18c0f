"""Connections: the URL and its options, the driver's settings, and the one place where a driver's error becomes ours.

The driver never repeats a command by itself: a failed exchange is reported ("may have happened"), its connection is
thrown away, and it is the caller who repeats, with the same owner. An idle connection that the server closed is noticed
before anything is sent on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from redis import exceptions

from semel.errors import RecordUnreadable, StoreError, StoreMisconfigured, StoreTimeout, StoreUnavailable
from semel.stores.redis.check import Accepted
from semel.stores.redis.commands import LoginRefused, ScriptMissing
from semel.stores.url import StoreUrl

SCHEMES = {"redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss"}
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the server is and how to talk to it. Made from a URL: see `parse`."""

    url: str
    shown: str
    prefix: str = "semel"
    timeout_ms: int = 5_000
    pool_max: int = 16
    accepted: Accepted = field(default_factory=Accepted)
    tls: dict[str, Any] = field(default_factory=dict)

    @property
    def timeout_s(self) -> float:
        return self.timeout_ms / 1000

    def driver_options(self, retry: Any, *, socket_timeout: float | None) -> dict[str, Any]:
        """What both faces give to the driver's pool. `retry` is the face's kind of "never"."""
        network = {"socket_connect_timeout": self.timeout_s, "socket_keepalive": True}
        place = {} if self.url.startswith("unix:") else network
        return {"socket_timeout": socket_timeout, **place, "protocol": 2, "retry": retry, **self.tls}

    def busy(self) -> StoreTimeout:
        return StoreTimeout(
            f"{self.shown}: all {self.pool_max} connections were busy for {self.timeout_ms} ms: raise pool_max"
        )


def parse(url: StoreUrl) -> Settings:
    """Take the options that are ours; what is left over is refused by `url.finish`."""
    prefix = url.text_option("prefix", "semel")
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", prefix):
        raise StoreMisconfigured(f"{url.shown}: option prefix must be 1 to 64 of A-Z a-z 0-9 _ . : -, not {prefix!r}")
    accepted = Accepted(
        eviction=url.flag("accept_eviction"),
        no_persistence=url.flag("accept_no_persistence"),
        unverified=url.flag("accept_unverified"),
    )
    return Settings(
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


class Failures:
    """Turns whatever the driver raises into an error of ours, in words for the person who runs the server."""

    __slots__ = ("_settings",)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, exceptions.NoScriptError):
            raise ScriptMissing(str(error)) from error
        if isinstance(error, exceptions.RedisError | OSError | RuntimeError):  # uvloop's word for a lost connection
            raise ours(self._settings, error) from error


def ours(settings: Settings, error: Exception) -> StoreError:
    """The error of ours that says what the driver, or the server, said."""
    silence = f"nothing within {settings.timeout_ms} ms"
    said = f"{type(error).__name__}: {str(error) or silence}"  # the driver turns some of the server's words into types
    for words, kind, text in MEANINGS:
        if re.search(words, said):
            return kind(f"{settings.shown} {text.format(prefix=settings.prefix)} ({error})")
    silent = isinstance(error, TimeoutError | exceptions.TimeoutError)
    return (StoreTimeout if silent else StoreUnavailable)(f"{settings.shown} did not answer: {said}")


MEANINGS: tuple[tuple[str, type[StoreError], str], ...] = (
    (
        r"OutOfMemory|\bOOM\b",
        StoreUnavailable,
        "has used up its maxmemory and takes no new keys: raise maxmemory, or purge",
    ),
    (r"\bMISCONF\b", StoreUnavailable, "cannot write to its disk and so refuses writes: see its log"),
    (
        r"ReadOnlyError|\bREADONLY\b",
        StoreUnavailable,
        "is a read-only replica: name its primary, or wait for the failover to end",
    ),
    (r"BusyLoading|\bLOADING\b", StoreUnavailable, "is still loading its data"),
    (
        r"^AuthenticationError|WRONGPASS|NOAUTH",
        LoginRefused,
        "refuses the login: check the user name and password in the URL",
    ),
    (
        r"NoPermission|\bNOPERM\b",
        StoreMisconfigured,
        "does not allow this user what semel needs: "
        "ACL SETUSER … ~{prefix}:* &{prefix}:* +@read +@write +@scripting +@pubsub +@connection +info +time",
    ),
    (
        r"WRONGTYPE",
        RecordUnreadable,
        "holds something else than a record under a name of ours: choose another option prefix",
    ),
    (r"DB index|invalid DB", StoreMisconfigured, "has no database of that number"),
    (r"unknown command", StoreMisconfigured, "does not know, or was told to hide, a command that semel needs"),
)
