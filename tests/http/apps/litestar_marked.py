"""`python -m apps.litestar_marked`: Litestar's own marks, in a process where no endpoint was ever decorated."""

import asyncio

from asking import post as ask
from litestar import Litestar, post

from semel import Policy
from semel.litestar import IdempotencyPlugin

effects: list[str] = []


@post("/pay", opt={"semel": Policy(required=True)})
async def pay() -> None:
    effects.append("paid")


if __name__ == "__main__":
    app = Litestar([pay], plugins=[IdempotencyPlugin(store="memory://", identify=lambda scope: "me", publish=None)])
    answer = asyncio.run(ask(app, "/pay"))
    assert (answer.status_code, effects) == (400, []), answer
