"""URLs that name several servers, and which of them a record is on."""

import pytest

from semel import StoreMisconfigured, open_store
from semel.stores.redis.commands import Node
from semel.stores.redis.settings import RedisSettings, Topology
from semel.stores.redis.slots import SLOTS, SlotMap
from semel.stores.redis.walk import Walk, read_cursor, write_cursor
from semel.stores.url import StoreUrl


def settings(url: str) -> RedisSettings:
    parsed = StoreUrl.parse(url)
    found = RedisSettings.of(parsed)
    parsed.finish()
    return found


def test_a_cluster_is_known_by_some_of_its_nodes() -> None:
    found = settings("redis+cluster://user:p%40ss@one:7001,two,[::1]:7003/0?prefix=shop&wait_replicas=1&wait_ms=200")
    assert found.topology is Topology.CLUSTER
    assert found.seeds == (("one", 7001), ("two", 6379), ("::1", 7003))
    assert (found.prefix, found.wait_replicas, found.wait_ms) == ("shop", 1, 200)
    assert found.at(("three", 7009)).url == "redis://user:p%40ss@three:7009"
    assert found.at(("::1", 7003)).url == "redis://user:p%40ss@[::1]:7003"
    assert "p%40ss" not in found.at(("three", 7009)).shown


def test_sentinels_have_a_login_of_their_own() -> None:
    url = "rediss+sentinel://:secret@one,two:5000/main?database=2&sentinel_username=ask&sentinel_password=a/b"
    found = settings(url)
    assert found.topology is Topology.SENTINEL
    assert (found.seeds, found.service) == ((("one", 26379), ("two", 5000)), "main")
    assert found.at(("three", 6379)).url == "rediss://:secret@three:6379/2"
    assert found.at(("one", 26379), sentinel=True).url == "rediss://ask:a%2Fb@one:26379"
    assert "secret" not in found.shown
    assert settings("valkeys+sentinel://one/main").at(("one", 1), sentinel=True).url == "rediss://one:1"


def test_a_wait_is_shorter_than_a_call() -> None:
    assert settings("redis://one?timeout_ms=100").wait_ms == 50
    assert settings("redis://one?wait_replicas=2").wait_ms == 1_000


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+cluster://", "name at least one host, as in redis\\+cluster://host1:6379,host2:6379"),
        ("redis+cluster://one,,two", "name at least one host"),
        ("redis+cluster://one:port", "port"),
        ("redis+cluster://one/3", "Redis Cluster has no databases"),
        ("redis+cluster://one?database=1", "unknown option 'database'"),
        (
            "redis+sentinel://one",
            "name the service that the sentinels watch .* redis\\+sentinel://host1,host2/mymaster",
        ),
        ("redis+sentinel://one/a/b", "name the service"),
        ("redis+sentinel://one/main?sentinel_pasword=x", "did you mean sentinel_password"),
        ("redis://one?sentinel_password=x", "unknown option"),
        ("redis+cluster://one?wait_replicas=-1", "wait_replicas must be a number from 0 to 100"),
        ("redis+cluster://one?wait_ms=9000", "wait_ms must be at most timeout_ms \\(5000\\), not 9000"),
        ("redis+clusters://one", "did you mean redis\\+cluster://"),
    ],
)
def test_bad_urls(url: str, said: str) -> None:
    with pytest.raises(StoreMisconfigured, match=said):
        open_store(url)


def test_a_map_is_what_a_node_says() -> None:
    reply = [
        [0, 99, [b"10.0.0.1", 7001, b"aa", []], [b"10.0.0.4", 7004, b"dd", []]],
        [200, SLOTS - 1, [b"", 7002, b"bb"]],
    ]
    slots = SlotMap.read(reply, ("10.0.0.2", 7002))
    assert [slots.owner(slot) for slot in (0, 99, 100, 200)] == [
        ("10.0.0.1", 7001),
        ("10.0.0.1", 7001),
        None,
        ("10.0.0.2", 7002),
    ]
    assert slots.uncovered() == 100
    slots.move(100, ("10.0.0.3", 7003))
    assert slots.owner(100) == ("10.0.0.3", 7003)
    assert sum(node.slots.bit_count() for node in slots.nodes()) == SLOTS - 99
    assert slots.moved == 1


A, B = Node("a", 0b0011, None), Node("b", 0b1100, None)


def test_a_walk_goes_over_every_slot_once() -> None:
    walk, here = Walk().turn((A, B))
    assert (here, walk.slots) == (A, 0b0011)
    assert walk.after(7, (A, B)) == Walk(0, "a", 0b0011, 7)
    assert walk.after(0, (A, B)) == Walk(0b0011)
    walk, here = Walk(0b0011).turn((A, B))
    assert (here, walk.slots) == (B, 0b1100)
    assert walk.after(0, (A, B)) is None


def test_a_slot_that_left_during_its_pass_is_walked_again() -> None:
    moved = (Node("a", 0b0001, None), Node("b", 0b1110, None))
    walk, _ = Walk(0, "a", 0b0011, 7).turn(moved)
    assert walk.slots == 0b0001
    assert walk.after(0, moved) == Walk(0b0001)
    walk, here = Walk(0b0001).turn(moved)
    assert (here.name, walk.slots) == ("b", 0b1110)


def test_a_slot_that_came_during_a_pass_is_walked_again() -> None:
    """It may have come behind the cursor."""
    came = (Node("a", 0b0111, None), Node("b", 0b1000, None))
    walk, _ = Walk(0, "a", 0b0011, 7).turn(came)
    assert walk.after(0, came) == Walk(0b0011)
    walk, here = Walk(0b0011).turn(came)
    assert (here.name, walk.slots) == ("a", 0b0100)


def test_a_promoted_replica_is_walked_from_its_beginning() -> None:
    """Its cursors mean something else."""
    promoted = (Node("a2", 0b0011, None), B)
    walk, here = Walk(0b1100, "a", 0b0011, 7).turn(promoted)
    assert (here.name, walk) == ("a2", Walk(0b1100, "a2", 0b0011, 0))


def test_a_cursor_is_short_and_comes_back() -> None:
    walk = Walk((1 << 5461) - 1, "b17f6f989c0e9077d85ccbb4d08562a669f039a7", ((1 << 5461) - 1) << 5461, 1 << 60)
    cursor = write_cursor(walk, b"semel:{abc+/=}")
    assert read_cursor(cursor) == (walk, b"semel:{abc+/=}")
    assert len(cursor) < 200
    assert write_cursor(Walk(0, "", 1, 12), b"x") == "12.x"
    assert read_cursor("12.x") == (Walk(0, "", 1, 12), b"x")
    assert read_cursor(None) == (Walk(), b"")


@pytest.mark.parametrize("cursor", ["", "12", "x.y", "node~AAAA~1.x", "node~~1.x", "node~eJx~1.x"])
def test_what_is_no_cursor(cursor: str) -> None:
    with pytest.raises(ValueError, match="is not a cursor that scan returned"):
        read_cursor(cursor)
