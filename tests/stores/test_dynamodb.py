"""The DynamoDB store against the contract, on two implementations of DynamoDB.

The emulators are slow. So the suite runs the whole contract for the sync face on dynalite, and a part of it for the
rest. `make dynamodb` runs all of it, for both faces on both servers.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from semel import Key, open_async_store, open_store
from semel.store import AsyncStore, Clock, Store
from semel.stores.dynamodb.layout import digest_of
from semel.testing import AsyncStoreContract, BlockingStore, StoreContract
from semel.testing.ambiguity import Ambiguity
from semel.testing.claims import Claims
from semel.testing.tasks import TaskCalls
from servers.moto import AwsServer, client_on
from stores.dynamodb_cases import ALL, credentials, table_of, url_on

pytestmark = pytest.mark.timeout(400)


class OnDynamodb:
    server_name: ClassVar[str]
    endpoint: str
    url: str
    parity_examples = 20 if ALL else 3
    parity_steps = 40 if ALL else 30
    race_rounds = 10 if ALL else 3

    @pytest.fixture(autouse=True)
    def place(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """A table for each class. Other processes open it, too."""
        server: AwsServer = request.getfixturevalue(f"{self.server_name}_server")
        # A machine that tests at once on all its processors may keep an emulator waiting.
        self.endpoint, self.url = server.url, url_on(server.url, type(self).__name__) + "&timeout_ms=30000"
        with credentials():
            yield

    def spoil(self, key: Key) -> Callable[[], object]:
        client: Any = client_on(self.endpoint, "dynamodb")
        where = {"TableName": table_of(self.url), "Key": {"digest": {"S": digest_of(key)}}}
        client.update_item(
            **where,
            UpdateExpression="SET #state = :state",
            ExpressionAttributeNames={"#state": "state"},
            ExpressionAttributeValues={":state": {"S": "of a newer version"}},
        )
        return lambda: client.delete_item(**where)


class OnMoto(OnDynamodb):
    """An eighth as fast as dynalite."""

    server_name = "moto"
    parity_examples = 5
    race_rounds = 5 if ALL else 2


class OnDynalite(OnDynamodb):
    server_name = "dynalite"


class SyncOpener:
    url: str

    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url, clock=clock)

    def handle(self, clock: Clock | None) -> Store:
        return self.open(clock)


class AsyncOpener:
    url: str

    def open(self, clock: Clock | None) -> AsyncStore:
        return open_async_store(self.url, clock=clock)

    def handle(self, clock: Clock | None) -> Store:
        return BlockingStore(self.open(clock))


class TestDynamodbStoreOnDynalite(OnDynalite, SyncOpener, StoreContract):
    pass


class TestAsyncDynamodbStoreOnDynalite(OnDynalite, AsyncOpener, AsyncStoreContract):
    __test__ = ALL


class TestDynamodbStoreOnMoto(OnMoto, SyncOpener, StoreContract):
    __test__ = ALL


class TestAsyncDynamodbStoreOnMoto(OnMoto, AsyncOpener, AsyncStoreContract):
    __test__ = ALL


class TestTasksOnDynalite(OnDynalite, AsyncOpener, TaskCalls):
    __test__ = not ALL


class TestClaimsOnMoto(OnMoto, SyncOpener, Ambiguity, Claims):
    __test__ = not ALL
