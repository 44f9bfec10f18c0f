"""At the store: pairs of claim and complete per second, beside what the store itself can do one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial

import uvloop

from benchmarks import raw
from benchmarks.apps import SEMEL
from benchmarks.calls import pair, per_second, replay
from benchmarks.places import DURABLE, STORES, Places, path_of
from benchmarks.results import PER_SECOND, Found, Note
from benchmarks.rounds import aalternate, measured
from benchmarks.sizes import Size
from semel import open_async_store
from servers.binaries import MissingServer

PYTHON, C = "Python driver, one by one", "C, one by one"
UNPREPARED = "semel, prepare=false"
"""As behind a pooler, which changes connections."""
BRIEF = 0.6
"""Nothing has to be started for these rounds, so they may be shorter. pgbench knows only whole seconds."""
Run = Callable[[], Awaitable[float]]


def measure(size: Size, places: Places) -> Iterator[Found]:
    for store in STORES:
        yield from uvloop.run(at(store, size, places))


async def at(store: str, size: Size, places: Places) -> list[Found]:
    found: list[Found] = []
    url = places.fresh_database() if store == "postgres" else places.url(store, fresh="at-store")
    async with AsyncExitStack() as stack:
        ours = open_async_store(url)
        stack.push_async_callback(ours.close)
        known = await pair(ours)
        unprepared = None
        if store == "postgres":
            unprepared = open_async_store(url + ("&" if "?" in url else "?") + "prepare=false")
            stack.push_async_callback(unprepared.close)
        raw_once = await stack.enter_async_context(raw_python(store, url)) if store in DURABLE else None
        for callers in size.loads:
            seconds = size.round_s * BRIEF
            cells: dict[tuple[str, str], Run] = {
                ("first", SEMEL): partial(per_second, partial(pair, ours), callers, seconds),
                ("replay", SEMEL): partial(per_second, partial(replay, ours, known), callers, seconds),
            }
            if unprepared is not None:
                cells["first", UNPREPARED] = partial(per_second, partial(pair, unprepared), callers, seconds)
            if raw_once is not None:
                cells["first", PYTHON] = partial(per_second, raw_once, callers, seconds)
            if in_c := raw_c(store, url, callers, size.round_s):
                cells["first", C] = in_c
            try:
                rounds = await aalternate(cells, size.rounds)
            except MissingServer as error:
                found.append(Note(f"{C}, {store}", str(error)))
                cells.pop(("first", C))
                rounds = await aalternate(cells, size.rounds)
            for (case, who), values in rounds.items():
                found.append(measured(case, who, store, callers, PER_SECOND, values))
    return found


def raw_python(store: str, url: str) -> raw.Raw:
    match store:
        case "sqlite":
            return raw.python_sqlite(path_of(url))
        case "postgres":
            return raw.python_postgres(url)
        case _:
            return raw.python_redis(url)


def raw_c(store: str, url: str, callers: int, seconds: float) -> Run | None:
    """In a thread, where it waits for a program."""
    programs = {"postgres": raw.pgbench, "redis": raw.redis_benchmark}
    program = programs.get(store)
    return None if program is None else partial(asyncio.to_thread, program, url, callers, seconds)
