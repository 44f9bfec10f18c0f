"""`open_store(url)`: finds the store that a URL names, without importing any other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from semel.errors import StoreMisconfigured
from semel.store import AsyncStore, Clock, Store
from semel.stores.url import StoreUrl

T = TypeVar("T")
_URLS: WeakKeyDictionary[object, str] = WeakKeyDictionary()
GROUP = "semel.stores"
BUILT_IN: dict[str, tuple[str, str]] = {  # scheme: (module, extra)
    "memory": ("semel.stores.memory", ""),
    "sqlite": ("semel.stores.sqlite.open", ""),
    "postgresql": ("semel.stores.postgres.open", "postgres"),
    "postgres": ("semel.stores.postgres.open", "postgres"),
    "redis": ("semel.stores.redis.open", "redis"),
    "rediss": ("semel.stores.redis.open", "redis"),
    "valkey": ("semel.stores.redis.open", "redis"),
    "valkeys": ("semel.stores.redis.open", "redis"),
    "redis+cluster": ("semel.stores.redis.open", "redis"),
    "rediss+cluster": ("semel.stores.redis.open", "redis"),
    "valkey+cluster": ("semel.stores.redis.open", "redis"),
    "valkeys+cluster": ("semel.stores.redis.open", "redis"),
    "redis+sentinel": ("semel.stores.redis.open", "redis"),
    "rediss+sentinel": ("semel.stores.redis.open", "redis"),
    "valkey+sentinel": ("semel.stores.redis.open", "redis"),
    "valkeys+sentinel": ("semel.stores.redis.open", "redis"),
    "mariadb": ("semel.stores.mariadb.open", "mariadb"),
    "mysql": ("semel.stores.mariadb.open", "mariadb"),
    "tiered": ("semel.stores.tiered.open", ""),
    "dynamodb": ("semel.stores.dynamodb.open", "dynamodb"),
    "django": ("semel.stores.django.open", "django"),
}


class Opener(Protocol):
    """What a store's module offers; an entry point of the group `semel.stores`, named by scheme, loads to it."""

    def open_store(self, url: StoreUrl, clock: Clock | None) -> Store: ...
    def open_async_store(self, url: StoreUrl, clock: Clock | None) -> AsyncStore: ...


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """Open the store that `url` names. It connects on first use, in each process that uses it.

    ```python
    import semel

    store = semel.open_store("sqlite:///payments.db")
    assert store.get(semel.Key(tenant="shop", scope="POST /payments", name="order-1")) is None
    store.close()
    ```

    The store may be shared by threads. A misspelt option of the URL is an error. A server's driver is an extra:
    `pip install 'semel[postgres]'`, and the error says so if it is missing. `clock` gives the time instead of the
    store's own clock, for tests.
    """
    return _open(url, lambda opener, parsed: opener.open_store(parsed, clock))


def open_async_store(url: str, *, clock: Clock | None = None) -> AsyncStore:
    """Open the same store for `async` code: it may be shared by tasks, and its calls are awaited.

    It connects on first use, in each process and event loop that uses it. `open_store` says more.
    """
    return _open(url, lambda opener, parsed: opener.open_async_store(parsed, clock))


def _open(url: str, open_with: Callable[[Opener, StoreUrl], T]) -> T:
    parsed = StoreUrl.parse(url)
    store = open_with(opener_for(parsed), parsed)
    parsed.finish()
    with suppress(TypeError):  # a store that takes no weak references is not remembered
        _URLS[store] = url
    return store


def url_of(store: object) -> str | None:
    """The URL that `store` was opened by, with its password; None if it was made in another way."""
    try:
        return _URLS.get(store)
    except TypeError:
        return None


def opener_for(url: StoreUrl) -> Opener:
    scheme = url.parts.scheme
    if scheme in BUILT_IN:
        module, extra = BUILT_IN[scheme]
        try:
            return cast(Opener, import_module(module))
        except ImportError as error:  # a driver without its library is an ImportError, too
            if not extra or (error.name or "").partition(".")[0] == "semel":
                raise
            missing = (
                f"{error.name}, which is not installed"
                if isinstance(error, ModuleNotFoundError)
                else f"its driver ({error})"
            )
            raise StoreMisconfigured(f"{scheme}:// needs {missing}: pip install 'semel[{extra}]'") from error
    for found in entry_points(group=GROUP, name=scheme):
        return cast(Opener, found.load())
    known = sorted({*BUILT_IN, *(found.name for found in entry_points(group=GROUP))})
    close = get_close_matches(scheme, known, 1)
    hint = f"did you mean {close[0]}://?" if close else f"there are {', '.join(f'{name}://' for name in known)}"
    raise StoreMisconfigured(f"no store for {scheme}://; {hint}")
