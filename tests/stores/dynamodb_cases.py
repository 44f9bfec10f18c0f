"""Where the tests of the DynamoDB store run: on moto's server and on dynalite, each module in a table of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from semel.core.records import Key
from semel.stores.dynamodb.layout import digest_of
from servers.moto import REGION, AwsServer

SERVERS = ("moto", "dynalite")


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
