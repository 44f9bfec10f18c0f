"""What a PostgreSQL URL says: our own options, and libpq's, which are passed on."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from semel.errors import StoreMisconfigured
from semel.stores.url import StoreUrl


@dataclass(frozen=True)
class PostgresSettings:
    """Where the tables are, and how long anything may take."""

    conninfo: str
    shown: str
    """The place, for messages."""
    schema: str = ""
    timeout_ms: int = 5_000
    """Bounds each wait: for a free connection, for a new one, and for the answer to a statement."""
    pool_max: int = 10
    prepare: bool = True
    """Prepare statements on connections that lead straight to PostgreSQL. Behind a pooler it is never done."""
    migrate: bool = False
    """Create or upgrade the tables on first use."""

    @property
    def timeout_s(self) -> float:
        return self.timeout_ms / 1000

    @classmethod
    def of(cls, url: StoreUrl) -> PostgresSettings:
        schema = url.text_option("schema")
        timeout_ms = url.number("timeout_ms", cls.timeout_ms, least=50, most=600_000)
        pool_max = url.number("pool_max", cls.pool_max, least=1, most=1_000)
        prepare = url.flag("prepare", cls.prepare)
        migrate = url.text_option("migrate", "off")
        if migrate not in ("auto", "off"):
            raise StoreMisconfigured(f"{url.shown}: option migrate must be auto or off, not {migrate!r}")
        return cls(_conninfo(url, timeout_ms), url.shown, schema, timeout_ms, pool_max, prepare, migrate == "auto")


def _conninfo(url: StoreUrl, timeout_ms: int) -> str:
    """The URL with only what libpq knows. What neither of us knows stays in `url.options`, to be refused."""
    known = [option.keyword.decode() for option in Conninfo.get_defaults() if b"D" not in (option.dispchar or b"")]
    given = {name: value for name in known if (value := url.text_option(name))}
    given.setdefault("connect_timeout", str(-(-timeout_ms // 1000)))  # whole seconds; libpq makes one two
    given["client_encoding"] = "utf8"
    # Not by urlunsplit, which leaves out the slashes of a URL without a host: postgresql:///db?host=/socket.
    text = f"{url.parts.scheme}://{url.parts.netloc}{url.parts.path}?{urlencode(given, quote_via=quote)}"
    try:
        conninfo_to_dict(text)
    except psycopg.ProgrammingError as error:
        raise StoreMisconfigured(f"{url.shown} is not a PostgreSQL URL: {' '.join(str(error).split())}") from None
    return text
