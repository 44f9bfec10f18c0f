"""What semel costs before the first request: time to import, and to be ready."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks.apps import SEMEL
from benchmarks.places import STORES, Places
from benchmarks.results import MILLISECONDS, Found
from benchmarks.rounds import alternate, measured
from benchmarks.sizes import Size

NOTHING = "nothing"
IMPORTED = "import asyncio, secrets, semel.asgi, benchmarks.in_process"
FIRST_ANSWER = """
import asyncio, secrets
from semel.asgi import IdempotencyMiddleware
from benchmarks.in_process import least, post
async def run():
    app = IdempotencyMiddleware(least, store={url!r}, identify=lambda scope: "shop-1")
    assert await post(app, secrets.token_hex(16)) == 201
    await app.close()
asyncio.run(run())
"""


def measure(size: Size, places: Places) -> Iterator[Found]:
    programs = {
        NOTHING: "pass",
        "import semel": "import semel",
        "import semel.asgi": "import semel.asgi",
        "import semel.wsgi": "import semel.wsgi",
        "import starlette.applications": "import starlette.applications",
    }
    spent = alternate({name: timed(program) for name, program in programs.items()}, max(3, size.rounds))
    for name, values in spent.items():
        over = [each - base for each, base in zip(values, spent[NOTHING], strict=True)]
        yield measured("start-up", name, "", 0, MILLISECONDS, values if name == NOTHING else over)
    yield from first_answers(size, places)


def first_answers(size: Size, places: Places) -> Iterator[Found]:
    """From the middleware's construction to the first stored answer, connecting and checking the store included."""
    cells = {store: timed(FIRST_ANSWER.format(url=places.url(store, fresh="footprint"))) for store in STORES}
    spent = alternate({"": timed(IMPORTED), **cells}, max(3, size.rounds))
    for store in STORES:
        over = [max(0.0, each - imported) for each, imported in zip(spent[store], spent[""], strict=True)]
        yield measured("first answer", SEMEL, store, 0, MILLISECONDS, over)


def timed(program: str) -> Callable[[], float]:
    """Milliseconds for a Python that runs this."""

    def run() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True, env=os.environ)
        return (time.perf_counter() - started) * 1000

    return run
