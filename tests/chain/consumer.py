"""A consumer that writes a ledger: `inbox` is semel's. `mark_first` and `bare` are controls, as services often do it.

The control `mark_first` notes the id of a message, and handles the message after that. `bare` looks at no id.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from chain.brokers import broker_of, queue_of
from chain.setting import ARMS, DEAD, INBOX, MARK_FIRST, Setting, execute
from semel.inbox import AsyncInbox, Delivery

ENTER = "INSERT INTO ledger VALUES (:arm, :name, :message)"
MARK = "INSERT INTO marks VALUES (:message) ON CONFLICT DO NOTHING RETURNING 1"
CONCURRENCY = 8
WORK_S = 0.01

setting = Setting.read()
begin = async_sessionmaker(setting.engine()).begin


async def work() -> None:
    """What a handler does beside its writes: here a process is killed most often."""
    await asyncio.sleep(WORK_S * random.uniform(0, 2))


async def enter(session: AsyncSession, delivery: Delivery) -> None:
    """The handler of the inbox."""
    await work()
    name = json.loads(delivery.payload)["name"]
    await execute(session, ENTER, arm=INBOX, name=name, message=delivery.id)
    await work()


async def consume_with_inbox() -> None:
    consumer = AsyncInbox("ledger").consumer(enter, begin=begin)
    worker = broker_of(setting).consumer(queue_of(INBOX), consumer, dead_letter=DEAD, concurrency=CONCURRENCY)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


async def consume_as_control(arm: str) -> None:
    connection = await aio_pika.connect_robust(setting.broker_url)
    channel = await connection.channel()
    await channel.set_qos(CONCURRENCY)
    queue = await channel.get_queue(queue_of(arm))

    async def handle(message: AbstractIncomingMessage) -> None:
        try:
            if arm == MARK_FIRST:
                async with begin() as session:
                    if not (await execute(session, MARK, message=message.message_id)).all():
                        await message.ack()
                        return
            await work()
            async with begin() as session:
                name = json.loads(message.body)["name"]
                await execute(session, ENTER, arm=arm, name=name, message=message.message_id)
            await work()
            await message.ack()
        except Exception:
            await message.nack(requeue=True)

    await queue.consume(handle)
    await asyncio.Event().wait()


if __name__ == "__main__":
    [chosen] = sys.argv[1:]
    assert chosen in ARMS
    asyncio.run(consume_with_inbox() if chosen == INBOX else consume_as_control(chosen))
