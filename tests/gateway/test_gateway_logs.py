"""What the log tells an operator: which request, which key, which answer, and no more lines than can be read."""

import json
import logging
import re
import signal
import socket
from collections.abc import Callable, Iterator

import pytest

from gateway.gatewaying import Answer, Asked, GatewayServer, Upstream, request
from semel.core.records import Key
from semel.gateway import GatewaySettings, SettingsInvalid
from semel.gateway.logs import BURST, WINDOW_S, JsonLines, Sums
from semel.gateway.rules import parse_rules
from servers.process import free_port
from waiting import until

TRACE = "0af7651916cd43dd8448eb211c80319c"


def lines(gateway: GatewayServer, **wanted: object) -> list[dict[str, object]]:
    """The lines with these fields."""
    found = [json.loads(line) for line in gateway.said().splitlines()]
    return [line for line in found if wanted.items() <= line.items()]


def logged(gateway: GatewayServer, **wanted: object) -> list[dict[str, object]]:
    return until(lambda: lines(gateway, **wanted), f"{wanted} is not logged")


def cut(upstream: Upstream, asked: Asked, connection: socket.socket) -> bool:
    return False


@pytest.fixture(scope="module")
def logging_json(running: tuple[GatewayServer, Upstream]) -> Iterator[GatewayServer]:
    with GatewayServer(running[1].port, "--log-format", "json", "--log-level", "debug") as gateway:
        yield gateway


def test_every_problem_is_in_the_log_with_its_instance_and_its_request(
    logging_json: GatewayServer, upstream: Upstream, key: str
) -> None:
    gateway = logging_json
    upstream.behaviours["/cut"] = cut
    asked: dict[str, Callable[[], Answer]] = {
        "key-malformed": lambda: gateway.post("/pay?token=hush", "a, b", b"{}", "X-Request-Id: req 1"),
        "interrupted": lambda: gateway.post(
            "/cut?token=hush", key, b"{}", f"traceparent: 00-{TRACE}-b7ad6b7169203331-01"
        ),
        "in-progress": lambda: gateway.post("/cut?token=hush", key, b"{}"),
    }
    for kind, ask in asked.items():
        answer = ask()
        [line] = logged(gateway, instance=json.loads(answer.body)["instance"])
        assert (line["problem"], line["status"], line["method"]) == (kind, answer.status, "POST")
        assert line["path"] in ("/pay", "/cut")
        assert line.get("key") == (None if kind == "key-malformed" else Key("", "", key).name_digest)
        assert line.get("request") == {"key-malformed": "req_1", "interrupted": TRACE}.get(kind)
    [line] = lines(gateway, problem="interrupted")
    assert line["level"] == "warning"
    assert str(line["why"]).startswith("the request was passed on and not answered: ")
    assert "hush" not in gateway.said()
    assert key not in gateway.said()
    assert f'"event": "claimed", "key": "{Key("", "", key).name_digest}"' in gateway.said(), "debug has the events"


def test_an_answer_that_breaks_off_and_a_caller_who_sends_rubbish_are_in_the_log(
    logging_json: GatewayServer, upstream: Upstream, key: str
) -> None:
    def half(behind: Upstream, asked: Asked, connection: socket.socket) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        return False

    upstream.behaviours[f"/{key}"] = half
    with pytest.raises(Exception, match=r"IncompleteRead|reset"):
        logging_json.ask("GET", f"/{key}?token=hush")
    [line] = logged(logging_json, path=f"/{key}")
    assert (line["level"], "status" in line) == ("warning", False)
    with logging_json.open() as connection:
        connection.sendall(f"GET /{key}/2?token=hush HTTP/1.1\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 400"
    [line] = logged(logging_json, path=f"/{key}/2")
    assert (line["status"], line["why"]) == (400, "There must be exactly one Host header.")
    assert "hush" not in logging_json.said()


def test_a_problem_of_the_upstream_is_not_the_gateways(
    logging_json: GatewayServer, upstream: Upstream, key: str
) -> None:
    def problem(behind: Upstream, asked: Asked, connection: socket.socket) -> bool:
        head = b"HTTP/1.1 500 X\r\nContent-Type: application/problem+json\r\nContent-Length: 2\r\n\r\n"
        connection.sendall(head + b"{}")
        return True

    upstream.behaviours[f"/{key}"] = problem
    for _ in range(2):
        assert logging_json.post(f"/{key}", key).status == 500
    assert not lines(logging_json, path=f"/{key}")


def test_an_outage_does_not_flood_the_log() -> None:
    """In lines of text, which are the default. The last one is written when the gateway stops, if not before."""
    with GatewayServer(free_port()) as gateway:
        asking = request("POST", "/pay?token=hush", b"{}", "X-Request-Id: abc").replace(b"close", b"keep-alive")
        with gateway.open() as connection:
            for _ in range(60):
                connection.sendall(asking)
                received = b""
                while b"unreachable" not in received or not received.endswith(b"}"):
                    received += connection.recv(65_536)
        gateway.tell(signal.SIGTERM)
        assert gateway.ended() == 0
        found = [line for line in gateway.said().splitlines() if "502 unreachable" in line]
    assert len(found) <= 60 // 10 + BURST
    assert re.search(
        r"\dZ \d+ WARNING semel\.gateway: POST /pay: 502 unreachable: the upstream cannot be reached: .* "
        r"request=abc instance=urn:uuid:",
        found[0],
    )
    assert "hush" not in "".join(found)
    more = [
        int(count) for line in found for count in re.findall(r"502 unreachable: (\d+) more in the last \d+\.\d s", line)
    ]
    assert len(found) - len(more) + sum(more) == 60, found


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._due.append((self.now + delay_s, call))

    def go(self, seconds: float) -> None:
        self.now += seconds
        for due in [due for due in self._due if due[0] <= self.now]:
            self._due.remove(due)
            due[1]()


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture
def summed() -> Iterator[tuple[logging.Logger, Kept, Clock]]:
    logger, kept, clock = logging.getLogger("semel.gateway.test"), Kept(), Clock()
    kept.addFilter(Sums(clock, clock.call_later))
    logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    yield logger, kept, clock
    logger.removeHandler(kept)


def test_lines_of_one_kind_are_summed(summed: tuple[logging.Logger, Kept, Clock]) -> None:
    logger, kept, clock = summed
    for number in range(100):
        logger.warning("a failed with %d", number)
        logger.info("%d is ready", number)
    logger.warning("b failed")
    assert kept.said == [
        *(text for number in range(BURST) for text in (f"a failed with {number}", f"{number} is ready")),
        *(f"{number} is ready" for number in range(BURST, 100)),
        "b failed",
    ]
    clock.go(WINDOW_S)
    assert kept.said[-1] == f"a failed with %d: {100 - BURST} more in the last {WINDOW_S:.1f} s"
    logger.warning("a failed with %d", 7)
    assert kept.said[-1] == "a failed with 7", "another window"
    clock.go(2 * WINDOW_S)
    assert kept.said[-1] == "a failed with 7"


def test_a_line_of_json_has_its_exception_and_no_line_end() -> None:
    try:
        raise ValueError("why\nnot")
    except ValueError as error:
        record = logging.LogRecord(
            "n", logging.ERROR, "f", 1, "it\nfailed", (), (ValueError, error, error.__traceback__)
        )
    text = JsonLines().format(record)
    assert "\n" not in text
    assert json.loads(text)["exception"].endswith("ValueError: why\nnot")


def test_unknown_values_are_refused() -> None:
    with pytest.raises(SettingsInvalid, match="--log-level 'loud': debug, info, warning, error"):
        GatewaySettings(upstream="http://h", store="sqlite:///x.db", log_level="loud")  # type: ignore[arg-type]
    with pytest.raises(
        SettingsInvalid, match=r"f.toml: \[log\] format: invalid enum value 'xml'; allowed are text, json"
    ):
        parse_rules('[log]\nformat = "xml"', "f.toml")
    with pytest.raises(SettingsInvalid, match=r"f.toml: \[log\].* unknown field `levl`; allowed are format, level"):
        parse_rules('[log]\nlevl = "info"', "f.toml")


def test_the_rules_file_may_say_how_to_log_and_a_reload_changes_it(upstream: Upstream, key: str) -> None:
    with GatewayServer(upstream.port, rules='[log]\nformat = "json"\n') as gateway:
        assert gateway.post("/pay", key).status == 201
        assert gateway.post("/pay", "a, b").status == 400
        assert logged(gateway, status=400)
        assert not lines(gateway, event="claimed")
        gateway.rules.write_text('[log]\nformat = "json"\nlevel = "debug"\n')
        gateway.tell(signal.SIGHUP)
        until(lambda: gateway.post("/pay", key).status == 201 and lines(gateway, event="replayed"), "it is not logged")
