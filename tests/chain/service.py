"""The service of the chain.

`POST /orders/{customer}` places an order and publishes it, under exactly-once. `POST /direct/{customer}` is a control:
it publishes by itself, before its transaction commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator

from sqlalchemy.ext.asyncio import async_sessionmaker
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from chain.setting import DIRECT, TOPIC, Setting, execute
from semel import Policy
from semel.asgi import IdempotencyMiddleware, Rule
from semel.outbox import Message, open_publisher
from semel.transaction import AsyncTransactionStore, within

NEXT = "UPDATE customers SET last = last + 1 WHERE id = :customer RETURNING last"
PLACE = "INSERT INTO orders VALUES (:name, :customer, :number)"
PLACE_DIRECT = "INSERT INTO direct_orders VALUES (:run, :name)"

setting = Setting.read()
sessions = async_sessionmaker(setting.engine())
store = AsyncTransactionStore(sessions.begin)
publisher = open_publisher(setting.publisher_url)


async def place(request: Request) -> Response:
    """The lock on the customer's row serialises the orders of one customer, so that their numbers are their order."""
    name, customer = request.headers["idempotency-key"], request.path_params["customer"]
    session = store.current()
    number = (await execute(session, NEXT, customer=customer)).scalar_one()
    await execute(session, PLACE, name=name, customer=customer, number=number)
    order = {"name": name, "customer": customer, "number": number}
    message = await within(session).publish(TOPIC, order, key=customer)
    return JSONResponse({**order, "message": message}, status_code=201)


async def place_direct(request: Request) -> Response:
    name, run = request.headers["idempotency-key"], str(uuid.uuid4())
    async with sessions.begin() as session:
        await execute(session, PLACE_DIRECT, run=run, name=name)
        payload = json.dumps({"name": name, "run": run}).encode()
        await publisher.publish(Message(run, DIRECT, payload, "application/json"))
        await asyncio.sleep(0.01)  # what a transaction may still have to do
    return JSONResponse({"name": name}, status_code=201)


async def answer_probe(request: Request) -> Response:
    return Response(status_code=204)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    yield
    await publisher.close()


app = Starlette(
    routes=[
        Route("/orders/{customer}", place, methods=["POST"]),
        Route("/direct/{customer}", place_direct, methods=["POST"]),
        Route("/", answer_probe),
    ],
    lifespan=lifespan,
)
app.add_middleware(
    IdempotencyMiddleware,
    store=store,
    policy=Policy(guarantee="exactly-once", required=True),
    rules=[Rule("POST /direct/{customer}", policy=None)],
    identify=lambda scope: "chain",
)
