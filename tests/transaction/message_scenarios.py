"""Messages in transactions, as scenarios for any mode: each tells in plain data what became of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from semel.transaction import arun, run, within
from transaction.modes import Mode
from transaction.scenarios import PATIENCE_S, Told, begun, finished, given, told, until_somebody_waits

Calls = Sequence[Mapping[str, Any]]


def publish(mode: Mode, url: str, level: str, key: str, *, calls: Calls, end: str = "") -> Any:
    """One transaction with an effect and these messages. The error of a call is told, and the transaction goes on."""

    async def play() -> list[str]:
        made: list[str] = []
        async with begun(mode, url, level) as connection:
            for call in calls:
                try:
                    made.append(await given(within(connection).publish(**call)))
                except Exception as error:
                    made.append(f"{type(error).__name__}: {error}")
            await given(mode.write(connection, key))
            if end:
                raise ArithmeticError("on purpose")
        return made

    return told(lambda: finished(mode, play()))


def operate(mode: Mode, url: str, level: str, key: str, *, calls: Calls, fail: bool = False) -> Any:
    """An operation that publishes: the ids. `fail` lets its first run be given up for the sake of another one."""
    runs: list[int] = []

    async def work(connection: Any) -> list[str]:
        runs.append(1)
        made = [await given(within(connection).publish(**call)) for call in calls]
        await given(mode.write(connection, key))
        if fail and len(runs) == 1:
            raise _given_up()
        return made

    return told(lambda: _run(mode, url, level, key, work))


def add_twice(mode: Mode, url: str, level: str, key: str, *, payloads: Sequence[str], end: str = "") -> list[Any]:
    """Two transactions add the same id at once. The first ends (rolls back, if `end`) when the second waits for it."""
    added, followed = threading.Event(), threading.Event()

    def call(number: int) -> Told:
        async def play() -> str:
            if number == 2 and mode.database == "sqlite":  # there is one writer at a time
                followed.set()
                assert added.wait(PATIENCE_S)
            async with begun(mode, url, level) as connection:
                if number == 2 and mode.database != "sqlite":  # a snapshot is older than the end of the first
                    await given(mode.execute(connection, "SELECT count(*) FROM effects"))
                    followed.set()
                    assert added.wait(PATIENCE_S)
                await given(within(connection).publish(key, payloads[number - 1], id=key))
                if number == 1:
                    added.set()
                    until_somebody_waits(url)
                    if end:
                        raise ArithmeticError("on purpose")
                await given(mode.write(connection, key))
            return "committed"

        return told(lambda: finished(mode, play()))

    with ThreadPoolExecutor(2) as pool:
        second: Future[Told] = pool.submit(call, 2)
        assert followed.wait(PATIENCE_S)
        first: Future[Told] = pool.submit(call, 1)
        first.add_done_callback(lambda _: added.set())
        return [first.result(PATIENCE_S), second.result(PATIENCE_S)]


def receive(
    mode: Mode, url: str, level: str, key: str, *, handler: str, look: bool = True, end: str = "", **options: Any
) -> Any:
    """One delivery of a message: `ran`, or `duplicate`."""

    async def play() -> str:
        async with begun(mode, url, level) as connection, _received(mode, connection, key, handler, options) as message:
            if look and message.duplicate:
                return "duplicate"
            await given(mode.write(connection, f"{handler}/{key}"))
            if end:
                raise ArithmeticError("on purpose")
        return "ran"

    return told(lambda: finished(mode, play()))


def receive_twice(mode: Mode, url: str, level: str, key: str, *, end: str = "") -> list[Any]:
    """Two deliveries at once. The first ends (raises, if `end`) when the second waits for it."""
    entered, followed = threading.Event(), threading.Event()

    def call(number: int) -> Told:
        async def play() -> str:
            async with begun(mode, url, level) as connection, _received(mode, connection, key, "h", {}) as message:
                if message.duplicate:
                    return f"{number}: duplicate"
                await given(mode.write(connection, key))
                await given(within(connection).publish(key, {"number": 1}))
                if number == 1:
                    if mode.name.endswith("session"):
                        await given(connection.flush())
                    entered.set()
                    assert followed.wait(PATIENCE_S)
                    until_somebody_waits(url)
                    if end:
                        raise ArithmeticError("on purpose")
            return f"{number}: ran"

        return told(lambda: finished(mode, play()))

    with ThreadPoolExecutor(2) as pool:
        first: Future[Told] = pool.submit(call, 1)
        first.add_done_callback(lambda _: entered.set())
        assert entered.wait(PATIENCE_S)
        assert not first.done(), first.result()
        second = pool.submit(call, 2)
        followed.set()
        return [first.result(PATIENCE_S), second.result(PATIENCE_S)]


def _received(mode: Mode, connection: Any, key: str, handler: str, options: Mapping[str, Any]) -> Any:
    block = within(connection).receive(key, handler=handler, **options)
    return block if mode.is_async else _Awaitable(block)


class _Awaitable:
    """A block of a sync connection, to be entered by the coroutine of a scenario."""

    def __init__(self, block: Any) -> None:
        self._block = block

    async def __aenter__(self) -> Any:
        return self._block.__enter__()

    async def __aexit__(self, *error: Any) -> None:
        self._block.__exit__(*error)


def _run(mode: Mode, url: str, level: str, key: str, work: Callable[[Any], Coroutine[Any, Any, list[str]]]) -> Any:
    begin = mode.opener(url, level)
    if mode.is_async:
        return asyncio.run(arun(begin, key, work, scope="operation"))
    return run(begin, key, lambda connection: finished(mode, work(connection)), scope="operation")


def _given_up() -> Exception:
    error = RuntimeError("on purpose")
    error.sqlstate = "40001"  # type: ignore[attr-defined]
    return error


MESSAGE_SCENARIOS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (publish, operate, add_twice, receive, receive_twice)
}
