"""The start-up check: can this server keep what it acknowledges? Each process asks it before its first call.

`INFO` tells everything, and hosted servers allow it where they forbid `CONFIG`. A server that evicts is refused. One
that forgets when it dies, or does not say, gets a warning (`RedisSettingsWarning`). Each can be accepted by an option
of the URL. Any `appendfsync` passes: `always` loses nothing when the machine dies, `everysec` up to a second or two.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from semel.core.effects import Plan, do
from semel.errors import StoreMisconfigured, StoreUnavailable
from semel.stores.redis.commands import Command, LoginRefused
from semel.stores.redis.settings import Accepted, RedisSettings, Topology

VERSION_MIN = (6, 2)


class RedisSettingsWarning(UserWarning):
    """The server's settings do not keep, or do not show that they keep, what semel was told is stored."""


def check(settings: RedisSettings) -> Plan[None]:
    """Refuse a server that cannot be used, warn about one that may forget."""
    shown, accepted = settings.shown.removesuffix(","), settings.accepted
    try:
        info: Mapping[str, object] = yield from do(Command(("INFO",)))
    except LoginRefused:
        raise
    except StoreMisconfigured as error:
        _unverified(shown, accepted, str(error))
        return
    if settings.topology is Topology.SINGLE:  # the others find the server that is a primary
        _check_role(shown, info)
    _check_version(shown, info)
    missing = [name for name in ("maxmemory_policy", "aof_enabled") if name not in info]
    if missing:
        _unverified(shown, accepted, f"its INFO has no {', '.join(missing)}")
    _check_eviction(shown, info, accepted)
    if str(info.get("aof_enabled", "1")) != "1" and not accepted.no_persistence:
        _warn(
            f"{shown} has no append-only file: when it dies, the keys that it acknowledged are gone and their "
            "operations can run again. Run CONFIG SET appendonly yes (and write appendonly yes into redis.conf), "
            "or accept it with accept_no_persistence=true"
        )


def _check_role(shown: str, info: Mapping[str, object]) -> None:
    if info.get("role") == "slave":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        raise StoreUnavailable(
            f"{shown} is a read-only replica: name its primary ({primary}) in the URL, or wait for the failover to end"
        )


def _check_version(shown: str, info: Mapping[str, object]) -> None:
    found = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdecimal())
    if len(numbers) == 2 and numbers < VERSION_MIN:
        raise StoreMisconfigured(
            f"{shown} is Redis {found}; semel needs {VERSION_MIN[0]}.{VERSION_MIN[1]} or newer, or any Valkey"
        )


def _check_eviction(shown: str, info: Mapping[str, object], accepted: Accepted) -> None:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction" and not accepted.eviction:  # whatever maxmemory is now: it can be lowered at any time
        raise StoreMisconfigured(
            f"{shown} has maxmemory-policy {policy}: short of memory it deletes keys that are still owed, and their "
            "operations run again. Run CONFIG SET maxmemory-policy noeviction (and write maxmemory-policy noeviction "
            "into redis.conf), or accept it with accept_eviction=true"
        )


def _unverified(shown: str, accepted: Accepted, why: str) -> None:
    if not accepted.unverified:
        _warn(
            f"{shown} is unverified: {why}. Make sure that it has maxmemory-policy noeviction and appendonly yes, "
            "and say so with accept_unverified=true"
        )


def _warn(text: str) -> None:
    warnings.warn(text, RedisSettingsWarning, stacklevel=2)
