"""What is asked of which server, and what becomes of a refusal: the plans, without servers."""

from collections.abc import Sequence
from typing import Any

import pytest
from redis import exceptions

from semel import StoreMisconfigured, StoreUnavailable
from semel.core.effects import Effect, Plan
from semel.errors import StoreTimeout
from semel.stores.redis.cluster import ASKING, Cluster
from semel.stores.redis.commands import (
    Address,
    Command,
    Lua,
    ScriptMissing,
    Together,
    Unreached,
    has_changed,
    has_found,
)
from semel.stores.redis.route import Now, ServerExchange, ServerExchanges, Sleep
from semel.stores.redis.sentinel import AGAIN_S, Sentinel
from semel.stores.redis.settings import RedisSettings, Topology
from semel.stores.redis.slots import SLOTS, slot_of
from semel.stores.redis.spread import group, one_slot, together

A, B, C, SEED = ("a", 1), ("b", 2), ("c", 3), ("seed", 9)
HALF = SLOTS // 2
CLUSTER = RedisSettings("redis://", "redis+cluster://seed", Topology.CLUSTER, (SEED,))
SENTINEL = RedisSettings("redis:///0", "redis+sentinel://x/main", Topology.SENTINEL, (A, B), "main")
MAP = [[0, HALF - 1, [b"a", 1, b"aa"]], [HALF, SLOTS - 1, [b"b", 2, b"bb"]]]
AFTER_FAILOVER = [[0, HALF - 1, [b"c", 3, b"cc"]], [HALF, SLOTS - 1, [b"b", 2, b"bb"]]]


def name_in(low: bool, number: int = 0) -> bytes:
    """A name in the slots of A or of B."""
    return [name for name in (b"{%d}" % n for n in range(200)) if (slot_of(name) < HALF) is low][number]


def get(name: bytes) -> Command:
    return Command(("GET", name), name)


LOW, HIGH = get(name_in(True)), get(name_in(False))


class Play:
    """The servers, as told beforehand: the answers of each, in turn, and what they were asked."""

    def __init__(self, answers: dict[Address, list[Any]], rests: int = 100, *, map: Any = None) -> None:
        self.answers = answers
        self._map = map
        """What every node says when it is asked for the map."""
        self.asked: list[tuple[Address, tuple[str, ...]]] = []
        self.rests: list[float] = []
        self.now_s = 0.0
        self._rests_most = rests

    def run(self, plan: Plan[Any]) -> Any:
        given: Any = None
        while True:
            try:
                effect: Effect[Any] = plan.send(given)
            except StopIteration as stop:
                return stop.value
            if isinstance(effect, ServerExchanges):
                given = [self._answer(each) for each in effect.exchanges]
            elif isinstance(effect, Now):
                given = self.now_s
            else:
                assert isinstance(effect, Sleep)
                self.rests.append(effect.pause_s)
                given = len(self.rests) <= self._rests_most

    def _answer(self, exchange: ServerExchange) -> Any:
        words = tuple(str(command.words[0]) for command in exchange.commands)
        self.asked.append((exchange.address, words))
        if self._map is not None and words == ("CLUSTER",):
            return [self._map]
        assert self.answers.get(exchange.address), f"{exchange.address} is asked {words} once too often"
        answer = self.answers[exchange.address].pop(0)
        if isinstance(answer, StoreUnavailable | StoreMisconfigured):
            return answer
        assert len(answer) == len(words), f"{exchange.address} is asked {words}"
        return list(answer)


def learnt(answers: dict[Address, list[Any]], rests: int = 100, *, map: Any = None) -> tuple[Cluster, Play]:
    """A cluster whose map is known, and the play that goes on."""
    cluster, begin = Cluster(CLUSTER), Play({SEED: [[MAP]], A: [["x"]], B: [["x"]]})
    assert begin.run(cluster.send([LOW, HIGH])) == ["x", "x"]
    return cluster, Play(answers, rests, map=map)


def test_each_command_goes_to_the_node_that_has_its_slot() -> None:
    cluster, play = learnt({A: [["one", "three"]], B: [["two"]]})
    assert play.run(cluster.send([LOW, HIGH, LOW])) == ["one", "two", "three"]
    assert play.asked == [(A, ("GET", "GET")), (B, ("GET",))]


def test_records_of_one_node_share_a_lane() -> None:
    cluster, _ = learnt({})
    assert cluster.lane(name_in(True)) == cluster.lane(name_in(True, 1)) == A
    assert cluster.lane(name_in(False)) == B


def test_a_slot_that_moved_is_followed_at_once_and_remembered() -> None:
    moved = exceptions.MovedError(f"{slot_of(LOW.key)} c:3")
    cluster, play = learnt({A: [[moved]], C: [["here"], ["again"]]})
    assert play.run(cluster.send([LOW])) == ["here"]
    assert play.run(cluster.send([LOW])) == ["again"]
    assert [address for address, _ in play.asked] == [A, C, C]
    assert not play.rests


def test_a_node_without_a_name_is_where_it_was_asked() -> None:
    moved = exceptions.MovedError(f"{slot_of(LOW.key)} :7")
    cluster, play = learnt({A: [[moved]], ("a", 7): [["here"]]})
    assert play.run(cluster.send([LOW])) == ["here"]


def test_an_ask_is_followed_once_and_not_remembered() -> None:
    ask = exceptions.AskError(f"{slot_of(LOW.key)} c:3")
    cluster, play = learnt({A: [[ask], ["back"]], C: [["OK", "here"]]})
    assert play.run(cluster.send([LOW])) == ["here"]
    assert play.run(cluster.send([LOW])) == ["back"]
    assert play.asked == [(A, ("GET",)), (C, (ASKING.words[0], "GET")), (A, ("GET",))]


def test_only_what_was_refused_is_sent_again() -> None:
    moved = exceptions.MovedError(f"{slot_of(LOW.key)} c:3")
    cluster, play = learnt({A: [["done", moved]], C: [["here"]]})
    assert play.run(cluster.send([get(name_in(True, 1)), LOW])) == ["done", "here"]
    assert play.asked == [(A, ("GET", "GET")), (C, ("GET",))]


@pytest.mark.parametrize(
    "refusal",
    [
        exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
        exceptions.ClusterDownError("The cluster is down"),
        exceptions.MasterDownError("Link with MASTER is down"),
        exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
        exceptions.ReadOnlyError("You can't write against a read only replica."),
    ],
)
def test_what_did_nothing_is_asked_again_within_the_time_of_the_call(refusal: Exception) -> None:
    cluster, play = learnt({A: [[refusal], ["done"]]}, map=MAP)
    assert play.run(cluster.send([LOW])) == ["done"]
    assert len(play.rests) == 1
    cluster, play = learnt({A: [[refusal]]}, rests=0, map=MAP)
    [reply] = play.run(cluster.send([LOW]))
    assert isinstance(reply, StoreTimeout)
    assert "redis+cluster://seed" in str(reply)


def test_a_node_that_cannot_be_reached_did_nothing_so_its_successor_is_asked() -> None:
    cluster, play = learnt({A: [Unreached("refused")], C: [["done"]]}, map=AFTER_FAILOVER)
    assert play.run(cluster.send([LOW])) == ["done"]


@pytest.mark.parametrize("failure", [StoreUnavailable("lost"), StoreTimeout("silent")])
def test_what_may_have_happened_is_never_sent_again(failure: StoreUnavailable) -> None:
    cluster, play = learnt({A: [failure], B: [["fine"]]})
    low, high = play.run(cluster.send([LOW, HIGH]))
    assert type(low) is type(failure)
    assert high == "fine"
    assert [address for address, _ in play.asked] == [A, B]


def test_after_a_failure_the_map_is_asked_for_first() -> None:
    cluster, play = learnt({A: [StoreUnavailable("lost")], C: [["x"]]}, map=AFTER_FAILOVER)
    play.run(cluster.send([LOW]))
    assert play.run(cluster.send([LOW])) == ["x"]
    assert play.asked[-1] == (C, ("GET",))


def test_each_caller_of_a_broken_exchange_has_an_error_of_its_own() -> None:
    cluster, play = learnt({A: [StoreUnavailable("lost")]})
    one, two = play.run(cluster.send([LOW, LOW]))
    assert one is not two


def test_nodes_that_do_not_agree_are_not_asked_without_rest() -> None:
    here, there = (exceptions.MovedError(f"{slot_of(LOW.key)} {host}") for host in ("a:1", "c:3"))
    cluster, play = learnt({A: [[there]] * 50, C: [[here]] * 50}, rests=3)
    [reply] = play.run(cluster.send([LOW]))
    assert isinstance(reply, StoreTimeout)
    assert len(play.asked) < 20


def test_many_moved_slots_are_a_new_map() -> None:
    names = [get(name_in(True, number)) for number in range(20)]
    moved = [exceptions.MovedError(f"{slot_of(each.key)} c:3") for each in names]
    cluster, play = learnt({A: [moved], C: [["x"] * 20, ["y"]]}, map=AFTER_FAILOVER)
    assert play.run(cluster.send(names)) == ["x"] * 20
    assert play.run(cluster.send([get(name_in(True, 30))])) == ["y"]
    assert sum(words == ("CLUSTER",) for _, words in play.asked) == 1


def test_a_slot_without_a_node_is_waited_for_and_then_refused() -> None:
    cluster = Cluster(CLUSTER)
    play = Play({}, rests=2, map=MAP[1:])
    [reply] = play.run(cluster.send([LOW]))
    assert isinstance(reply, StoreTimeout)
    assert f"no node serves slot {slot_of(LOW.key)}" in str(reply)


def test_operators_are_told_if_a_part_is_missing() -> None:
    cluster, play = Cluster(CLUSTER), Play({}, rests=1, map=MAP[1:])
    with pytest.raises(StoreUnavailable, match=f"{HALF} slots have no node"):
        play.run(cluster.nodes())


def test_a_server_that_is_no_cluster_is_named() -> None:
    disabled = exceptions.ResponseError("This instance has cluster support disabled")
    [reply] = Play({SEED: [[disabled]] * 3}).run(Cluster(CLUSTER).send([LOW]))
    assert isinstance(reply, StoreMisconfigured)
    assert "is no cluster: write redis:// without +cluster" in str(reply)


def test_a_listener_goes_to_another_node_each_time() -> None:
    cluster, play = learnt({}, map=MAP)
    doors = {play.run(cluster.door()) for _ in range(2)}
    assert doors == {A, B}


def scripted(*parts: Any) -> list[Any]:
    """What a script answers to a batch of calls."""
    return [1_700_000_000_000, *parts]


MASTER = [[b"m", 7]]
EVAL = Command(("EVALSHA", "sha", 1, b"x"), b"x")


def sentinels(answers: dict[Address, list[Any]], rests: int = 100) -> tuple[Sentinel, Play]:
    return Sentinel(SENTINEL), Play(answers, rests)


def test_the_sentinels_name_the_master() -> None:
    route, play = sentinels({A: [MASTER], ("m", 7): [["one"], ["two"]]})
    assert play.run(route.send([EVAL])) == ["one"]
    assert play.run(route.send([EVAL])) == ["two"]
    assert play.asked == [(A, ("SENTINEL",)), (("m", 7), ("EVALSHA",)), (("m", 7), ("EVALSHA",))]


def test_the_sentinels_are_asked_again_about_a_master_that_seems_well() -> None:
    route, play = sentinels({A: [MASTER, [[b"n", 8]]], ("m", 7): [["one"], ["two"]], ("n", 8): [["three"]]})
    for play.now_s, expected in ((0.0, "one"), (AGAIN_S * 0.9, "two"), (AGAIN_S, "three")):
        assert play.run(route.send([EVAL])) == [expected]


def test_a_master_that_seems_well_is_used_while_no_sentinel_answers() -> None:
    away = Unreached("refused")
    route, play = sentinels({A: [MASTER, away], B: [away], ("m", 7): [["one"], ["two"]]})
    assert play.run(route.send([EVAL])) == ["one"]
    play.now_s = 9.0
    assert play.run(route.send([EVAL])) == ["two"]


def test_a_sentinel_that_is_away_is_passed_over_and_asked_last() -> None:
    lost = StoreUnavailable("lost")
    route, play = sentinels({A: [Unreached("refused")], B: [MASTER, MASTER], ("m", 7): [lost, ["done"]]})
    assert isinstance(play.run(route.send([EVAL]))[0], StoreUnavailable)
    assert play.run(route.send([EVAL])) == ["done"]
    assert [address for address, _ in play.asked] == [A, B, ("m", 7), B, ("m", 7)]


@pytest.mark.parametrize(
    "refusal",
    [
        Unreached("its role is slave"),
        [exceptions.ReadOnlyError("You can't write against a read only replica.")],
        [scripted([1, 2], exceptions.ReadOnlyError("You can't write against a read only replica."))],
        [exceptions.BusyLoadingError("loading")],
    ],
)
def test_a_master_that_is_none_any_more_did_nothing(refusal: Any) -> None:
    route, play = sentinels({A: [MASTER, [[b"n", 8]]], ("m", 7): [refusal], ("n", 8): [["done"]]})
    assert play.run(route.send([EVAL])) == ["done"]


def test_a_lost_connection_to_the_master_may_have_done_it() -> None:
    route, play = sentinels({A: [MASTER, [[b"n", 8]]], ("m", 7): [StoreTimeout("silent")], ("n", 8): [["done"]]})
    [reply] = play.run(route.send([EVAL]))
    assert isinstance(reply, StoreTimeout)
    assert play.asked[-1][0] == ("m", 7)
    assert play.run(route.send([EVAL])) == ["done"]


def test_a_service_that_no_sentinel_knows_is_a_mistake_in_the_url() -> None:
    route, play = sentinels({A: [[None]], B: [[None]]})
    [reply] = play.run(route.send([EVAL]))
    assert isinstance(reply, StoreMisconfigured)
    assert "knows the service 'main'" in str(reply)


def test_without_sentinels_the_call_ends_in_time() -> None:
    route, play = sentinels({A: [Unreached("refused")] * 9, B: [Unreached("refused")] * 9}, rests=2)
    [reply] = play.run(route.send([EVAL]))
    assert isinstance(reply, StoreTimeout)


@pytest.mark.parametrize(
    ("reply", "is_changed"),
    [
        (scripted([1, 1_700_000_030_000]), True),
        (scripted(b"what is there already"), False),
        (scripted(b"there", [1, 2]), True),
        (scripted(0, None), False),
        (scripted(0, 1), True),
        (scripted(exceptions.ResponseError("OOM")), False),
        (3, True),
        (0, False),
        (exceptions.ResponseError("NOSCRIPT"), False),
    ],
)
def test_what_replicas_must_have(reply: Any, is_changed: bool) -> None:
    assert has_changed(reply) is is_changed


def test_what_was_read_must_be_on_the_replicas_too() -> None:
    """It may be the result of a completion that was refused because they did not have it."""
    assert has_found(scripted(b"a record", None))
    assert not has_found(scripted(None))
    assert not has_found(exceptions.ResponseError("OOM"))


def test_each_record_of_a_cluster_has_a_script_of_its_own() -> None:
    """While a slot moves no node takes a script with two of its records."""
    assert group([b"{x}a", b"{x}b", b"{x}a"], slot_of) == [[0, 2], [1]]
    assert group([b"{x}a", b"b"], one_slot) == [[0, 1]]


def test_plans_of_one_step_are_sent_together() -> None:
    lua = Lua("read")
    plan = together([lua.run([b"a"], ()), lua.run([b"b"], ()), lua.run([b"c"], ())])

    def kinds(effect: Any) -> Sequence[Any]:
        assert isinstance(effect, Together)
        return [command.words[0] for command in effect.commands]

    assert kinds(plan.send(None)) == ["EVALSHA"] * 3
    failure = StoreUnavailable("lost")
    assert kinds(plan.send(["one", ScriptMissing("x"), failure])) == ["EVAL"]
    with pytest.raises(StopIteration) as stop:
        plan.send(["two"])
    assert stop.value.value == ["one", "two", failure]
