"""What a Redis URL says: our own options, and the place in the driver's words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from urllib.parse import quote, urlsplit

from semel.errors import StoreMisconfigured
from semel.stores.redis.commands import Address
from semel.stores.url import StoreUrl

SCHEMES = {"redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss"}
PORT, SENTINEL_PORT = 6379, 26379
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the user knows about the server, and accepts (see `check`)."""

    eviction: bool = False
    no_persistence: bool = False
    unverified: bool = False


class Topology(Enum):
    """Which servers there are: the part of the scheme after the `+`."""

    SINGLE = ""
    CLUSTER = "cluster"
    SENTINEL = "sentinel"


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Where the server is and how to talk to it."""

    url: str
    """That of the server; with several of them `at` makes it."""
    shown: str
    """The place, for messages."""
    topology: Topology = Topology.SINGLE
    seeds: tuple[Address, ...] = ()
    """The cluster's nodes, or the sentinels, that the URL names."""
    service: str = ""
    """What the sentinels call it."""
    sentinel_login: str = ""
    asks_sentinel: bool = False
    """These are the settings for a sentinel, not for a server with records."""
    wait_replicas: int = 0
    wait_ms: int = 1_000
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
        accepted = Accepted(True, True, True)
        return replace(self, timeout_ms=min(self.timeout_ms, timeout_ms), wait_replicas=0, accepted=accepted)

    def at(self, address: Address, *, sentinel: bool = False) -> RedisSettings:
        """The settings for one server of several."""
        host, port = address
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        parts = urlsplit(self.url)
        login = self.sentinel_login if sentinel else parts.netloc.rpartition("@")[0]
        path = "" if sentinel else parts.path
        url = parts._replace(netloc=f"{login}@{place}" if login else place, path=path).geturl()
        shown = f"{self.shown}, {'sentinel' if sentinel else 'server'} {place},"
        return replace(self, url=url, shown=shown, asks_sentinel=sentinel)

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
        scheme, _, rest = url.parts.scheme.partition("+")
        topology = Topology(rest)
        timeout_ms = url.number("timeout_ms", 5_000, least=1, most=600_000)
        return cls(
            url=_driver_url(url) if topology is Topology.SINGLE else _pattern(url, topology),
            shown=url.shown,
            topology=topology,
            seeds=() if topology is Topology.SINGLE else _seeds(url, topology),
            service=_service(url) if topology is Topology.SENTINEL else "",
            sentinel_login=_sentinel_login(url) if topology is Topology.SENTINEL else "",
            wait_replicas=url.number("wait_replicas", 0, least=0, most=100),
            wait_ms=_wait_ms(url, timeout_ms),
            prefix=prefix,
            timeout_ms=timeout_ms,
            pool_max=url.number("pool_max", 16, least=1, most=10_000),
            accepted=accepted,
            tls=_tls(url) if SCHEMES[scheme] == "rediss" else {},
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


def _wait_ms(url: StoreUrl, timeout_ms: int) -> int:
    wait_ms = url.number("wait_ms", min(1_000, max(1, timeout_ms // 2)), least=1, most=600_000)
    if wait_ms > timeout_ms:
        raise StoreMisconfigured(
            f"{url.shown}: option wait_ms must be at most timeout_ms ({timeout_ms}), not {wait_ms}: "
            "the replicas are waited for within the time of a call"
        )
    return wait_ms


def _pattern(url: StoreUrl, topology: Topology) -> str:
    """The URL of any of several servers, which lacks only the place of one."""
    login, at, _ = url.parts.netloc.rpartition("@")
    scheme = SCHEMES[url.parts.scheme.partition("+")[0]]
    if topology is Topology.CLUSTER:
        if url.parts.path.strip("/") not in ("", "0"):
            raise StoreMisconfigured(f"{url.shown}: Redis Cluster has no databases: end the URL after the hosts")
        return f"{scheme}://{login}{at}"
    return f"{scheme}://{login}{at}/{url.number('database', 0, least=0, most=1_000_000)}"


def _seeds(url: StoreUrl, topology: Topology) -> tuple[Address, ...]:
    """The hosts of host1:port1,host2,…"""
    usual = SENTINEL_PORT if topology is Topology.SENTINEL else PORT
    seeds: list[Address] = []
    for place in url.parts.netloc.rpartition("@")[2].split(","):
        try:
            parts = urlsplit(f"//{place}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise StoreMisconfigured(f"{url.shown}: {error}") from None
        if not host:
            raise StoreMisconfigured(
                f"{url.shown}: name at least one host, as in {url.parts.scheme}://host1:{usual},host2:{usual}"
            )
        seeds.append((host, port or usual))
    return tuple(seeds)


def _service(url: StoreUrl) -> str:
    service = url.parts.path.strip("/")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", service):
        raise StoreMisconfigured(
            f"{url.shown}: name the service that the sentinels watch after the hosts, as in "
            f"{url.parts.scheme}://host1,host2/mymaster"
        )
    return service


def _sentinel_login(url: StoreUrl) -> str:
    """The sentinels' own, which is rarely that of the servers."""
    user, password = url.text_option("sentinel_username"), url.text_option("sentinel_password")
    return f"{quote(user, safe='')}:{quote(password, safe='')}" if user or password else ""


def _tls(url: StoreUrl) -> dict[str, Any]:
    given = {name: url.text_option(name) for name in TLS_FILES}
    return {name: value for name, value in given.items() if value}
