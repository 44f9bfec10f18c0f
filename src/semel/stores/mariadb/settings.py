"""What a MariaDB URL says: our own options, and the place in the drivers' words."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from semel.errors import StoreMisconfigured
from semel.stores.url import StoreUrl

PORT = 3306


@dataclass(frozen=True)
class MariadbSettings:
    """Where the tables are, and how long anything may take."""

    place: dict[str, Any] = field(repr=False)
    """Host, port, user, password, database, socket and TLS, as PyMySQL and aiomysql both call them."""
    database: str
    shown: str
    """The place, for messages."""
    timeout_ms: int = 5_000
    """Bounds each wait: for a free connection, for a new one, and for the answer to a statement."""
    pool_max: int = 10
    migrate: bool = False
    """Create or upgrade the tables on first use."""

    @property
    def timeout_s(self) -> float:
        return self.timeout_ms / 1000

    @classmethod
    def of(cls, url: StoreUrl) -> MariadbSettings:
        """Take the options that are ours; what is left over is refused by `url.finish`."""
        timeout_ms = url.number("timeout_ms", cls.timeout_ms, least=50, most=600_000)
        pool_max = url.number("pool_max", cls.pool_max, least=1, most=1_000)
        migrate = url.text_option("migrate", "off")
        if migrate not in ("auto", "off"):
            raise StoreMisconfigured(f"{url.shown}: option migrate must be auto or off, not {migrate!r}")
        database = unquote(url.parts.path.removeprefix("/"))
        if not database or "/" in database:
            raise StoreMisconfigured(f"{url.shown} must name the database: {url.parts.scheme}://host/database")
        return cls(_place(url), database, url.shown, timeout_ms, pool_max, migrate == "auto")


def _place(url: StoreUrl) -> dict[str, Any]:
    parts = url.parts
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise StoreMisconfigured(f"{url.shown}: {error}") from None
    return {
        "host": host or "localhost",
        "port": port or PORT,
        "user": unquote(parts.username or "") or None,
        # Both drivers send a password as Latin-1. The server compares bytes, which are UTF-8 nearly everywhere.
        "password": unquote(parts.password or "").encode().decode("latin-1"),
        "unix_socket": url.text_option("unix_socket") or None,
        "ssl": _tls(url),
    }


def _tls(url: StoreUrl) -> ssl.SSLContext | None:
    """Encrypt only to a server whose certificate was verified. Without the options nothing is encrypted."""
    files = {name: url.text_option(name) for name in ("tls_ca", "tls_cert", "tls_key")}
    if not url.flag("tls", default=any(files.values())):
        if any(files.values()):
            raise StoreMisconfigured(f"{url.shown}: tls=false contradicts {', '.join(filter(files.get, files))}")
        return None
    try:
        context = ssl.create_default_context(cafile=files["tls_ca"] or None)
        if files["tls_cert"]:
            context.load_cert_chain(files["tls_cert"], files["tls_key"] or None)
    except (OSError, ssl.SSLError) as error:
        raise StoreMisconfigured(f"{url.shown}: the files of tls_ca, tls_cert and tls_key: {error}") from None
    return context
