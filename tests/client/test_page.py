"""The examples of docs/client.md run, one after the other, and each pays once. Only the addresses differ."""

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from client.api import Api, serving
from semel.client import Journal, Retry, report_of
from semel.client.httpx import IdempotentTransport

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
ADDRESSES = re.compile(r"https://api\.(stripe\.|paypal\.)?example")
NAMES = [f"pay:order:{number}" for number in range(41, 48)] + [
    "charge:order:48",
    "charge:order:49",
    "capture:order:50",
    "payout:2026-11:baker",
    "payout:2026-11:printer",
    "invoice:2026-118",
    "invoice:51",
]


def run(module: ModuleType, api: Api, *examples: str) -> None:
    for example in examples:
        here = ADDRESSES.sub(api.url.removesuffix("/pay"), example).replace('mount("https://', 'mount("http://')
        exec(compile(here, str(PAGE), "exec"), module.__dict__)


def leave_one_open(api: Api) -> None:
    """What a process leaves that dies before the answer."""
    once = IdempotentTransport(httpx.HTTPTransport(), retry=Retry(attempts=1))
    intent = Journal("sqlite:///journal.db").intent(NAMES[0], max_age=timedelta(hours=1))
    with httpx.Client(transport=once) as client, pytest.raises(httpx.RemoteProtocolError):
        client.post(api.url, content=b"{}", extensions={"semel": intent})


def test_each_example_pays_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module: Any = ModuleType("caller_of_the_docs")
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    with serving("drop", "drop", *["json"] * 23) as api:
        leave_one_open(api)
        run(module, api, *EXAMPLES)
        assert (module.answer.json(), report_of(module.answer).attempts) == ({"paid": True}, 2)
        assert asyncio.run(module.pay()).status_code == 201
        assert asyncio.run(module.pay_by_aiohttp()) == 201
        assert module.pay_again().status_code == 201
        assert (module.paid.status_code, module.answered.status, module.charge.status_code) == (201, 201, 201)
        assert (module.charged["paid"], module.captured.status_code) == (True, 201)
        assert (module.in_doubt, module.first_reply, module.second_reply) == ([], "Paid: 201.", "It was paid before.")
        assert "with another amount" in module.other_reply
        entries = [module.journal.read(name) for name in NAMES]
        assert [entry.answer.status for entry in entries] == [201] * len(NAMES)
        effects = {key.strip('"'): count for key, count in api.effects.items()}
        assert effects == {entry.key: 1 for entry in entries}

        sent = len(api.requests)
        run(module, api, EXAMPLES[0])
        assert (module.answer.json(), report_of(module.answer).attempts) == ({"paid": True}, 0)
        assert len(api.requests) == sent, "run once more, it sends nothing"
