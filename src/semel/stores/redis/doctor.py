"""Looks at the server with commands that read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

from semel.core.effects import Effect
from semel.core.records import Key
from semel.errors import StoreMisconfigured
from semel.store import Finding
from semel.stores import examination
from semel.stores.redis.check import VERSION_MIN
from semel.stores.redis.commands import Command, LoginRefused, Node
from semel.stores.redis.layout import VERSION, frame, name_of
from semel.stores.redis.settings import Accepted, RedisSettings, Topology

Run = Callable[[Effect[Any]], Any]
LookAt = Callable[[Node, Effect[Any]], Any]
PROMISE = Finding(
    "promise",
    "info",
    "at-most-once while this server keeps its data; Redis alone cannot promise it across a failover: what the old "
    "primary acknowledged may be missing on the new one, and the work can run a second time",
    "where that matters use postgresql://, or give the work's own target a derived key",
)


def examine(settings: RedisSettings, nodes: Sequence[Node], look_at: LookAt) -> Iterator[Finding]:
    """Look at each server that takes writes. What is the same on all of them is said once."""
    yield Finding("connection", "ok", f"{settings.shown} answers")
    yield from _said_once(nodes, [list(_examine_node(settings, partial(look_at, node))) for node in nodes])
    yield Finding("schema", "ok", f"records of form {VERSION} under {settings.prefix}:*; Redis needs no migrations")
    probe = name_of(settings.prefix.encode(), frame(Key("semel", "semel doctor", "probe")))
    for node in nodes:
        yield _latency(settings, node, look_at, probe)
        yield _of(node, examination.clock_skew(partial(_now_ms, partial(look_at, node))))
    if settings.topology is not Topology.SINGLE:
        yield _confirmation(settings)
    yield PROMISE


def _examine_node(settings: RedisSettings, run: Run) -> Iterator[Finding]:
    info = _info(run)
    if info is None:
        yield Finding(
            "settings",
            "warning",
            "this user may not ask INFO: whether the server evicts or forgets is not known",
            "allow +info for this user, or make sure of maxmemory-policy noeviction and appendonly yes",
        )
    else:
        yield _version(info)
        yield _role(info, settings.topology)
        yield _eviction(info, settings.accepted)
        yield _persistence(info, settings.accepted, _fsync(run))
        yield _memory(info)


def _of(node: Node, finding: Finding) -> Finding:
    if node.address is None:
        return finding
    return replace(finding, detail=f"{node.address[0]}:{node.address[1]}: {finding.detail}")


def _confirmation(settings: RedisSettings) -> Finding:
    if settings.wait_replicas:
        return Finding(
            "confirmation",
            "ok",
            f"a write counts when {settings.wait_replicas} replicas have it; it is refused after {settings.wait_ms} ms",
        )
    return Finding(
        "confirmation",
        "warning",
        "wait_replicas is 0: a write counts before any replica has it, and is lost if its server fails just then",
        "add wait_replicas=1 to the URL, or as many as there are replicas of each server",
    )


def examine_front(settings: RedisSettings, nodes: Sequence[Node], look_at: LookAt) -> Iterator[Finding]:
    """What matters for servers that only hold copies: they may evict and forget, and should be near."""
    yield Finding("connection", "ok", f"{settings.shown} answers")
    yield from _said_once(nodes, [list(_examine_front_node(settings, partial(look_at, node))) for node in nodes])
    for node in nodes:
        yield _latency(settings, node, look_at, f"{settings.prefix}:copies".encode())


def _examine_front_node(settings: RedisSettings, run: Run) -> Iterator[Finding]:
    if (info := _info(run)) is not None:
        yield _version(info)
        yield _role(info, settings.topology)
        yield _room(info)


def _said_once(nodes: Sequence[Node], found: Sequence[Sequence[Finding]]) -> Iterator[Finding]:
    for findings in zip_longest(*found):
        if len(set(findings)) == 1:
            yield findings[0]
        else:
            yield from (_of(node, finding) for node, finding in zip(nodes, findings, strict=True) if finding)


def _latency(settings: RedisSettings, node: Node, look_at: LookAt, probe: bytes) -> Finding:
    """A node of a cluster reads only what is in its slots."""
    command = Command(("PING",) if settings.topology is Topology.CLUSTER else ("GET", probe))
    return _of(node, examination.latency(partial(look_at, node, command)))


def _room(info: Mapping[str, object]) -> Finding:
    policy, memory = str(info.get("maxmemory_policy", "not told")), _memory(info)
    if policy == "noeviction":
        fix = "if nothing but copies is stored there: CONFIG SET maxmemory-policy allkeys-lru, and a maxmemory"
        return Finding("memory", "info", f"{memory.detail}; short of memory it takes no new copies", fix)
    return Finding("memory", "ok", f"{memory.detail}; maxmemory-policy {policy} may evict copies, which are not owed")


def _info(run: Run) -> Mapping[str, object] | None:
    try:
        found: Mapping[str, object] = run(Command(("INFO",)))
    except LoginRefused:
        raise
    except StoreMisconfigured:
        return None
    return found


def _now_ms(run: Run) -> int:
    seconds, micros = run(Command(("TIME",)))
    return int(seconds) * 1000 + int(micros) // 1000


def _fsync(run: Run) -> str:
    """Hosted servers forbid CONFIG; then it is not known."""
    try:
        found = run(Command(("CONFIG", "GET", "appendfsync")))
    except StoreMisconfigured:
        return ""
    return found[1].decode() if len(found) == 2 else ""


def _version(info: Mapping[str, object]) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    found = str(info.get("valkey_version", info.get("redis_version", "of unknown version")))
    numbers = tuple(int(part) for part in str(info.get("redis_version", "")).split(".")[:2] if part.isdecimal())
    if len(numbers) == 2 and numbers < VERSION_MIN:
        needed = ".".join(map(str, VERSION_MIN))
        return Finding("version", "problem", f"{name} {found}; {needed} is needed", "upgrade the server")
    return Finding("version", "ok", f"{name} {found}")


def _role(info: Mapping[str, object], topology: Topology) -> Finding:
    if info.get("role") == "slave":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        return Finding("role", "problem", "this is a replica, which takes no writes", f"name its primary, {primary}")
    replicas = info.get("connected_slaves", 0)
    if topology is not Topology.SINGLE and not replicas:
        return Finding(
            "role",
            "warning",
            "a primary without replicas: when it fails, its keys cannot be used until it is back",
            "give it a replica, or look at why it has lost its own",
        )
    return Finding("role", "ok", f"a primary with {replicas} replicas")


def _eviction(info: Mapping[str, object], accepted: Accepted) -> Finding:
    policy = str(info.get("maxmemory_policy", "not told"))
    if policy == "noeviction":
        return Finding("eviction", "ok", "maxmemory-policy is noeviction")
    return Finding(
        "eviction",
        "warning" if accepted.eviction or policy == "not told" else "problem",
        f"maxmemory-policy is {policy}: short of memory it deletes keys that are owed, and their work runs again",
        "CONFIG SET maxmemory-policy noeviction, and write it into redis.conf",
    )


def _persistence(info: Mapping[str, object], accepted: Accepted, fsync: str) -> Finding:
    if str(info.get("aof_enabled", "")) != "1":
        return Finding(
            "persistence",
            "warning" if accepted.no_persistence or "aof_enabled" not in info else "problem",
            "there is no append-only file: when the server dies, the keys that it acknowledged are gone",
            "CONFIG SET appendonly yes, and write it into redis.conf",
        )
    if fsync == "always":
        return Finding("persistence", "ok", "append-only file, appendfsync always: survives a power cut")
    return Finding(
        "persistence",
        "ok",
        f"append-only file, appendfsync {fsync or 'not told'}: survives kill -9; "
        "a power cut may take the last second or two, unless it is always",
    )


def _memory(info: Mapping[str, object]) -> Finding:
    used, most = int(str(info.get("used_memory", 0))), int(str(info.get("maxmemory", 0)))
    if most and used > 0.9 * most:
        return Finding(
            "memory",
            "warning",
            f"{used} of {most} bytes are used; when they are used up, new keys are refused",
            "raise maxmemory, shorten the retention, or run semel purge",
        )
    return Finding("memory", "ok", f"{used} bytes are used" + (f" of {most}" if most else ", without a maxmemory"))
