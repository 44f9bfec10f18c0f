"""The DynamoDB store's URL, its table, what an item is, what a call costs, and what `examine` says."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from semel import Acquired, Key, Occupied, Record, Result, State, open_async_store, open_store
from semel.errors import RecordUnreadable, StoreMisconfigured, StoreUnavailable
from semel.store import Examinable, Finding, Migratable, Store
from semel.stores.dynamodb.clock import WINDOW_MS, CheckedClock
from semel.stores.dynamodb.doctor import find_replicas
from semel.stores.dynamodb.failures import failure_of
from semel.stores.dynamodb.layout import PAYLOAD_MAX, TTL_SLACK_MS, digest_of, item_of, parts_of, to_record
from semel.stores.dynamodb.settings import DynamodbSettings
from semel.stores.url import StoreUrl
from semel.testing import BlockingStore, ManualClock
from semel.testing.calls import claim, complete, granted, held
from semel.testing.samples import LEASE_MS, RETENTION_MS
from servers.moto import AwsServer
from stores.dynamodb_answers import ChangedAnswers
from stores.dynamodb_cases import SERVERS, credentials, table_of, url_on

pytestmark = pytest.mark.timeout(60)
KEY = Key("tenant", "POST /payments", "key")
LARGE = Result("bytes", bytes(range(256)) * 4_000)
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def signed() -> Iterator[None]:
    with credentials():
        yield


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> AwsServer:
    found: AwsServer = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture(params=["sync", "async"])
def opened(request: pytest.FixtureRequest) -> Iterator[Callable[..., Store]]:
    stores: list[Store] = []

    def open_one(url: str, clock: ManualClock | None = None) -> Store:
        store: Store
        if request.param == "sync":
            store = open_store(url, clock=clock)
        else:
            store = BlockingStore(open_async_store(url, clock=clock))
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        store.close()


def settings_of(text: str) -> DynamodbSettings:
    url = StoreUrl.parse(text)
    settings = DynamodbSettings.of(url)
    url.finish()
    return settings


def item_in(server: AwsServer, url: str, digest: str) -> dict[str, Any] | None:
    found = server.client("dynamodb").get_item(TableName=table_of(url), Key={"digest": {"S": digest}})
    item: dict[str, Any] | None = found.get("Item")
    return item


class TestUrl:
    def test_every_option(self) -> None:
        settings = settings_of(
            "dynamodb://eu-west-1/semel.keys?endpoint_url=http://localhost:8000&timeout_ms=900&concurrency=7"
            "&skew_max_ms=20&read_first=true&migrate=auto&read_units=5&write_units=6"
        )
        assert settings == DynamodbSettings(
            "eu-west-1",
            "semel.keys",
            settings.shown,
            endpoint_url="http://localhost:8000",
            timeout_ms=900,
            concurrency=7,
            skew_max_ms=20,
            read_first=True,
            migrate=True,
            units=(5, 6),
        )

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("dynamodb:///semel", "write dynamodb://region/table"),
            ("dynamodb://eu-west-1", "write dynamodb://region/table"),
            ("dynamodb://eu-west-1/a/b", "write dynamodb://region/table"),
            ("dynamodb://eu-west-1/ab", "3 to 255"),
            ("dynamodb://id:secret@eu-west-1/semel", "leave the credentials out"),
            ("dynamodb://eu-west-1/semel?endpoint_url=localhost:8000", "must begin with http"),
            ("dynamodb://eu-west-1/semel?migrate=yes", "migrate must be auto or off"),
            ("dynamodb://eu-west-1/semel?read_units=5", "both read_units and write_units"),
            ("dynamodb://eu-west-1/semel?timeout=5", r"unknown option 'timeout'; did you mean timeout_ms\?"),
        ],
    )
    def test_what_is_wrong_is_named(self, url: str, words: str) -> None:
        with pytest.raises(StoreMisconfigured, match=words) as caught:
            open_store(url)
        assert "secret" not in str(caught.value)


class TestMissing:
    def test_no_table(self, server: AwsServer, opened: Callable[..., Store]) -> None:
        with pytest.raises(StoreMisconfigured, match="there is no such table; run semel migrate"):
            opened(url_on(server.url)).get(KEY)

    def test_a_table_of_another_key(self, server: AwsServer, opened: Callable[..., Store]) -> None:
        url = url_on(server.url)
        server.client("dynamodb").create_table(
            TableName=table_of(url),
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        for option in ("", "&migrate=auto"):
            with pytest.raises(StoreMisconfigured, match=r"is id \(S, HASH\), and must be digest \(S, HASH\)"):
                opened(url + option).get(KEY)

    def test_no_credentials(self, opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        with pytest.raises(StoreMisconfigured, match="AWS_ACCESS_KEY_ID"):
            opened("dynamodb://eu-central-1/semel?endpoint_url=http://127.0.0.1:1").get(KEY)

    def test_a_region_that_nobody_knows(self) -> None:
        """Only where there is no answer: a region may be newer than botocore."""
        gone = EndpointConnectionError(endpoint_url="https://there")
        unknown, known = (settings_of(f"dynamodb://{region}/semel") for region in ("eu-centrl-9", "eu-central-1"))
        assert isinstance(failure_of(gone, unknown), StoreMisconfigured)
        assert "see the region in the URL" in str(failure_of(gone, unknown))
        assert isinstance(failure_of(gone, known), StoreUnavailable)


class TestMigrate:
    def test_it_creates_the_table_once(self, server: AwsServer, opened: Callable[..., Store]) -> None:
        url = url_on(server.url)
        store = opened(url)
        assert isinstance(store, Migratable)
        assert list(store.migrate()) == [1]
        assert list(store.migrate()) == []
        table = server.client("dynamodb").describe_table(TableName=table_of(url))["Table"]
        assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
        assert granted(claim(store, KEY, "a")).attempt == 1

    def test_ttl_goes_by_our_attribute(self, moto_server: AwsServer, opened: Callable[..., Store]) -> None:
        """dynalite has no TTL."""
        url = url_on(moto_server.url)
        assert list(opened(url).migrate()) == [1]  # type: ignore[attr-defined]
        told = moto_server.client("dynamodb").describe_time_to_live(TableName=table_of(url))
        assert told["TimeToLiveDescription"] == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}

    def test_provisioned_units(self, server: AwsServer) -> None:
        url = url_on(server.url) + "&read_units=7&write_units=8"
        with open_store(url) as store:  # type: ignore[attr-defined]
            store.migrate()
        units = server.client("dynamodb").describe_table(TableName=table_of(url))["Table"]["ProvisionedThroughput"]
        assert (units["ReadCapacityUnits"], units["WriteCapacityUnits"]) == (7, 8)

    def test_threads_that_begin_together_share_one_table(self, server: AwsServer) -> None:
        with open_store(url_on(server.url) + "&migrate=auto") as store, ThreadPoolExecutor(8) as threads:  # type: ignore[attr-defined]
            keys = [Key("t", "s", f"{number}") for number in range(8)]
            assert all(isinstance(each, Acquired) for each in threads.map(lambda key: claim(store, key, "a"), keys))

    def test_what_a_person_would_run(self) -> None:
        store = open_store("dynamodb://eu-west-1/semel?read_units=7&write_units=8")
        [migration] = store.migrations()  # type: ignore[attr-defined]
        create, wait, ttl = migration.statements
        assert create.startswith("aws dynamodb create-table --region eu-west-1 --table-name semel ")
        assert "--provisioned-throughput ReadCapacityUnits=7,WriteCapacityUnits=8" in create
        assert "wait table-exists" in wait
        assert "AttributeName=ttl" in ttl


class TestItem:
    """What is stored, as others see it."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def place(self, server: AwsServer) -> str:
        return url_on(server.url, "semel-items") + "&migrate=auto"

    @pytest.fixture
    def key(self) -> Key:
        return Key(uuid.uuid4().hex, "s", "n")

    def test_ttl_is_an_hour_after_the_end(
        self, server: AwsServer, opened: Callable[..., Store], place: str, clock: ManualClock, key: Key
    ) -> None:
        """The end of a live lease, or of the retention, or of the refusal: whichever is last."""

        def slack_ms(end_ms: int) -> int:
            item = item_in(server, place, digest_of(key))
            assert item is not None
            return int(item["ttl"]["N"]) * 1000 - end_ms

        store = opened(place, clock)
        lease = granted(claim(store, key, "a", retention_ms=1))
        assert 0 <= slack_ms(clock.now_ms + LEASE_MS) - TTL_SLACK_MS < 1_000
        for lease_ms in (LEASE_MS, 10 * HOUR_MS, LEASE_MS):
            assert store.renew(lease, lease_ms=lease_ms)
            assert slack_ms(clock.now_ms + lease_ms) >= TTL_SLACK_MS
        assert store.complete(lease, Result("text", b"x"), retention_ms=RETENTION_MS, refuse_ms=RETENTION_MS)
        assert 0 <= slack_ms(clock.now_ms + 2 * RETENTION_MS) - TTL_SLACK_MS < 1_000
        clock.advance(RETENTION_MS)
        assert store.purge(limit=10_000) >= 1  # the result goes, and the refusal stays
        assert 0 <= slack_ms(clock.now_ms + RETENTION_MS) - TTL_SLACK_MS < 1_000

    def test_a_large_result_is_kept_in_parts(
        self, server: AwsServer, opened: Callable[..., Store], place: str, clock: ManualClock, key: Key
    ) -> None:
        store = opened(place, clock)
        assert complete(store, granted(claim(store, key, "a")), LARGE)
        names = [item["digest"]["S"] for item in parts_of(digest_of(key), "a", LARGE, 0)]
        assert len(names) == -(-len(LARGE.payload) // PAYLOAD_MAX) > 1
        assert all(item_in(server, place, name) for name in names)
        assert held(store, key).result == LARGE
        claimed = claim(store, key, "b")
        assert isinstance(claimed, Occupied)
        assert claimed.record.result == LARGE
        clock.advance(RETENTION_MS)
        store.purge(limit=10_000)
        assert not any(item_in(server, place, name) for name in names), "nothing is left of it"

    def test_a_large_result_that_lost_a_part_is_not_absent(
        self, server: AwsServer, opened: Callable[..., Store], place: str, clock: ManualClock, key: Key
    ) -> None:
        store = opened(place, clock)
        assert complete(store, granted(claim(store, key, "a")), LARGE)
        *_, last = parts_of(digest_of(key), "a", LARGE, 0)
        server.client("dynamodb").delete_item(TableName=table_of(place), Key={"digest": last["digest"]})
        for ask in (lambda: claim(store, key, "b"), lambda: store.get(key)):
            with pytest.raises(RecordUnreadable, match="a part of the result"):
                ask()

    def test_a_superseded_owner_s_parts_are_not_the_result(
        self, opened: Callable[..., Store], place: str, clock: ManualClock, key: Key
    ) -> None:
        store = opened(place, clock)
        zombie = granted(claim(store, key, "zombie"))
        clock.advance(LEASE_MS)
        successor = granted(claim(store, key, "successor", takeover=True))
        other = Result("bytes", LARGE.payload[::-1])
        assert complete(store, successor, other)
        assert not complete(store, zombie, LARGE)
        assert held(store, key).result == other

    def test_a_record_past_retention_that_was_not_deleted_is_absent(
        self, opened: Callable[..., Store], place: str, clock: ManualClock, key: Key
    ) -> None:
        store = opened(place, clock)
        assert complete(store, granted(claim(store, key, "a")))
        clock.advance(RETENTION_MS + 100 * HOUR_MS)
        assert store.get(key) is None
        assert granted(claim(store, key, "b")).attempt == 1

    def test_an_item_is_a_record_and_back(self) -> None:
        record = Record(KEY, "v1:f", State.SUCCEEDED, "", 3, 1, 2, 3, 2, None, 4)
        assert to_record(item_of(record), KEY) == record

    @pytest.mark.parametrize(
        "damage", [{"version": {"N": "2"}}, {"state": {"S": "?"}}, {"attempt": {"S": "1"}}, {"name": {"S": "other"}}]
    )
    def test_a_damaged_item_is_unreadable(self, damage: dict[str, Any]) -> None:
        record = Record(KEY, "v1:f", State.IN_PROGRESS, "a", 3, 1, 2, 3)
        with pytest.raises(RecordUnreadable, match="does not know"):
            to_record({**item_of(record), **damage}, KEY)
        with pytest.raises(RecordUnreadable):
            to_record({**item_of(record), **damage})


class TestCosts:
    """How many requests an operation is. moto answers a refusal with the item, as DynamoDB does; dynalite does not."""

    @pytest.mark.parametrize(
        ("operation", "requests"),
        [
            ("first claim", ["PutItem"]),
            ("repeated claim", ["PutItem"]),
            ("renew", ["UpdateItem"]),
            ("complete", ["UpdateItem"]),
            ("replay", ["PutItem"]),
            ("get", ["GetItem"]),
            ("release", ["DeleteItem"]),
            ("take over", ["PutItem", "PutItem"]),
        ],
    )
    def test_requests(
        self, moto_server: AwsServer, opened: Callable[..., Store], operation: str, requests: list[str]
    ) -> None:
        assert self.requests_of(moto_server, opened, operation) == requests

    @pytest.mark.parametrize(
        ("operation", "requests"),
        [("first claim", ["GetItem", "PutItem"]), ("replay", ["GetItem"]), ("complete", ["UpdateItem"])],
    )
    def test_requests_when_it_reads_first(
        self, moto_server: AwsServer, opened: Callable[..., Store], operation: str, requests: list[str]
    ) -> None:
        assert self.requests_of(moto_server, opened, operation, "&read_first=true") == requests

    def test_a_refusal_without_the_item_is_read(self, dynalite_server: AwsServer, opened: Callable[..., Store]) -> None:
        assert self.requests_of(dynalite_server, opened, "replay") == ["PutItem", "GetItem"]

    def requests_of(
        self, server: AwsServer, opened: Callable[..., Store], operation: str, options: str = ""
    ) -> list[str]:
        with ChangedAnswers(server.url) as answers:
            clock = ManualClock()
            store = opened(url_on(answers.url, "semel-costs") + "&migrate=auto" + options, clock)
            key = Key(uuid.uuid4().hex, "s", "n")
            store.get(key)
            lease = None if operation == "first claim" else granted(claim(store, key, "a"))
            if operation == "replay":
                assert lease is not None
                assert complete(store, lease)
            if operation == "take over":
                clock.advance(LEASE_MS)
            answers.operations.clear()
            match operation, lease:
                case "first claim" | "repeated claim", _:
                    assert isinstance(claim(store, key, "a"), Acquired)
                case "take over", _:
                    assert granted(claim(store, key, "b", takeover=True)).attempt == 2
                case "replay", _:
                    assert isinstance(claim(store, key, "b"), Occupied)
                case "get", _:
                    assert store.get(key) is not None
                case "renew", lease if lease:
                    assert store.renew(lease, lease_ms=LEASE_MS)
                case "complete", lease if lease:
                    assert complete(store, lease)
                case "release", lease if lease:
                    assert store.release(lease)
                case _:
                    raise AssertionError(operation)
            return answers.operations

    def test_units(self, dynalite_server: AwsServer) -> None:
        """A claim, a completion of a small answer and a read are one unit each, as the sizes of items say."""
        url = url_on(dynalite_server.url, "semel-costs") + "&migrate=auto"
        client = dynalite_server.client("dynamodb")
        with open_store(url) as store:  # type: ignore[attr-defined]
            for size, units in ((600, 1), (3_000, 4)):
                key = Key(uuid.uuid4().hex, "POST /payments", uuid.uuid4().hex)
                lease = granted(claim(store, key, uuid.uuid4().hex, fingerprint="v1:" + 64 * "f"))
                assert complete(store, lease, Result("http.1", b"x" * size))
                put_again = {"TableName": table_of(url), "Item": item_in(dynalite_server, url, digest_of(key))}
                told = client.put_item(**put_again, ReturnConsumedCapacity="TOTAL")
                assert told["ConsumedCapacity"]["CapacityUnits"] == units


class TestCheckedClock:
    """What a number of answers proves, each of which tells the time in whole seconds."""

    def clock(self) -> CheckedClock:
        return CheckedClock(settings_of("dynamodb://eu-west-1/semel"), read=lambda: 0)

    def told(self, at_ms: int) -> str:
        return formatdate(at_ms // 1000, usegmt=True)

    @pytest.mark.parametrize("ahead_ms", [-5_000, -2_500, -900, 0, 900, 2_500, 5_000])
    def test_answers_narrow_the_difference(self, ahead_ms: int) -> None:
        clock = self.clock()
        for step in range(20):
            there_ms = 10_000_000 + step * 1_137
            clock.compare(there_ms + ahead_ms - 5, there_ms + ahead_ms + 5, self.told(there_ms))
            assert clock.bounds_ms[0] <= ahead_ms <= clock.bounds_ms[1]
        assert clock.bounds_ms[1] - clock.bounds_ms[0] < 150
        assert clock.is_wrong() == (abs(ahead_ms) > 1_000)
        assert abs(clock.ahead_ms) <= abs(ahead_ms)

    def test_a_slow_answer_proves_little(self) -> None:
        clock = self.clock()
        clock.compare(10_000_000, 10_030_000, self.told(10_015_000))
        assert not clock.is_wrong()

    def test_what_was_proven_long_ago_is_forgotten(self) -> None:
        clock = self.clock()
        clock.compare(10_005_000, 10_005_000, self.told(10_000_000))
        assert clock.is_wrong()
        later_ms = 10_005_000 + WINDOW_MS + 1_000
        clock.compare(later_ms, later_ms, self.told(later_ms))
        assert not clock.is_wrong()

    @pytest.mark.parametrize("date", [None, "yesterday", ""])
    def test_an_answer_without_a_time_proves_nothing(self, date: str | None) -> None:
        clock = self.clock()
        clock.compare(0, 0, date)
        assert not clock.is_wrong()


class TestDoctor:
    def findings(self, url: str) -> dict[str, Finding]:
        with open_store(url) as store:  # type: ignore[attr-defined]
            assert isinstance(store, Examinable)
            return {finding.title: finding for finding in store.examine()}

    def test_what_it_says_of_a_sound_table(self, moto_server: AwsServer) -> None:
        url = url_on(moto_server.url) + "&migrate=auto"
        with open_store(url) as store:  # type: ignore[attr-defined]
            store.migrate()
        found = self.findings(url)
        levels = {title: finding.level for title, finding in found.items()}
        assert levels == {
            "connection": "ok",
            "schema": "ok",
            "billing": "ok",
            "replicas": "ok",
            "ttl": "ok",
            "backups": "warning",
            "clock": "ok",
            "promise": "info",
        }
        moto_server.client("dynamodb").update_continuous_backups(
            TableName=table_of(url), PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
        )
        assert self.findings(url)["backups"].level == "ok"

    def test_what_it_says_of_a_server_that_knows_less(self, dynalite_server: AwsServer) -> None:
        url = url_on(dynalite_server.url) + "&migrate=auto&read_units=3&write_units=4"
        with open_store(url) as store:  # type: ignore[attr-defined]
            store.migrate()
        found = self.findings(url)
        assert found["ttl"].level == "warning"
        assert found["backups"].level == "info"
        assert found["billing"].detail.startswith("provisioned: 3 read and 4 write units a second")

    def test_no_table(self, dynalite_server: AwsServer) -> None:
        found = self.findings(url_on(dynalite_server.url))
        assert (found["schema"].level, list(found)) == ("problem", ["schema"])
        assert "semel migrate" in found["schema"].fix

    def test_ttl_by_another_attribute(self, moto_server: AwsServer) -> None:
        url = url_on(moto_server.url)
        with open_store(url) as store:  # type: ignore[attr-defined]
            store.migrate()
        client = moto_server.client("dynamodb")
        for enabled, name in ((False, "ttl"), (True, "created_ms")):
            client.update_time_to_live(
                TableName=table_of(url), TimeToLiveSpecification={"Enabled": enabled, "AttributeName": name}
            )
        assert self.findings(url)["ttl"].level == "problem"

    def test_a_wrong_clock(self, dynalite_server: AwsServer) -> None:
        url = url_on(dynalite_server.url, "semel-items")
        with open_store(url) as store:  # type: ignore[attr-defined]
            store.migrate()
        with ChangedAnswers(dynalite_server.url) as answers:
            answers.ahead_s = 90
            assert self.findings(url_on(answers.url, "semel-items"))["clock"].level == "problem"

    def test_a_global_table(self) -> None:
        """The emulators have none: this is the answer that DynamoDB's documentation shows."""
        table = {"Replicas": [{"RegionName": "eu-west-1"}]}
        assert find_replicas(table).level == "problem"
        assert find_replicas(table | {"MultiRegionConsistency": "STRONG"}).level == "warning"
        assert find_replicas({}).level == "ok"
