"""The relay: takes messages from the outbox of a store, publishes them, and settles what became of them.

    relay = Relay("postgresql://localhost/shop", "amqp://localhost/")
    await relay.run()                      # until relay.stop()

Any number of relays may work on one outbox. Each message is published at least once, always with the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Unpack

from semel.core.effects import Effect, Pause
from semel.core.events import NO_KEY, Event, EventKind
from semel.core.outbox import PurgeMessages, SettleMessages, TakeMessages
from semel.core.records import Key, Member
from semel.core.relay import (
    AwaitMessages,
    Fate,
    IsStopping,
    MessageFate,
    NewOwner,
    PublishLanes,
    ReadClock,
    ReportPause,
    ReportRound,
    Rest,
    RoundResult,
    run_purge,
    run_relay,
    run_round,
)
from semel.errors import BrokerUnavailable, Misuse, StoreError, StoreMisconfigured, StoreUnavailable
from semel.outbox.lanes import LaneRun
from semel.outbox.publisher import Publisher, open_publisher
from semel.outbox.settings import RelayOptions, check_relay_options
from semel.runtime.arguments import check_options
from semel.runtime.clock import boot_ms
from semel.runtime.drive import adrive
from semel.runtime.listener import logged
from semel.store import AsyncOutboxed
from semel.stores.open import open_async_store

logger = logging.getLogger("semel")
KINDS = {
    Fate.PUBLISHED: EventKind.MESSAGE_PUBLISHED,
    Fate.FAILED: EventKind.MESSAGE_FAILED,
    Fate.POISON: EventKind.MESSAGE_DEAD,
}


class RelayLife(Member):
    READY = "ready"
    RUNNING = "running"
    STOPPING = "stopping"
    CLOSED = "closed"


class Relay:
    """Publishes the messages of an outbox: at least once each, always with the same id.

    `store` is a URL or an async store with an outbox; `publisher` is a URL, or an object with `publish` and `close`.
    What the relay opens by URL, it closes. `RelayOptions` says what the other options mean.

    Messages of one key are published in the order in which they were added. A message that the broker refuses for good,
    or that has failed `attempts_max` times, is a dead letter. While the broker or the store is away, the relay pauses,
    longer each time up to ten seconds, and counts no attempt.
    """

    def __init__(self, store: AsyncOutboxed | str, publisher: Publisher | str, **options: Unpack[RelayOptions]) -> None:
        check_options(options, RelayOptions, Relay)
        self._settings, self._concurrency, on_event = check_relay_options(**options)
        self._on_event = logged(on_event)
        self._life = RelayLife.READY
        self._asked_to_stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._to_close: list[Callable[[], Awaitable[object]]] = []
        self._store = self._open_store(store)
        self._publisher = self._open_publisher(publisher)

    async def run(self) -> None:
        """Publish until `stop()`, and purge beside that. Cancelling the task that runs it stops the relay, too.

        Either way the messages that are being published are waited for, and the others are given back.
        """
        self._enter()
        work = asyncio.ensure_future(self._work())
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait({work})
            raise
        finally:
            if not work.done():  # cancelled once more
                work.cancel()
                await asyncio.wait({work})
            await self.close()

    async def run_once(self) -> int:
        """Publish one batch, and say how many messages were published. Raises nothing while the broker is away.

        For tests and for timers. Call `close()` after the last one, or write `async with Relay(…) as relay:`.
        """
        return (await self._run_round()).published

    async def publish_waiting(self) -> int:
        """Publish batch by batch until nothing more can be published now, and say how many messages were.

        Messages that wait for their next try are left. Raises `StoreUnavailable` or `BrokerUnavailable` if one is away.
        """
        published = 0
        while not self._is_stopping():
            done = await self._run_round()
            published += done.published
            if done.part == "store":
                raise StoreUnavailable(done.away)
            if done.part == "broker":
                raise BrokerUnavailable(done.away)
            if done.taken == 0:
                break
        return published

    def stop(self) -> None:
        """Ask the relay to end its round. It may be called from a signal handler, or from another thread."""
        if self._life is not RelayLife.CLOSED:
            self._life = RelayLife.STOPPING
        if self._loop is None:
            self._asked_to_stop.set()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the relay has ended
                self._loop.call_soon_threadsafe(self._asked_to_stop.set)

    async def close(self) -> None:
        """Close what the relay opened. `run()` does that by itself."""
        self._life = RelayLife.CLOSED
        while self._to_close:
            try:
                await self._to_close.pop()()
            except Exception:
                logger.exception("the relay could not close what it had opened")

    async def __aenter__(self) -> Relay:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # How it works

    def _enter(self) -> None:
        match self._life:
            case RelayLife.READY:
                self._loop, self._life = asyncio.get_running_loop(), RelayLife.RUNNING
            case RelayLife.STOPPING:
                pass
            case RelayLife.RUNNING:
                raise Misuse("this relay runs already: make another Relay to publish more at once")
            case RelayLife.CLOSED:
                raise Misuse("this relay was closed: make another Relay")

    async def _run_round(self) -> RoundResult:
        self._enter()
        try:
            done = await adrive(run_round(self._settings), self._perform)
        finally:
            if self._life is RelayLife.RUNNING:
                self._life = RelayLife.READY
        if done.away:
            self._on_event(Event(EventKind.RELAY_PAUSED, NO_KEY, detail=done.away))
        return done

    async def _work(self) -> None:
        purge = asyncio.ensure_future(adrive(run_purge(self._settings), self._perform))
        try:
            await adrive(run_relay(self._settings), self._perform)
        finally:
            purge.cancel()
            await asyncio.wait({purge})

    def _is_stopping(self) -> bool:
        return self._life is RelayLife.STOPPING

    async def _perform(self, effect: Effect[Any]) -> Any:
        match effect:
            case TakeMessages() | SettleMessages() | PurgeMessages():
                return await self._store.outbox(effect)
            case PublishLanes():
                return await self._publish(effect)
            case AwaitMessages(timeout_ms):
                await self._or_stop(self._wait_for_messages(timeout_ms))
            case Rest(rest_ms):
                await self._or_stop(asyncio.sleep(rest_ms / 1000))
            case Pause(pause_ms):
                await asyncio.sleep(pause_ms / 1000)
            case NewOwner():
                return secrets.token_hex(16)
            case ReadClock():
                return boot_ms()
            case IsStopping():
                return self._is_stopping()
            case ReportRound():
                self._report_round(effect)
            case ReportPause(reason, pause_ms):
                self._on_event(Event(EventKind.RELAY_PAUSED, NO_KEY, detail=f"for {pause_ms / 1000:g} s: {reason}"))
            case _:
                raise TypeError(f"a relay does not perform {type(effect).__name__}")

    async def _publish(self, asked: PublishLanes) -> tuple[MessageFate, ...]:
        return await LaneRun(self._publisher, asked, boot_ms, self._is_stopping).run(self._concurrency)

    async def _wait_for_messages(self, timeout_ms: int) -> None:
        """What the store knows of new messages is a hint. If it fails, looking again after a while does."""
        try:
            await self._store.wait_for_messages(timeout_ms)
        except StoreError:
            await asyncio.sleep(timeout_ms / 1000)

    async def _or_stop(self, sleep: Coroutine[Any, Any, None]) -> None:
        """Sleep, unless the relay is asked to stop."""
        sleeping, asked = asyncio.ensure_future(sleep), asyncio.ensure_future(self._asked_to_stop.wait())
        try:
            await asyncio.wait({sleeping, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (sleeping, asked):
                each.cancel()
            await asyncio.wait({sleeping, asked})
        if not sleeping.cancelled():
            sleeping.result()

    def _report_round(self, effect: ReportRound) -> None:
        for message, fate, error in effect.messages:
            if (kind := KINDS.get(fate)) is not None:
                self._on_event(Event(kind, Key("", message.topic, message.id), message.attempt, error))
        if effect.overtaken:
            logger.warning(
                "another relay took %d messages before this one could settle them: they may be published twice, under "
                "the same ids; if that happens often, make the lease longer",
                effect.overtaken,
            )

    def _open_store(self, store: AsyncOutboxed | str) -> AsyncOutboxed:
        opened: object = open_async_store(store) if isinstance(store, str) else store
        if isinstance(opened, AsyncOutboxed) and inspect.iscoroutinefunction(opened.outbox):
            if isinstance(store, str):
                self._to_close.append(opened.close)  # type: ignore[attr-defined]
            return opened
        name = type(opened).__name__
        if callable(getattr(opened, "outbox", None)):
            raise TypeError(f"{name} is a store for threads: open one for the relay with semel.open_async_store(url)")
        if not hasattr(opened, "claim"):
            raise TypeError(f"store= must be a store or a URL, not {name}")
        raise StoreMisconfigured(
            f"a {name} has no outbox, because a message is added in the transaction of your own rows: give the "
            "database that holds those (postgresql://, mariadb:// or sqlite://)"
        )

    def _open_publisher(self, publisher: Publisher | str) -> Publisher:
        if not isinstance(publisher, str):
            if not isinstance(publisher, Publisher):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(
                    f"publisher= must be a URL, or an object with publish and close, not {type(publisher).__name__}"
                )
            return publisher
        opened = open_publisher(publisher)
        self._to_close.append(opened.close)
        return opened
