"""Commands on a store of another package that has only what every store must have."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

import semel.stores.open
from cli.calls import SCOPE, claimed, run, run_json
from semel import Key
from semel.store import AsyncStore, Clock, Store
from semel.stores.memory import MemoryStore
from semel.stores.url import StoreUrl

KEPT = Key("shop", SCOPE, "order-1")


class PlainStore:
    """Claims, completes, reads and purges, and nothing else."""

    def __init__(self, within: MemoryStore) -> None:
        self.claim, self.renew, self.complete = within.claim, within.renew, within.complete
        self.release, self.get, self.purge = within.release, within.get, within.purge

    def close(self) -> None:
        """The records stay: another command looks at them."""


class ThirdParty:
    kept = PlainStore(MemoryStore())

    @classmethod
    def open_store(cls, url: StoreUrl, clock: Clock | None) -> Store:
        return cls.kept

    @staticmethod
    def open_async_store(url: StoreUrl, clock: Clock | None) -> AsyncStore:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = EntryPoints([EntryPoint("plain", f"{__name__}:ThirdParty", "semel.stores")])
    monkeypatch.setattr(semel.stores.open, "entry_points", lambda **selection: found.select(**selection))
    monkeypatch.setattr(ThirdParty, "kept", PlainStore(MemoryStore()))


LISTING = "plain://host cannot list its records: its PlainStore has not the methods of semel.store.Inspectable"
NAMED = ("order-1", "--tenant", "shop", "--scope", SCOPE)
LACKING = [
    (("keys", "list"), LISTING),
    (("stuck",), LISTING),
    (("stats",), LISTING),
    (("keys", "resolve", *NAMED, "--nothing-done", "--yes"), "cannot resolve unknown outcomes: its PlainStore"),
    (("keys", "release", *NAMED), "cannot resolve unknown outcomes: its PlainStore"),
    (("keys", "delete", *NAMED, "--yes"), "cannot remove records: its PlainStore"),
    (("keys", "expire", *NAMED, "--yes"), "cannot remove records: its PlainStore"),
    (("outbox", "list"), "plain://host has no outbox"),
]


@pytest.mark.parametrize(("words", "told"), LACKING, ids=[" ".join(words[:2]) for words, _ in LACKING])
def test_what_the_store_has_not_is_named(words: tuple[str, ...], told: str) -> None:
    claimed(ThirdParty.kept, KEPT)
    done = run(*words, store="plain://host")
    assert done.exit_code in (1, 2), done.output
    assert told in " ".join(done.output.split())
    assert ThirdParty.kept.get(KEPT) is not None


def test_what_it_has_works() -> None:
    claimed(ThirdParty.kept, KEPT)
    assert run("keys", "show", *NAMED, store="plain://host").exit_code == 0
    assert run("purge", store="plain://host").exit_code == 0
    assert "nothing to migrate" in run("migrate", store="plain://host").output
    found = {each["title"]: each for each in run_json("doctor", store="plain://host")["findings"]}
    assert "this store does not tell more about itself" in found["settings"]["detail"]


def test_a_store_of_django_s_outside_of_django() -> None:
    """Settings cannot be taken back from this process, in which other tests have configured them."""
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    words = [sys.executable, "-m", "semel", "keys", "list", "--store", "django://default"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3, done.stderr
    assert "django://default needs Django's settings: set DJANGO_SETTINGS_MODULE" in done.stderr
    assert "Traceback" not in done.stderr
