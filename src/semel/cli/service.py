"""How a service is told the key of a request: by a dialect that is known, or as the service publishes it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from semel.cli.dispatch import import_httpx
from semel.client.discovery import discover
from semel.core.dialects import KeyDialect


class ServiceAway(Exception):
    """The service could not be asked."""


@dataclass(frozen=True, slots=True)
class ServiceKeys:
    """What is known of a service, and where that is from."""

    dialect: KeyDialect
    max_age: timedelta
    source: str

    @property
    def retention(self) -> timedelta:
        return timedelta(milliseconds=self.dialect.retention_ms)


def keys_of(dialect: KeyDialect) -> ServiceKeys:
    """A dialect, with a little less than its retention, because requests take time."""
    return ServiceKeys(dialect, timedelta(milliseconds=dialect.retention_ms) * 23 / 24, f"the dialect {dialect.name}")


def ask_service(url: str) -> ServiceKeys:
    """What the service of a URL publishes below its root. Raises `NotDiscovered` or `ServiceAway`."""
    httpx, _ = import_httpx()
    try:
        with httpx.Client() as client:
            found = discover(client, origin_of(url))
    except httpx.HTTPError as error:
        raise ServiceAway(f"{type(error).__name__}: {error}") from error
    return ServiceKeys(found.dialect, found.max_age, "what it publishes")


def origin_of(url: str) -> str:
    """Scheme, host and port, as they stand in the URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()
