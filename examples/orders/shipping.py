"""Shipping: one shipment for each order, however often its message is delivered."""

import asyncio
import json
import signal
from urllib.parse import urlsplit

from place import BROKER, SECRET, Session, Shipment
from sqlalchemy.ext.asyncio import AsyncSession

from semel.inbox import AsyncInbox, Delivery

QUEUE, DEAD = "orders.placed", "shipping.dead"
"""The relay publishes to the queue that is named like the topic."""


async def ship(session: AsyncSession, delivery: Delivery) -> None:
    """Its rows and the note that the message was handled are committed together."""
    order = json.loads(delivery.payload)
    session.add(Shipment(order_id=order["order"], item=order["item"]))


consumer = AsyncInbox("shipping").consumer(ship, begin=Session.begin)


async def consume_queue() -> None:
    import aio_pika

    from semel.inbox.rabbitmq import RabbitmqConsumer

    async with await aio_pika.connect(BROKER) as connection:
        channel = await connection.channel()
        await channel.declare_queue(QUEUE, durable=True)
        await channel.declare_queue(DEAD, durable=True)
    worker = RabbitmqConsumer(BROKER, QUEUE, consumer, dead_letter=DEAD)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


def receive_webhooks() -> None:
    import uvicorn

    from semel.inbox.webhook import StandardWebhooks, WebhookReceiver

    receiver = WebhookReceiver(consumer, signature=StandardWebhooks(SECRET))
    uvicorn.run(receiver, port=urlsplit(BROKER).port or 8082, log_level="warning")


if __name__ == "__main__":
    if BROKER.startswith("amqp"):
        asyncio.run(consume_queue())
    else:
        receive_webhooks()
