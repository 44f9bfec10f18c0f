"""The shop: `POST /orders` stores an order and publishes it, in one transaction, once for each key."""

from typing import Annotated

from fastapi import Depends, FastAPI
from place import Order, Session
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from semel import Policy
from semel.fastapi import protect
from semel.transaction import AsyncTransactionStore, within

app = FastAPI()
store = AsyncTransactionStore(Session.begin)
protect(
    app,
    store=store,
    policy=Policy(guarantee="exactly-once", required=True),
    identify=lambda scope: "example",  # one customer of the API; yours come from authentication
)
RequestSession = Annotated[AsyncSession, Depends(store.current)]
"""The session of the request: semel begins its transaction, and commits it after the endpoint."""


class NewOrder(BaseModel):
    customer: str
    item: str


@app.post("/orders", status_code=201)
async def place(new: NewOrder, session: RequestSession) -> dict[str, object]:
    order = Order(customer=new.customer, item=new.item)
    session.add(order)
    await session.flush()  # the database gives the order its number
    event = {"order": order.id, "item": order.item}
    message = await within(session).publish("orders.placed", event, key=new.customer)
    return {"order": order.id, "message": message}
