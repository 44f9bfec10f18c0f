"""Asks a service how it wants keys to be sent: `discover(client, "https://api.example")`.

The client may be one of httpx or of httpx2. Its own errors are raised as they come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.core.discovery import DOCUMENT_MAX, DiscoveredKeys, FetchDocument, FetchedDocument, discover_keys
from semel.core.effects import Effect
from semel.runtime.drive import adrive, drive

if TYPE_CHECKING:
    import httpx
    import httpx2

HEADERS = {"accept": "application/json", "accept-encoding": "identity"}


def discover(client: httpx.Client | httpx2.Client, url: str) -> DiscoveredKeys:
    """What a service says about its keys in `/.well-known/idempotency`, below its URL.

    Raises `NotDiscovered` if it says nothing, or something that cannot be adopted for sure.
    """

    def perform(effect: Effect[Any]) -> FetchedDocument:
        assert isinstance(effect, FetchDocument)
        with client.stream("GET", effect.url, headers=HEADERS, follow_redirects=False) as response:
            body = bytearray()
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > DOCUMENT_MAX:
                    break
        return _fetched(response, body)

    return drive(discover_keys(url), perform)


async def adiscover(client: httpx.AsyncClient | httpx2.AsyncClient, url: str) -> DiscoveredKeys:
    """The same with `await`."""

    async def perform(effect: Effect[Any]) -> FetchedDocument:
        assert isinstance(effect, FetchDocument)
        async with client.stream("GET", effect.url, headers=HEADERS, follow_redirects=False) as response:
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > DOCUMENT_MAX:
                    break
        return _fetched(response, body)

    return await adrive(discover_keys(url), perform)


def _fetched(response: httpx.Response | httpx2.Response, body: bytearray) -> FetchedDocument:
    headers = response.headers
    return FetchedDocument(
        response.status_code,
        headers.get("content-type", ""),
        bytes(body[: DOCUMENT_MAX + 1]),
        headers.get("location", ""),
    )
