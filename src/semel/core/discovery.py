"""How a service tells callers what it does with their keys (`/.well-known/idempotency`), read as a dialect.

The document comes from the network, so it has a bound, and a redirect is followed within the service's own origin only.
Fields that are not known are ignored. What cannot be adopted for sure is an error: a wrong guess may double an effect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from semel.core.dialects import DRAFT_07, KeyDialect, KeyFormat, KeyQuoting
from semel.core.effects import Effect, Plan, do
from semel.core.http import WELL_KNOWN
from semel.core.records import DURATION_MS_MAX, NAME_MAX
from semel.errors import NotDiscovered

DOCUMENT_MAX = 65_536
"""A longer document is not read."""
REDIRECTS_MAX = 3
HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")
OF_HTTP = frozenset(
    "accept accept-encoding authorization connection content-encoding content-length content-type cookie date expect "
    "host keep-alive origin prefer range referer te trailer transfer-encoding upgrade user-agent via".split()
)
"""Headers that mean something else already. A service cannot have its key there."""
PORTS = {"http": 80, "https": 443}
WAYS: dict[frozenset[str], tuple[KeyQuoting, KeyFormat]] = {
    frozenset({"any"}): (KeyQuoting.QUOTED, KeyFormat.UUID4),
    frozenset({"strict"}): (KeyQuoting.QUOTED, KeyFormat.UUID4),
    frozenset({"uuid"}): (KeyQuoting.BARE, KeyFormat.UUID4),
    frozenset({"ulid"}): (KeyQuoting.BARE, KeyFormat.ULID),
}
DISCOVERED = "discovered"
"""The name of the dialect of every service that was asked."""
KEY_SIZES = {KeyFormat.UUID4: 36, KeyFormat.ULID: 26}

Seconds = Annotated[float, Meta(ge=1, le=DURATION_MS_MAX / 1_000)]


class DiscoveredKeys(Struct, frozen=True):
    """What a service says about its keys."""

    dialect: KeyDialect
    max_age: timedelta
    """For `journal.intent(max_age=…)`: a little less than the service's retention, because requests take time."""
    exempt: tuple[str, ...] = ()
    """Operations that the service runs each time, whatever their key."""


class FetchDocument(Effect["FetchedDocument"], frozen=True):
    """GET this URL, as JSON and not compressed. No redirect is followed."""

    url: str


class FetchedDocument(Struct, frozen=True):
    status: int
    content_type: str
    body: bytes
    """Not more than one byte longer than `DOCUMENT_MAX`."""
    location: str = ""


class KeyShape(Struct, frozen=True):
    """The member `key` of the document."""

    format: str
    max_length: Annotated[int, Meta(ge=1)]


class PublishedOperation(Struct, frozen=True):
    """What differs for some operations."""

    match: str = ""
    exempt: bool = False
    headers: list[str] | None = None
    key_format: str | None = None
    retention_seconds: Seconds | None = None


class KeyDocument(Struct, frozen=True):
    """The members that say how to send a key."""

    headers: list[str]
    key: KeyShape
    retention_seconds: Seconds
    operations: list[PublishedOperation] = []


def locate(url: str) -> str:
    """Where the document of a service is: below the URL of the service, unless the URL is the document's own."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f"the service must be an http or https URL, not {url!r}")
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith(WELL_KNOWN) else path + WELL_KNOWN, query="", fragment="").geturl()


def discover_keys(url: str) -> Plan[DiscoveredKeys]:
    """Ask a service for its document, and read it."""
    first = found = locate(url)
    for _ in range(REDIRECTS_MAX + 1):
        fetched = yield from do(FetchDocument(found))
        if not 300 <= fetched.status < 400:
            return read_document(fetched, found)
        found = _follow(found, fetched.location)
    raise NotDiscovered(f"{first} redirects more than {REDIRECTS_MAX} times")


def _follow(url: str, location: str) -> str:
    """Where a redirect leads, within the origin."""
    try:
        target = urljoin(url, location)
        if _origin(target) == _origin(url):
            return target
    except ValueError:  # it is no URL
        pass
    raise NotDiscovered(f"{url} redirects to another origin, {location[:200]!r}: ask there, if you trust it")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or PORTS.get(parts.scheme)


def read_document(fetched: FetchedDocument, url: str) -> DiscoveredKeys:
    """The document as a dialect that suits all operations, with the shortest of their retentions."""
    if fetched.status != 200:
        raise NotDiscovered(f"{url} answers {fetched.status}: the service publishes nothing about its keys there")
    if fetched.content_type.partition(";")[0].strip().lower() != "application/json":
        raise NotDiscovered(f"{url} is no JSON document but {fetched.content_type!r}")
    if len(fetched.body) > DOCUMENT_MAX:
        raise NotDiscovered(f"{url} is longer than {DOCUMENT_MAX} bytes")
    try:
        document = msgspec.json.decode(fetched.body, type=KeyDocument)
    except (ValueError, RecursionError) as error:
        raise NotDiscovered(f"{url} does not say how keys are sent: {error}") from None
    operations = [each for each in document.operations if not each.exempt]
    quoting, format = _find_way(url, {document.key.format, *(each.key_format for each in operations)} - {None})
    if not KEY_SIZES[format] <= document.key.max_length:
        raise NotDiscovered(f"{url}: key.max_length {document.key.max_length} is too short for a {format.name}")
    others = [each.retention_seconds for each in operations if each.retention_seconds is not None]
    retention_s = min([document.retention_seconds, *others])
    dialect = replace(
        DRAFT_07,
        name=DISCOVERED,
        source=url,
        header=_find_header(
            url, [document.headers, *(each.headers for each in operations if each.headers is not None)]
        ),
        quoting=quoting,
        format=format,
        key_max=min(document.key.max_length, NAME_MAX),
        retention_ms=int(1_000 * retention_s),
    )
    exempt = tuple(each.match for each in document.operations if each.exempt)
    return DiscoveredKeys(dialect, timedelta(seconds=retention_s * 23 / 24), exempt)


def _find_way(url: str, formats: set[str | None]) -> tuple[KeyQuoting, KeyFormat]:
    """How to write a key that all operations take. `any` takes each of them."""
    strictest = frozenset(str(each) for each in formats - {"any"}) or frozenset({"any"})
    way = WAYS.get(strictest)
    if way is None:
        raise NotDiscovered(
            f"{url} wants keys in the formats {sorted(strictest)}, and semel cannot make a key that suits them all: "
            "write a KeyDialect yourself"
        )
    return way


def _find_header(url: str, alternatives: Sequence[Sequence[str]]) -> str:
    """The first header in which all operations take the key."""
    for name in alternatives[0]:
        if all(name.lower() in map(str.lower, names) for names in alternatives[1:]):
            if HEADER.fullmatch(name) is None or name.lower() in OF_HTTP:
                raise NotDiscovered(f"{url} wants the key in the header {name[:100]!r}, which cannot hold one")
            return name
    raise NotDiscovered(f"{url} has no header in which all of its operations take a key: write a KeyDialect yourself")
