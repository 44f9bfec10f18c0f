"""Callers that are killed with -9, again and again, and run again: one effect for each intent, and its answer.

`python -m client.kills` kills 300 times; `--control` does it with a journal that dies with its process, and must find
operations that took effect twice.
"""

import argparse
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client.api import Api, serving
from client.fronts import FRONTS
from client.killed import POINTS, REPEAT_POINTS, pay_once

TROUBLES = ("answer", "answer", "drop", "half", "502", "refuse 503", "problem in-progress")
KILLED_AT = (*POINTS, *REPEAT_POINTS, "", "")
LATEST_KILL_S = 0.15
AT_ONCE = 2


@dataclass
class Toll:
    """What happened. An intent is known by its body."""

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    intents: int = 0
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def run(kills: int, seed: int, *, durable: bool = True) -> Toll:
    """Start callers with intents of their own, kill them at a point of their call or at any time, run them again."""
    toll, chance = Toll(), random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["client.killed"])
    with tempfile.TemporaryDirectory() as folder, serving() as api, ThreadPoolExecutor(AT_ONCE) as threads:
        journal = f"sqlite:///{Path(folder)}/journal.db" if durable else "memory://"
        while toll.kills.total() < kills:
            seeds = [chance.random() for _ in range(4 * AT_ONCE)]
            list(threads.map(lambda each: _one_intent(context, api, journal, toll, random.Random(each)), seeds))
    return toll


def _one_intent(context: Any, api: Api, journal: str, toll: Toll, chance: random.Random) -> None:
    with api.lock:
        toll.intents += 1
        name = f"pay:{toll.intents}"
        api.behaviours += chance.choices(TROUBLES, k=2)
    for _ in range(chance.randint(1, 3)):
        _run_once(context, api, journal, toll, name, chance, killed=True)
    answer = _run_once(context, api, journal, toll, name, chance, killed=False)
    mine = [key for _, key, body in list(api.requests) if body.decode() == name]
    if answer != b"paid":
        toll.wrong.append(f"{name}: answered {answer!r}")
    if len(set(mine)) > 1 or sum(api.effects[key] for key in set(mine)) != 1:
        toll.doubled.append(name)


def _run_once(
    context: Any, api: Api, journal: str, toll: Toll, name: str, chance: random.Random, *, killed: bool
) -> bytes:
    """Run a caller, and kill it if asked to: at a point of its call, or from outside at any time."""
    kind, point = chance.choice(sorted(FRONTS)), KILLED_AT[toll.runs % len(KILLED_AT)] if killed else ""
    reader, writer = context.Pipe(duplex=False)
    caller = context.Process(target=pay_once, args=(journal, api.url, point, name, kind, writer))
    caller.start()
    writer.close()
    toll.runs += 1
    if killed and not point:
        time.sleep(chance.uniform(0, LATEST_KILL_S))
        caller.kill()
    caller.join(60)
    if caller.exitcode == -9:
        toll.kills[point or "at any time"] += 1
    try:
        answer: bytes = reader.recv()
    except EOFError:
        answer = b""
    reader.close()
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--control", action="store_true")
    asked = parser.parse_args()
    began = time.monotonic()
    toll = run(asked.kills, asked.seed, durable=not asked.control)
    print(f"seed {asked.seed}: {toll.kills.total()} kills in {toll.runs} runs of {toll.intents} intents")
    for point, count in sorted(toll.kills.items()):
        print(f"  {point}: {count}")
    print(f"took effect twice: {len(toll.doubled)}; other answers: {len(toll.wrong)}; {time.monotonic() - began:.0f} s")
    for problem in (*toll.doubled, *toll.wrong) if not asked.control else ():
        print(f"  {problem}")
    if asked.control != bool(toll.doubled) or (toll.wrong and not asked.control):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
