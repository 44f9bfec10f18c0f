"""Opening a store by its URL, with errors for the person who typed it."""

import builtins
import importlib
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

import semel.stores.open
from semel.codecs.sealed import Sealed
from semel.errors import StoreMisconfigured
from semel.store import (
    AsyncOutboxed,
    AsyncStore,
    AttemptCounting,
    Clock,
    Doubting,
    Examinable,
    Inspectable,
    Migratable,
    Outboxed,
    Removable,
    Resolvable,
    Store,
    Watchable,
)
from semel.stores.memory import AsyncMemoryStore, MemoryStore
from semel.stores.open import open_async_store, open_store
from semel.stores.redis.aio import AsyncRedisStore
from semel.stores.redis.store import RedisStore
from semel.stores.tiered.aio import AsyncTieredStore
from semel.stores.tiered.store import TieredStore
from semel.stores.url import StoreUrl


def complaint_about(url: Any) -> str:
    with pytest.raises(StoreMisconfigured) as caught:
        open_store(url)
    return str(caught.value)


class TestOpen:
    def test_both_faces(self) -> None:
        assert isinstance(open_store("memory://"), MemoryStore)
        assert isinstance(open_async_store("memory://"), AsyncMemoryStore)

    def test_every_opened_store_speaks_the_protocol(self) -> None:
        assert isinstance(open_store("memory://"), Store)
        assert isinstance(open_async_store("memory://"), AsyncStore)

    def test_the_given_clock_is_the_stores(self) -> None:
        store = open_store("memory://", clock=lambda: 7_000)
        key = semel.Key("t", "s", "n")
        claimed = store.claim(key, "1.f", owner="o", lease_ms=30, retention_ms=30, takeover=False)
        assert claimed == semel.Acquired(semel.Lease(key, "o", 1, 7_030))

    def test_schemes_have_no_case(self) -> None:
        assert isinstance(open_store("Memory://"), MemoryStore)


class TestBadUrl:
    @pytest.mark.parametrize("url", ["", "semel.db", "/var/lib/semel.db", "localhost:6379", "sqlite:semel.db", "://x"])
    def test_what_is_no_url_gets_an_example(self, url: str) -> None:
        assert f"{url!r} is not a store URL: write something like sqlite:///semel.db" in complaint_about(url)

    def test_a_path_object_gets_an_example(self) -> None:
        assert "a store URL is text like sqlite:///semel.db" in complaint_about(Path("semel.db"))

    def test_an_address_that_cannot_be_parsed(self) -> None:
        assert "'redis://[::1' is not a store URL: Invalid IPv6 URL" in complaint_about("redis://[::1")

    def test_an_unknown_scheme_that_is_nearly_right(self) -> None:
        assert complaint_about("postgre://localhost/db") == "no store for postgre://; did you mean postgres://?"
        assert complaint_about("sqllite:///x.db") == "no store for sqllite://; did you mean sqlite://?"

    def test_an_unknown_scheme_that_is_nothing_like_it_gets_the_list(self) -> None:
        complaint = complaint_about("http://localhost")
        assert complaint.startswith("no store for http://; there are ")
        assert "mariadb://, memory://, mysql://, postgres://, postgresql://, redis://, " in complaint

    def test_an_unknown_option(self) -> None:
        assert complaint_about("memory://?size=5") == "memory://: unknown option 'size'; it takes none"


class TestOptions:
    def parsed(self, options: str) -> StoreUrl:
        return StoreUrl.parse(f"redis://user:secret@host:1/0?{options}")

    def test_text(self) -> None:
        url = self.parsed("a=x%20y&b=")
        assert [url.text_option(name, "default") for name in "abc"] == ["x y", "", "default"]
        url.finish()

    @pytest.mark.parametrize("value", ["1", "true", "YES", "On"])
    def test_a_flag_that_is_set(self, value: str) -> None:
        assert self.parsed(f"a={value}").flag("a") is True

    @pytest.mark.parametrize("value", ["0", "false", "NO", "Off"])
    def test_a_flag_that_is_not(self, value: str) -> None:
        assert self.parsed(f"a={value}").flag("a", default=True) is False

    def test_the_default_of_a_flag(self) -> None:
        assert self.parsed("").flag("a", default=True) is True
        assert self.parsed("").flag("a") is False

    @pytest.mark.parametrize("value", ["", "maybe", "2"])
    def test_a_bad_flag(self, value: str) -> None:
        with pytest.raises(StoreMisconfigured) as caught:
            self.parsed(f"safe={value}").flag("safe")
        assert str(caught.value) == f"redis://user:***@host:1/0: option safe must be true or false, not {value!r}"

    def test_a_number(self) -> None:
        assert self.parsed("n=9").number("n", 1, least=1, most=9) == 9
        assert self.parsed("").number("n", 1, least=1, most=9) == 1

    @pytest.mark.parametrize("value", ["", "0", "10", "-1", "1.5", "many"])
    def test_a_bad_number(self, value: str) -> None:
        with pytest.raises(StoreMisconfigured) as caught:
            self.parsed(f"n={value}").number("n", 1, least=1, most=9)
        assert str(caught.value) == f"redis://user:***@host:1/0: option n must be a number from 1 to 9, not {value!r}"

    def test_a_misspelt_option_does_not_pass_silently(self) -> None:
        url = self.parsed("tabel=x")
        url.text_option("table")
        url.flag("other")
        with pytest.raises(StoreMisconfigured, match=r"unknown option 'tabel'; did you mean table\?"):
            url.finish()

    def test_an_option_like_none_of_them(self) -> None:
        url = self.parsed("zzz=x")
        url.text_option("table")
        url.flag("other")
        with pytest.raises(StoreMisconfigured, match="unknown option 'zzz'; it takes other, table"):
            url.finish()


class TestPassword:
    SHOWN = [
        ("postgresql://user:secret@host:5432/db", "postgresql://user:***@host:5432/db"),
        ("postgresql://host/db?password=secret", "postgresql://host/db"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
        ("redis://:secret@host/0", "redis://:***@host/0"),
        ("redis://user:se@cret@host/0", "redis://user:***@host/0"),
        ("redis://user:se/cret@host/0", "redis://user:***@host/0"),
        ("redis://user:se?cret@host/0", "redis://user:***@host/0"),
        ("redis://user:se#cret@host/0", "redis://user:***@host/0"),
        ("sqlite:////home/me@work/semel.db", "sqlite:////home/me@work/semel.db"),
        ("memory://", "memory://"),
    ]

    @pytest.mark.parametrize(("url", "shown"), SHOWN)
    def test_is_not_in_what_is_shown(self, url: str, shown: str) -> None:
        assert StoreUrl.parse(url).shown == shown

    @pytest.mark.parametrize(
        "url",
        [
            "user:secret@host/db",
            "postgresql:user:secret@host/db",
            "postgresql//user:secret@host/db",
            "redis://user:secret@[::1/0",
            "host?password=secret",
        ],
    )
    def test_is_not_in_a_complaint(self, url: str) -> None:
        assert "secret" not in complaint_about(url)


class TestTiered:
    """A URL that holds two others."""

    FRONT, BACK = "redis://user:hunter2@cache/0", "postgresql://user:hunter2@database/shop?timeout_ms=700"
    URL = f"tiered:?front={quote(FRONT, safe='')}&back={quote(BACK, safe='')}"

    def test_both_faces(self) -> None:
        assert isinstance(open_store(self.URL), TieredStore)
        assert isinstance(open_async_store(self.URL), AsyncTieredStore)
        assert isinstance(open_store(self.URL), Store)
        assert isinstance(open_async_store(self.URL), AsyncStore)

    def test_urls_without_options_need_no_encoding(self) -> None:
        assert isinstance(open_store("tiered:?front=redis://cache/0&back=postgresql://database/shop"), TieredStore)

    def test_constructors_take_open_stores(self) -> None:
        assert isinstance(TieredStore(redis_store("redis://cache"), open_store(self.BACK)), TieredStore)
        front = open_async_store("redis://cache")
        assert isinstance(front, AsyncRedisStore)
        assert isinstance(AsyncTieredStore(front, open_async_store(self.BACK)), AsyncTieredStore)
        assert isinstance(TieredStore(redis_store("redis://cache"), MemoryStore(), name="shop"), TieredStore)

    def test_it_has_the_abilities_of_the_database_and_no_others(self) -> None:
        front, back = redis_store("redis://cache"), open_store(self.BACK)
        abilities = (
            *(Watchable, Doubting, Inspectable, Resolvable, Removable, Migratable, AttemptCounting, Outboxed),
            *(AsyncOutboxed, Examinable),
        )
        store = TieredStore(front, back)
        assert [isinstance(store, each) for each in abilities] == [isinstance(back, each) for each in abilities]
        bare = TieredStore(front, bare_store(), name="bare")
        assert [each.__name__ for each in abilities if isinstance(bare, each)] == ["Examinable"]
        there = open_async_store(self.BACK)
        both = open_async_store(self.URL)
        assert [isinstance(both, each) for each in abilities] == [isinstance(there, each) for each in abilities]

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ("", "tiered:: option front must name a store, like front=redis%3A%2F%2Fhost%2F0"),
            (f"front={quote(FRONT)}", "tiered:: option back must name a store, like back=postgresql%3A%2F%2F"),
            ("front=redis+cluster://h&back=postgresql://h/d", "option front holds a blank: percent-encode the URL"),
            ("front=sqlite:///a.db&back=sqlite:///b.db", "SqliteStore cannot hold copies: the front is a Redis store"),
            ("front=redis://a&back=redis://b", "RedisStore cannot decide: the back is the store of a database"),
            ("front=redis://a&back=sqlite:///b.db&keep=5", "unknown option 'keep'; did you mean keep_ms?"),
            (
                "front=redis://a&back=sqlite:///b.db&keep_ms=5",
                "keep_ms must be a number from 1000 to 86400000, not '5'",
            ),
            ("front=redis://a?timeout=5&back=sqlite:///b.db", "redis://a: unknown option 'timeout'"),
            ("front=nothing&back=sqlite:///b.db", "'nothing' is not a store URL"),
        ],
    )
    def test_a_mistake_is_named(self, options: str, words: str) -> None:
        assert words in complaint_about(f"tiered:?{options}")

    @pytest.mark.parametrize("place", ["//host", "//host/0", "/file"])
    def test_it_has_no_place_of_its_own(self, place: str) -> None:
        complaint = complaint_about(f"tiered:{place}?front=redis://a&back=sqlite:///b.db")
        assert "write tiered:?front=…&back=…" in complaint

    def test_a_back_of_another_face_is_refused(self) -> None:
        with pytest.raises(StoreMisconfigured, match="one of the two stores is sync and the other async"):
            TieredStore(redis_store("redis://cache"), open_async_store(self.BACK))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    def test_a_sealed_back_is_refused(self) -> None:
        sealed = Sealed(open_store("sqlite:///a.db"), keys={"one": bytes(32)})
        with pytest.raises(StoreMisconfigured, match="the front would hold them in the clear"):
            TieredStore(redis_store("redis://cache"), sealed, name="shop")

    def test_a_back_without_a_url_needs_a_name(self) -> None:
        with pytest.raises(
            StoreMisconfigured, match="MemoryStore was not opened by a URL: give the tiered store name="
        ):
            TieredStore(redis_store("redis://cache"), MemoryStore())

    def test_passwords_are_not_in_complaints(self) -> None:
        for url in (f"{self.URL}&keep=5", f"{self.URL}&keep_ms=hunter2@", f"tiered:?front={self.FRONT}&back=x"):
            assert "hunter2" not in complaint_about(url)


def bare_store() -> Store:
    """The seven calls and nothing else."""
    calls = ("claim", "renew", "complete", "release", "get", "purge", "close")
    within = MemoryStore()
    bare: Any = SimpleNamespace(**{name: getattr(within, name) for name in calls})
    assert isinstance(bare, Store)
    return bare


def redis_store(url: str) -> RedisStore:
    store = open_store(url)
    assert isinstance(store, RedisStore)
    return store


class TestMissingExtra:
    def hide(self, monkeypatch: pytest.MonkeyPatch, error: ImportError) -> None:
        def import_module(name: str) -> ModuleType:
            raise error

        monkeypatch.setattr(semel.stores.open, "import_module", import_module)

    @pytest.mark.parametrize(
        ("scheme", "extra"),
        [
            ("postgresql", "postgres"),
            ("postgres", "postgres"),
            ("redis", "redis"),
            ("rediss", "redis"),
            ("valkey", "redis"),
            ("redis+cluster", "redis"),
            ("rediss+cluster", "redis"),
            ("valkey+cluster", "redis"),
            ("valkeys+cluster", "redis"),
            ("redis+sentinel", "redis"),
            ("rediss+sentinel", "redis"),
            ("valkey+sentinel", "redis"),
            ("valkeys+sentinel", "redis"),
            ("mariadb", "mariadb"),
            ("mysql", "mariadb"),
            ("dynamodb", "dynamodb"),
        ],
    )
    def test_is_named_with_the_command_that_installs_it(
        self, monkeypatch: pytest.MonkeyPatch, scheme: str, extra: str
    ) -> None:
        self.hide(monkeypatch, ModuleNotFoundError("No module named 'driver'", name="driver"))
        expected = f"{scheme}:// needs driver, which is not installed: pip install 'semel[{extra}]'"
        assert complaint_about(f"{scheme}://localhost") == expected

    def test_a_driver_without_its_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hide(monkeypatch, ImportError("no pq wrapper available"))
        assert "needs its driver (no pq wrapper available): pip install 'semel[postgres]'" in complaint_about(
            "postgres://h"
        )

    def test_a_module_of_our_own_that_is_missing_is_a_bug_and_looks_like_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.hide(monkeypatch, ModuleNotFoundError("No module named 'semel.gone'", name="semel.gone"))
        with pytest.raises(ModuleNotFoundError):
            open_store("redis://localhost")

    def test_the_real_thing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [
            name for name in sys.modules if name.partition(".")[0] == "redis" or name.startswith("semel.stores.redis")
        ]:
            monkeypatch.delitem(sys.modules, name)
        real = builtins.__import__

        def without_redis(name: str, *args: Any, **kwargs: Any) -> Any:
            if name.partition(".")[0] == "redis":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", without_redis)
        importlib.invalidate_caches()
        assert "which is not installed: pip install 'semel[redis]'" in complaint_about("redis://localhost")


class ThirdParty:
    """What an entry point loads to."""

    @staticmethod
    def open_store(url: StoreUrl, clock: Clock | None) -> Store:
        url.number("size", 1, least=1, most=9)
        return MemoryStore(clock=clock or (lambda: 0))

    @staticmethod
    def open_async_store(url: StoreUrl, clock: Clock | None) -> AsyncStore:
        return AsyncMemoryStore()


class TestThirdParty:
    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = EntryPoints([EntryPoint("acme", f"{__name__}:ThirdParty", "semel.stores")])
        monkeypatch.setattr(semel.stores.open, "entry_points", lambda **selection: found.select(**selection))

    def test_is_found_by_its_scheme(self) -> None:
        assert isinstance(open_store("acme://host?size=5"), MemoryStore)
        assert isinstance(open_async_store("acme://host"), AsyncMemoryStore)

    def test_is_held_to_its_options(self) -> None:
        assert complaint_about("acme://host?sizes=5") == "acme://host: unknown option 'sizes'; did you mean size?"

    def test_is_among_the_suggestions(self) -> None:
        assert complaint_about("acmee://host") == "no store for acmee://; did you mean acme://?"
