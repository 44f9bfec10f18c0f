"""Runs the example: a shop, a relay and shipping, each a process; then orders, each asked for twice, and kills.

`python run.py` needs nothing but Python: SQLite keeps the rows, and webhooks carry the messages.
`ORDERS_STORE=postgresql://… ORDERS_BROKER=amqp://… python run.py` takes PostgreSQL and RabbitMQ.
`--stay` leaves everything running at the end, until Ctrl-C.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import aiohttp

HERE = Path(__file__).parent
PORT = os.environ.get("ORDERS_PORT", "8081")
SHOP = f"http://127.0.0.1:{PORT}"
ORDERS = 12
PATIENCE_S = 60


def start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *words], env=os.environ)


async def main() -> None:
    from place import BROKER, SECRET, STORE, Base, engine

    import semel

    await asyncio.to_thread(semel.open_store(STORE).migrate)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
        await connection.run_sync(Base.metadata.create_all)
    target = BROKER if BROKER.startswith("amqp") else f"{BROKER}?secret={SECRET}"
    shop = start("-m", "uvicorn", "shop:app", "--port", PORT, "--log-level", "warning")
    relay = ["-m", "semel", "relay", STORE, "--to", target, "--lease", "3s"]  # by default another relay waits 30 s
    commands = {"shipping": [str(HERE / "shipping.py")], "relay": relay}
    running = {name: start(*words) for name, words in commands.items()}
    try:
        await is_up()
        print(f"{ORDERS} orders, each of them asked for twice at once; shipping and the relay are killed meanwhile")
        async with aiohttp.ClientSession() as session:
            for number in range(ORDERS):
                first, second = await asyncio.gather(place(session, number), place(session, number))
                assert first == second, "both callers get the same answer"
                if number % 4 == 3:
                    name = ("shipping", "relay")[number // 4 % 2]
                    running[name].kill()
                    running[name].wait()
                    print(f"kill -9 {name}")
                    running[name] = start(*commands[name])
        orders, shipments = await count()
        print(f"{orders} orders, {shipments} shipments")
        if "--stay" in sys.argv:
            print(f"{SHOP}/docs is the shop. Ctrl-C ends it.")
            await asyncio.Event().wait()
    finally:
        for process in (shop, *running.values()):
            process.terminate()
        for process in (shop, *running.values()):
            process.wait()


async def is_up() -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"{SHOP}/docs"):
                    return
            except aiohttp.ClientError:
                assert asyncio.get_running_loop().time() < deadline, "the shop did not start"
                await asyncio.sleep(0.1)


async def place(session: aiohttp.ClientSession, number: int) -> str:
    """As a careful client does: the same key until there is an answer."""
    headers = {"Idempotency-Key": f"order-{KEYS[number]}"}
    while True:
        order = {"customer": f"customer-{number % 3}", "item": f"book {number}"}
        async with session.post(f"{SHOP}/orders", json=order, headers=headers) as reply:
            if reply.status == 201:
                return await reply.text()
            await asyncio.sleep(0.1)


KEYS = [uuid.uuid4() for _ in range(ORDERS)]


async def count() -> tuple[int, int]:
    """When the last message has arrived, and a moment later, so that a second shipment would be seen."""
    from place import Order, Session, Shipment
    from sqlalchemy import func, select

    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        async with Session() as session:
            orders = await session.scalar(select(func.count(Order.id)))
            shipped = await session.scalar(select(func.count(Shipment.order_id.distinct())))
            shipments = await session.scalar(select(func.count(Shipment.id)))
        if orders == shipped or asyncio.get_running_loop().time() > deadline:
            await asyncio.sleep(1)
            return orders or 0, shipments or 0
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    if "ORDERS_STORE" not in os.environ:
        os.environ["ORDERS_STORE"] = f"sqlite:///{tempfile.mkdtemp()}/orders.db"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
