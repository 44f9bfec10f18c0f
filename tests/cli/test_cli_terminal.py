"""What records, servers and callers contain cannot play with the terminal, as text or as JSON."""

from __future__ import annotations

import json

import pytest

from cli.calls import claimed, run, run_json
from semel import Key
from semel.codecs.terminal import json_text, visible, visible_lines
from semel.probe.judge import Mark, ProbeVerdict
from semel.probe.report import as_json, as_text
from semel.probe.wire import ProbeRequest
from semel.store import Store

HOSTILE = {
    "C0": "\x1b[2J",
    "C1": "\x9b2J",
    "DEL": "\x7f",
    "next line": "\x85",
    "right to left": "\u202e",
    "isolate": "\u2066",
    "line separator": "\u2028",
    "tag beyond the first plane": "\U000e0041",
    "lone surrogate": "\udc9b",
}
each = pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())


def harmless(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


@each
@pytest.mark.parametrize("indent", [None, 2])
def test_json_is_harmless_and_the_same_document(hostile: str, indent: int | None) -> None:
    document = {f"é{hostile}": [hostile, {"🙂": f"a\n{hostile}b"}]}
    text = json_text(document, indent=indent)
    assert harmless(text)
    assert json.loads(text) == document
    assert "é" in text, "what can be read stays readable"
    assert harmless(visible(hostile))
    assert harmless(visible_lines(f"a\n{hostile}"))


@pytest.mark.parametrize("hostile", [text for name, text in HOSTILE.items() if name != "lone surrogate"])
def test_commands_print_harmless_text_and_json(file_url: str, file_store: Store, hostile: str) -> None:
    key = Key(f"shop{hostile}", f"POST /{hostile}", f"order{hostile}")
    claimed(file_store, key)
    for words in (("keys", "list", "--names"), ("keys", "show", key.name, "--names"), ("stats",)):
        assert harmless(run(*words, store=file_url).output)
        assert harmless(run(*words, "--json", store=file_url).output)
    assert run_json("keys", "list", "--names", store=file_url)["records"][0]["name"] == key.name
    tailed = run("tail", "--names", "--json", "--from-start", "--events", "1", store=file_url)
    assert harmless(tailed.output)
    assert json.loads(tailed.output)["name"] == key.name


@each
def test_a_service_that_is_tried_cannot_play_with_the_terminal_either(hostile: str) -> None:
    request = ProbeRequest("POST", "http://127.0.0.1/pay", (), b"")
    verdicts = [ProbeVerdict("repeat", Mark.WRONG, f"answered {hostile}", f"why {hostile}", "")]
    assert harmless(as_text(verdicts, request, counted=True))
    text = as_json(verdicts, request, counted=True)
    assert harmless(text)
    assert hostile in json.loads(text)["tries"][0]["seen"]
