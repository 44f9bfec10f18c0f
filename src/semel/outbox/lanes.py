"""Publishes the lanes of one round side by side, and finds out what became of each message."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from semel.core.messages import Message
from semel.core.outbox import Taken
from semel.core.relay import Fate, MessageFate, PublishLanes
from semel.errors import BrokerMisconfigured, BrokerUnavailable, Poison
from semel.outbox.publisher import Publisher

# A publisher raises `BrokerUnavailable`. One that lets its driver's own errors through must not cost attempts either.
AWAY = (BrokerUnavailable, BrokerMisconfigured, ConnectionError, socket.gaierror)


class LaneRun:
    """One round: the lanes that have not begun, and what became of the messages that were tried."""

    def __init__(
        self, publisher: Publisher, asked: PublishLanes, clock_ms: Callable[[], int], is_stopping: Callable[[], bool]
    ) -> None:
        self._publisher, self._asked, self._clock_ms, self._is_stopping = publisher, asked, clock_ms, is_stopping
        self._left = deque(asked.lanes)
        self._sent: dict[int, MessageFate] = {}
        self._is_away = False

    async def run(self, concurrency: int) -> tuple[MessageFate, ...]:
        """What became of every message, in the order of the lanes."""
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(self._left))):
                group.create_task(self._publish_lanes())
        untried = Fate.UNTRIED
        return tuple(
            self._sent.get(each.sequence) or MessageFate(each.sequence, untried)
            for lane in self._asked.lanes
            for each in lane
        )

    async def _publish_lanes(self) -> None:
        while self._left:
            for each in self._left.popleft():
                if not self._may_start():
                    return
                self._sent[each.sequence] = sent = await self._publish(each)
                if sent.fate is not Fate.PUBLISHED:
                    break

    def _may_start(self) -> bool:
        """Look at the clock before each message: the process may have been stopped since the last one."""
        return not self._is_away and not self._is_stopping() and self._clock_ms() < self._asked.start_until_ms

    async def _publish(self, one: Taken) -> MessageFate:
        fate, error = await self._try(one.message)
        if fate is Fate.AWAY:
            self._is_away = True
        return MessageFate(one.sequence, fate, error)

    async def _try(self, message: Message) -> tuple[Fate, str]:
        try:
            async with asyncio.timeout(self._asked.timeout_ms / 1000):
                await self._publisher.publish(message)
        except Poison as error:
            return Fate.POISON, str(error) or type(error).__name__
        except AWAY as error:
            return Fate.AWAY, str(error) or type(error).__name__
        except TimeoutError:
            return Fate.AWAY, f"no confirmation of message {message.id} within {self._asked.timeout_ms / 1000:g} s"
        except Exception as error:  # whatever a publisher of a third party raises is this message's failure
            return Fate.FAILED, f"{type(error).__name__}: {error}"
        return Fate.PUBLISHED, ""
