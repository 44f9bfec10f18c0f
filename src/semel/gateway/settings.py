"""The options of `semel gateway`, checked once at the start. The rules file is in `semel.gateway.rules`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from semel.core.http import WELL_KNOWN
from semel.runtime.arguments import weakness_of

DownstreamKey = Literal["derived", "caller", "none"]
Host = Literal["caller", "upstream"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
CHOICES = {
    "downstream_key": get_args(DownstreamKey),
    "host": get_args(Host),
    "log_format": get_args(LogFormat),
    "log_level": get_args(LogLevel),
}
DEFAULT_LISTEN = "127.0.0.1:8080"
WORKERS_MAX = 256
CONNECTIONS_MAX = 1_000_000
POSITIVE = (
    *("connect_timeout_s", "timeout_s", "drain_s"),
    *("head_timeout_s", "body_timeout_s", "idle_timeout_s", "send_timeout_s"),
)
DURATIONS = ("keepalive_s", *POSITIVE)


class SettingsInvalid(ValueError):
    """A setting cannot be used; the message names the option and the way out."""


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """The settings of one gateway. Durations are seconds."""

    upstream: str
    store: str
    listen: str = DEFAULT_LISTEN
    rules: Path | None = None
    admin: str | None = None
    workers: int = 1
    downstream_key: DownstreamKey = "derived"
    host: Host = "caller"
    connect_timeout_s: float = 5.0
    timeout_s: float = 60.0
    keepalive_s: float = 1.0
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    body_rate: int = 1_000
    idle_timeout_s: float = 75.0
    send_timeout_s: float = 60.0
    connections_max: int = 10_000
    drain_s: float = 30.0
    secret: str | None = None
    quota_storage: str = "memory://"
    publish: str | None = WELL_KNOWN
    count_records: bool = True
    log_format: LogFormat | None = None
    log_level: LogLevel | None = None

    def __post_init__(self) -> None:
        if not _is_upstream(self.upstream):
            raise SettingsInvalid(f"--upstream {self.upstream!r}: write http://host:port or https://host:port")
        if self.store.startswith("memory:"):
            raise SettingsInvalid(f"--store {self.store}: a worker that dies would forget its keys; use sqlite:///FILE")
        if self.secret is not None and (weakness := weakness_of(self.secret.encode())) is not None:
            raise SettingsInvalid(f"--secret {weakness}")
        parse_address("--listen", self.listen)
        if self.admin is not None:
            parse_address("--admin", self.admin)
        if not 1 <= self.workers <= WORKERS_MAX:
            raise SettingsInvalid(f"--workers {self.workers}: 1 to {WORKERS_MAX}")
        for name, allowed in CHOICES.items():
            if (value := getattr(self, name)) not in (*allowed, None):
                raise SettingsInvalid(f"--{name.replace('_', '-')} {value!r}: {', '.join(allowed)}")
        for name in POSITIVE:
            if not 0 < (value := getattr(self, name)) <= 86_400:
                raise SettingsInvalid(f"--{name.removesuffix('_s').replace('_', '-')} {value}: over 0, at most a day")
        if not 0 <= self.keepalive_s <= 86_400:
            raise SettingsInvalid(f"--keepalive {self.keepalive_s}: 0 for a connection of its own for each request")
        if self.publish is not None and not self.publish.startswith("/"):
            raise SettingsInvalid(f"--publish {self.publish!r}: a path that starts with a slash, or none")
        if self.body_rate < 1:
            raise SettingsInvalid(f"--body-rate {self.body_rate}: at least 1 byte a second")
        if not 1 <= self.connections_max <= CONNECTIONS_MAX:
            raise SettingsInvalid(f"--connections-max {self.connections_max}: 1 to {CONNECTIONS_MAX}")

    @property
    def base(self) -> str:
        """The upstream without a slash at its end: the path of a request follows."""
        return self.upstream.rstrip("/")

    @property
    def upstream_host(self) -> bytes:
        """Host and port of the service, as its `Host` header names them."""
        return urlsplit(self.upstream).netloc.encode()


def _is_upstream(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises if there can be no such port
    except ValueError:
        return False
    more = parts.username or parts.query or parts.fragment
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not more


def parse_address(option: str, text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` taken apart."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535 or (":" in host and not host.startswith("[")):
        raise SettingsInvalid(f"{option} {text!r}: write host:port, for example 127.0.0.1:8080 or [::1]:8080")
    return host.strip("[]"), int(port)
