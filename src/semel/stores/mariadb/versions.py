"""Which servers the store works on. The store's tests run on MariaDB; MySQL could not be tested."""

from __future__ import annotations

import re

from semel.errors import StoreMisconfigured

VERSION = re.compile(r"([0-9]+)\.([0-9]+)\.[0-9]+-MariaDB")
OLDEST = (10, 6)
"""The first one with `SKIP LOCKED`."""


def version_of(told: str) -> tuple[int, int] | None:
    """The version that a server of MariaDB greets with; None if it is another server."""
    found = VERSION.search(told)
    return (int(found[1]), int(found[2])) if found else None


def refuse_server(told: str, shown: str) -> None:
    """Refuse a server on which no promise of the store was tested."""
    version = version_of(told)
    if version is None:
        raise StoreMisconfigured(
            f"{shown}: this server says it is {told!r}, not MariaDB. The store was never tested on MySQL, so it "
            "refuses it; use MariaDB 10.6 or later, PostgreSQL, Redis or SQLite"
        )
    if version < OLDEST:
        raise StoreMisconfigured(f"{shown}: the store needs MariaDB 10.6 or later, this server is {told!r}")
