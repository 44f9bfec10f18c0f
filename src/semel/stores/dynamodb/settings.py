"""What a DynamoDB URL says. Credentials are not in it: they come from botocore's usual places."""

from __future__ import annotations

import re
from dataclasses import dataclass

from semel.errors import StoreMisconfigured
from semel.stores.url import StoreUrl

LATE_FACTOR = 3
"""A request goes on for this many times `timeout_ms`, although its caller was answered long before: to learn what
became of it."""


@dataclass(frozen=True, slots=True)
class DynamodbSettings:
    """Where the table is, how long anything may take, and how wrong a clock may be."""

    region: str
    table: str
    shown: str
    """The place, for messages."""
    endpoint_url: str | None = None
    timeout_ms: int = 5_000
    concurrency: int = 64
    """How many requests of this process (for tasks, of this event loop) may be under way at once."""
    skew_max_ms: int = 1_000
    """How far this machine's clock may be from DynamoDB's."""
    read_first: bool = False
    migrate: bool = False
    """Create the table on first use."""
    units: tuple[int, int] | None = None
    """Provisioned read and write units of a table that `migrate` creates; None pays by request."""

    @property
    def timeout_s(self) -> float:
        return self.timeout_ms / 1000

    @property
    def late_s(self) -> float:
        return self.timeout_s * LATE_FACTOR

    @property
    def margin_ms(self) -> int:
        """How far the clocks of two callers may be apart, if each passes the check."""
        return 2 * self.skew_max_ms

    @classmethod
    def of(cls, url: StoreUrl) -> DynamodbSettings:
        """Take the options that are ours; what is left over is refused by `url.finish`."""
        if url.parts.username or url.parts.password:
            raise StoreMisconfigured(
                f"{url.shown}: leave the credentials out; they come from the environment, from ~/.aws or from the role "
                "of the machine"
            )
        region, table = url.parts.netloc, url.parts.path.removeprefix("/")
        if not re.fullmatch("[a-z0-9-]{1,64}", region) or not re.fullmatch("[A-Za-z0-9_.-]{3,255}", table):
            raise StoreMisconfigured(
                f"{url.shown}: write dynamodb://region/table, such as dynamodb://eu-central-1/semel. A table's name "
                "has 3 to 255 of A-Z a-z 0-9 _ . -"
            )
        migrate = url.text_option("migrate", "off")
        if migrate not in ("auto", "off"):
            raise StoreMisconfigured(f"{url.shown}: option migrate must be auto or off, not {migrate!r}")
        endpoint_url = _endpoint(url)
        return cls(
            region,
            table,
            url.shown + (f" at {endpoint_url}" if endpoint_url else ""),
            endpoint_url=endpoint_url,
            timeout_ms=url.number("timeout_ms", 5_000, least=50, most=600_000),
            concurrency=url.number("concurrency", 64, least=1, most=1_000),
            skew_max_ms=url.number("skew_max_ms", 1_000, least=0, most=60_000),
            read_first=url.flag("read_first"),
            migrate=migrate == "auto",
            units=_units(url),
        )


def _endpoint(url: StoreUrl) -> str | None:
    given = url.text_option("endpoint_url")
    if given and not given.startswith(("http://", "https://")):
        raise StoreMisconfigured(f"{url.shown}: option endpoint_url must begin with http:// or https://")
    return given or None


def _units(url: StoreUrl) -> tuple[int, int] | None:
    read, write = (url.number(name, 0, least=0, most=10_000_000) for name in ("read_units", "write_units"))
    if bool(read) != bool(write):
        raise StoreMisconfigured(f"{url.shown}: give both read_units and write_units, or neither to pay by request")
    return (read, write) if read else None
