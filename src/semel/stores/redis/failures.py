"""What the failures of redis-py and of the server mean, in words for the person who runs the server."""

from __future__ import annotations

import re

from redis import exceptions

from semel.errors import RecordUnreadable, StoreError, StoreMisconfigured, StoreTimeout, StoreUnavailable
from semel.stores.redis.commands import LoginRefused, ScriptMissing, Unreached
from semel.stores.redis.settings import RedisSettings


class Failures:
    """Turns whatever the driver raises into an error of ours, in words for the person who runs the server."""

    __slots__ = ("_settings",)

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, exceptions.RedisError | OSError | RuntimeError):  # uvloop's word for a lost connection
            raise self._made_of(error) from error

    def _made_of(self, error: Exception) -> StoreError:
        return ours(self._settings, error)


class Connecting(Failures):
    """The same while a connection is made: nothing was sent yet, so nothing was done."""

    __slots__ = ()

    def _made_of(self, error: Exception) -> StoreError:
        made = ours(self._settings, error)
        return Unreached(str(made)) if isinstance(made, StoreUnavailable) else made


def ours(settings: RedisSettings, error: Exception) -> StoreError:
    """The error of ours that says what the driver, or the server, said."""
    if isinstance(error, exceptions.NoScriptError):
        return ScriptMissing(str(error))
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
    (
        r"\bNOREPLICAS\b",
        StoreUnavailable,
        "has fewer replicas in reach than its min-replicas-to-write, and so takes no writes",
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
    (
        r"^(MovedError|AskError|ClusterCrossSlotError)",
        StoreMisconfigured,
        "is a node of a cluster: write redis+cluster://, followed by some of its nodes",
    ),
    (r"DB index|invalid DB", StoreMisconfigured, "has no database of that number"),
    (r"unknown command", StoreMisconfigured, "does not know, or was told to hide, a command that semel needs"),
)
