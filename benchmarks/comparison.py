"""`python -m benchmarks.comparison`: tries other libraries as `semel try` does, counts effects, and writes the table.

Each library stands as its manual says, on each store that outlives its process and that it supports. Nothing here
measures speed. The rows of `docs/compare.md` between its two marks are what was seen.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from benchmarks.answering import stores_first
from benchmarks.apps import BY_DEFAULT
from benchmarks.least import DICT_ALONE, DICT_AND_TASK
from benchmarks.peers import PEERS
from benchmarks.places import DURABLE, TITLES, Places, places
from benchmarks.serving import BODY, AppServer
from semel.probe.judge import Mark, judge
from semel.probe.probes import FirstFailed, ProbeSettings, observe
from semel.probe.wire import ProbeRequest

PAGE = Path(__file__).parent.parent / "docs" / "compare.md"
PART = re.compile(r"(<!-- compared -->\n).*?(<!-- end compared -->)", re.DOTALL)
COLUMNS = ("the same request twice", "20 times at once", "another body, the same key", "another identity, the same key")
HEAD = [
    "| library | store | a repeat | 20 at once | another body | another caller's key "
    "| killed while it ran, then repeated | stored first |",
    "|---|---|---|---|---|---|---|---|",
]
LEAST = (DICT_ALONE, DICT_AND_TASK)
ALICE, BOB = ("Authorization", "Bearer alice"), ("Authorization", "Bearer bob")
SHOWN = {Mark.RIGHT: "right", Mark.WRONG: "**wrong**", Mark.UNCLEAR: "not told"}


def compare() -> Iterator[str]:
    contenders = [(BY_DEFAULT, store) for store in DURABLE]
    contenders += [(who, store) for who, store in PEERS if store in DURABLE and who not in LEAST]
    with places() as where:
        for who, store in contenders:
            yield row(who, store, where)


def row(who: str, store: str, where: Places) -> str:
    url = place(store, where)
    try:
        with AppServer(who, store, url) as server:
            found = answers(server)
            found.append("yes" if stores_first(server, where, url) else "**no**")
        found.insert(-1, crash(who, store, place(store, where)))
    except Exception as error:  # what could not be tried stands in the table, too
        print(f"{who} on {store}: {error!r}", file=sys.stderr)
        found = [f"not tried: {type(error).__name__}"]
    return f"| {who} | {TITLES[store]} | {' | '.join(found)} |"


def place(store: str, where: Places) -> str:
    return where.fresh_database() if store == "postgres" else where.url(store, fresh=uuid.uuid4().hex)


def answers(server: AppServer) -> list[str]:
    """What `semel try` says, with the handler's own count of effects."""
    headers = (ALICE, ("Content-Type", "application/json"))
    request = ProbeRequest("POST", f"http://127.0.0.1:{server.port}/pay", headers, BODY)
    try:
        verdicts = judge(observe(ProbeSettings(request, identity=BOB, count=server.effects)))
    except FirstFailed as failed:
        return [f"the first request got {failed}"] * len(COLUMNS)
    told = {verdict.name: verdict for verdict in verdicts}
    return [f"{SHOWN[told[name].mark]}: {told[name].seen}" for name in COLUMNS]


def crash(who: str, store: str, url: str) -> str:
    """Kill the server while the handler runs, start it again, and repeat the request."""
    key = str(uuid.uuid4())
    with AppServer(who, store, url) as server:
        asking = threading.Thread(target=ask, args=(server.port, key), daemon=True)
        asking.start()
        while not server.held():
            asking.join(0.01)
        server.kill()
        server.start()
        told: list[int] = []
        again = threading.Thread(target=ask, args=(server.port, key, told), daemon=True)
        again.start()
        while not told and not server.held():
            again.join(0.01)
        return "**runs again, in silence**" if server.held() else f"{told[0]}: does not run"


def ask(port: int, key: str, told: list[int] | None = None) -> None:
    """A request whose handler goes on until it is told to end."""
    headers = dict((ALICE, ("Idempotency-Key", key), ("Content-Type", "application/json")))
    with suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/pay", json.dumps({"amount": 10, "hold": True}), headers)
        status = connection.getresponse().status
        if told is not None:
            told.append(status)


def main() -> None:
    rows = list(HEAD)
    for each in compare():
        print(each, flush=True)
        rows.append(each)
    table = "\n".join(rows)
    PAGE.write_text(PART.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", PAGE.read_text()))


if __name__ == "__main__":
    main()
