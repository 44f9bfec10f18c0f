"""A relay that publishes every message twice, so that no consumer gets by without looking at the id."""

from __future__ import annotations

import asyncio
import signal

from chain.setting import Setting
from semel.outbox import Message, Publisher, Relay, open_publisher


class TwicePublisher:
    """Publishes each message two times with the publisher that it wraps."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    async def publish(self, message: Message) -> None:
        await self._publisher.publish(message)
        await self._publisher.publish(message)

    async def close(self) -> None:
        await self._publisher.close()


async def main() -> None:
    setting = Setting.read()
    publisher = TwicePublisher(open_publisher(setting.publisher_url))
    relay = Relay(setting.database_url, publisher, order="key", batch=20, lease=setting.lease_s, poll=0.2)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.stop)
    await relay.run()


if __name__ == "__main__":
    asyncio.run(main())
