"""The demo's service on the wire. Money is counted in the bank's own file, apart from the store."""

import http.client
import re
import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.resources import files

import pytest

from demo.running import Answer, Demo, Watcher, wait_for
from servers import binaries
from servers.needing import needed
from servers.process import wait_until_dead

OFF = "/unprotected/payments"
BROKEN = (http.client.HTTPException, ConnectionError)


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with Demo() as running:
        yield running


@pytest.fixture
def account() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


def test_the_printed_curl_lines_do_what_they_say(demo: Demo) -> None:
    needed("curl", lambda: binaries.require("curl"))
    lines = re.findall(r"^ +(curl .*?)  # (.*)$", demo.log.read_text(), re.MULTILINE)
    said = [
        subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout for line, _ in lines
    ]
    assert [re.search(r"^HTTP/1.1 (\d+)", answer)[1] for answer in said] == [promise[:3] for _, promise in lines]  # type: ignore[index]
    assert ["idempotent-replayed: true" in answer.lower() for answer in said] == [False, True, False]
    assert ["Idempotent-Replayed: true" in promise for _, promise in lines] == [False, True, False]
    key = re.search(r"Idempotency-Key: (\S+)'", lines[0][0])
    assert key
    assert demo.paid("guest", key[1]) == [2500]


@pytest.mark.parametrize(("path", "times"), [("/payments", 1), (OFF, 20)])
def test_twenty_at_once(demo: Demo, account: str, path: str, times: int) -> None:
    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(lambda _: demo.pay(account, "k", path=path), range(20)))
    assert demo.paid(account, "k") == [2500] * times
    assert [answer.status for answer in answers].count(201) >= times
    assert {answer.status for answer in answers} <= ({201, 409} if times == 1 else {201})


@pytest.mark.parametrize(("path", "status", "paid"), [("/payments", 422, [2500]), (OFF, 201, [9900, 2500])])
def test_same_key_with_another_amount(demo: Demo, account: str, path: str, status: int, paid: list[int]) -> None:
    assert demo.pay(account, "k", path=path).status == 201
    assert demo.pay(account, "k", 9900, path=path).status == status
    assert demo.paid(account, "k") == paid


@pytest.mark.parametrize(("path", "times"), [("/payments", 1), (OFF, 2)])
def test_lost_answer(demo: Demo, account: str, path: str, times: int) -> None:
    with closing(Watcher(demo, account)) as watcher, closing(demo.connect()) as lost:
        watcher.until("begin")
        headers = {"Account": account, "Idempotency-Key": "k", "Demo-Fault": "lose-answer"}
        lost.request("POST", path, b'{"amount": 2500}', headers)
        story = watcher.until("lost")
    told = [kind for kind in story if kind in ("claimed", "charged", "completed", "lost")]
    assert told == (["claimed", "charged", "completed", "lost"] if times == 1 else ["charged", "lost"])
    again = demo.pay(account, "k", path=path)
    assert (again.status, again.replayed) == (201, times == 1)
    assert demo.paid(account, "k") == [2500] * times


def unanswered(demo: Demo, account: str, path: str) -> None:
    with pytest.raises(BROKEN):
        demo.pay(account, "k", path=path, fault="crash")


def test_crash_without_protection_pays_twice(demo: Demo, account: str) -> None:
    unanswered(demo, account, OFF)
    assert demo.pay(account, "k", path=OFF).status == 201
    assert demo.paid(account, "k") == [2500, 2500]


def test_crash_is_unknown_until_an_operator_asks_the_bank(demo: Demo, account: str) -> None:
    dead = demo.worker()
    with closing(Watcher(demo, account)) as watcher:
        watcher.until("begin")
        unanswered(demo, account, "/payments")
    wait_until_dead([dead])

    def settled() -> Answer | None:
        answer = demo.pay(account, "k")
        return None if answer.json.get("retryable") else answer

    assert wait_for(settled).problem == "outcome-unknown"
    assert demo.paid(account, "k") == [2500]
    with closing(Watcher(demo, account, watcher.last_id)) as later:
        story = later.until("unknown")
    told = [kind for kind in story if kind in ("claimed", "charged", "killed", "started", "unknown")]
    assert told == ["claimed", "charged", "killed", "started", "unknown"]
    done = demo.resolve(account, "k")
    assert (done.status, done.json) == (200, {"key": "k", "paid": True, "resolved": "answer"})
    again = demo.pay(account, "k")
    assert (again.status, again.replayed, again.json["amount"]) == (201, True, 2500)
    assert demo.paid(account, "k") == [2500]
    assert demo.resolve(account, "k").status == 409


def test_nobody_is_refused_while_a_killed_worker_is_replaced(demo: Demo, account: str) -> None:
    for _ in range(2):
        worker = demo.worker()
        worker.kill()
        wait_until_dead([worker])
        assert demo.get(f"/bank?account={account}").status == 200


def test_accounts_never_meet(demo: Demo, account: str) -> None:
    other = f"{account}-2"
    assert [demo.pay(who, "k").replayed for who in (account, other)] == [False, False]
    assert demo.paid(account, "k") == demo.paid(other, "k") == [2500]


@pytest.mark.parametrize("path", ["/payments", OFF, "/operator/resolve"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "{address}.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "{address}"},
    ],
    ids=str,
)
def test_another_site_cannot_pay(demo: Demo, account: str, path: str, headers: dict[str, str]) -> None:
    """A page that somebody has open besides the demo could send what a form can send."""
    given = {name: value.replace("{address}", demo.address) for name, value in headers.items()}
    named = {"Account": account, "Idempotency-Key": "k", "Content-Type": "text/plain"}
    refused = demo.send("POST", path, b'{"amount": 2500}', {**named, **given})
    assert (refused.status, refused.json["title"]) == (403, "Another site may not do this")
    assert demo.paid(account, "k") == demo.paid(account, "") == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "{address}"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://behind.a.proxy"},
        {"Sec-Fetch-Site": "none"},
    ],
    ids=str,
)
def test_the_demo_s_own_page_and_programs_pay(demo: Demo, account: str, headers: dict[str, str]) -> None:
    given = {name: value.replace("{address}", demo.address) for name, value in headers.items()}
    paid = demo.send("POST", "/payments", b'{"amount": 2500}', {"Account": account, "Idempotency-Key": "k", **given})
    assert (paid.status, demo.paid(account, "k")) == (201, [2500])


def test_what_cannot_be_done_is_refused(demo: Demo, account: str) -> None:
    def asked(method: str, path: str, body: bytes = b"", **headers: str) -> int:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return demo.send(method, path, body, {"Account": account, **given}).status

    assert asked("POST", "/payments", b'{"amount": 1}') == 400  # no key
    for number, body in enumerate(
        [b"", b"{}", b"\xff", b'{"amount": 0}', b'{"amount": "1"}', b'{"amount": 1, "x": 1}']
    ):
        assert asked("POST", "/payments", body, Idempotency_Key=f"bad-{number}") == 400
        assert asked("POST", OFF, body) == 400
    assert asked("POST", OFF, b" " * 70_000) == 413
    assert asked("POST", "/payments", b" " * 70_000, Idempotency_Key="large") == 413
    assert asked("POST", OFF, b'{"amount": 1}', Demo_Fault="fire") == 400
    assert asked("GET", "/bank?account=a/b", Account="") == 400
    assert asked("GET", "/nothing") == 404
    refused = demo.send("DELETE", "/payments", b"", {})
    assert (refused.status, refused.headers["allow"]) == (405, "POST")
    assert demo.resolve(account, "never").status == 404
    assert asked("POST", "/operator/resolve", b'{"key": ""}') == 400
    assert demo.get(f"/bank?account={account}").json["count"] == 0


def test_documents_say_what_the_service_does(demo: Demo, account: str) -> None:
    api = demo.get("/openapi.json").json
    assert set(api["paths"]) == {"/payments", OFF, "/bank", "/record", "/operator/resolve"}
    protected, free = api["paths"]["/payments"]["post"], api["paths"][OFF]["post"]
    required = {each["name"]: each.get("required", False) for each in protected["parameters"]}
    assert required == {"Account": False, "Idempotency-Key": True}
    assert {"201", "400", "409", "413", "422"} <= set(protected["responses"])
    assert not {"409", "422"} & set(free["responses"])
    policy = demo.get("/.well-known/idempotency").json
    assert policy["operations"] == [
        {"match": f"POST {OFF}", "exempt": True},
        {"match": "everything else", "methods": ["PATCH", "POST", "PUT"], "required": True},
    ]
    receipt = demo.pay(account, "k").json
    assert set(receipt) == set(api["components"]["schemas"]["Receipt"]["required"])
    assert set(demo.get("/bank").json) == set(api["components"]["schemas"]["Statement"]["required"])


def test_the_page_needs_nothing_from_elsewhere(demo: Demo) -> None:
    page = demo.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert not re.search(rb"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=", page.body)
    for file in files("semel.demo").joinpath("static").iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "").replace("sqlite:///", "")
        assert not re.search(r"(https?:)?//[a-z0-9]", text.replace("// ", "")), file.name
        if file.name != "index.html":
            assert demo.get(f"/{file.name}").body == file.read_bytes()
    loaded = re.findall(rb'(?:src|href)="(/[^"]+)"', page.body)
    assert {demo.get(path.decode()).status for path in loaded} == {200}
