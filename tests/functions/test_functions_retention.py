"""An outcome that nobody knows is not forgotten as soon as one that is stored."""

from collections.abc import Callable, Iterator

import pytest

import semel

DAY_MS = 86_400_000
START_MS = 1_800_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[tuple[semel.Store, Clock]]:
    urls: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/semel.db",
        "redis": lambda: str(request.getfixturevalue("redis_url")),
        "postgres": lambda: str(request.getfixturevalue("postgres_url")),
    }
    clock = Clock()
    store = semel.open_store(urls[request.param](), clock=clock)
    if request.param == "postgres":
        store.migrate()  # type: ignore[attr-defined]
    yield store, clock
    store.close()


@pytest.mark.parametrize("policy", [semel.Policy(), semel.Policy(unknown_retention=2 * DAY_MS / 1000)])
def test_an_unknown_outcome_blocks_when_results_are_forgotten(
    opened: tuple[semel.Store, Clock], policy: semel.Policy, request: pytest.FixtureRequest
) -> None:
    store, clock = opened
    ledger: list[str] = []

    def charge() -> str:
        ledger.append("charge")
        return "charged"

    def lose() -> str:
        ledger.append("lose")
        raise semel.OutcomeUnknown("the bank did not answer")

    def run(name: str, work: Callable[[], str]) -> str:
        return semel.run(f"{request.node.name}-{name}", work, scope="charge", store=store, policy=policy)

    assert run("known", charge) == "charged"
    with pytest.raises(semel.OutcomeUnknown):
        run("lost", lose)
    clock.now_ms += DAY_MS
    assert run("known", charge) == "charged"
    assert ledger == ["charge", "lose", "charge"], "a stored result is kept for the retention"
    clock.now_ms = START_MS + policy.unknown_retention_ms - 1
    store.purge(limit=100)
    with pytest.raises(semel.OutcomeUnknown):
        run("lost", lose)
    assert ledger.count("lose") == 1
    clock.now_ms += 1
    assert run("lost", charge) == "charged", "not for ever"
