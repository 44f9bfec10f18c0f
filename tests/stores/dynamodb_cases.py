"""Where the tests of the DynamoDB store run: on moto's server and on dynalite, each module in a table of its own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from semel.core.records import Key
from semel.stores.dynamodb.layout import digest_of
from semel.testing.proxy import Fault, FaultProxy, Injection, ProxyExchange, always
from servers.moto import REGION, AwsServer

ALL = bool(os.environ.get("SEMEL_DYNAMODB_ALL"))
"""Whether everything is tested on both servers, which are slow: `make dynamodb` does."""
SERVERS = ("moto", "dynalite") if ALL else ("dynalite",)


@contextmanager
def credentials() -> Iterator[None]:
    """The emulators take any."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_CONFIG_FILE", "/nowhere")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
        yield


def url_on(endpoint: str, table: str | None = None) -> str:
    return f"dynamodb://{REGION}/{table or f'semel-{uuid.uuid4().hex[:12]}'}?endpoint_url={endpoint}"


def table_of(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


def change_item(server: AwsServer, url: str, key: Key, expression: str, **values: object) -> None:
    """Change a record behind the store's back."""
    server.client("dynamodb").update_item(
        TableName=table_of(url),
        Key={"digest": {"S": digest_of(key)}},
        UpdateExpression=expression,
        **values,
    )


class DynamodbProxy(FaultProxy):
    """In front of the endpoint that a store's URL names. A request may come in pieces: a fault belongs to the last."""

    def __init__(self, url: str) -> None:
        [self._endpoint] = parse_qs(urlsplit(url).query)["endpoint_url"]
        self._store_url = url
        super().__init__(self._endpoint)

    @property
    def url(self) -> str:
        return self._store_url.replace(self._endpoint, super().url)

    def inject(self, fault: Fault, *, when: Callable[[ProxyExchange], bool] = always, **how: Any) -> Injection:
        return super().inject(fault, when=lambda exchange: exchange.request.endswith(b"}") and when(exchange), **how)
