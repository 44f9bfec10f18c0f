"""Everything that reads what others wrote, each as a function of bytes that raises when a promise is broken.

The promises: nothing is raised but the documented error; what was read is within its bounds; what is written again
reads the same; two spellings of one thing are one thing. `run.py` feeds these to a coverage-guided fuzzer, and
`test_targets.py` to Hypothesis, together with the corpus that the fuzzer has found.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from semel import Fingerprint, Key, Policy, Record, RecordUnreadable, RequestParts, Result, StoreMisconfigured
from semel.codecs import responses
from semel.codecs.canonical import canonical_json
from semel.codecs.origins import Origin
from semel.codecs.seal import FORMAT, Seal
from semel.conditional import ETag, Malformed, refusal, tags
from semel.core.http import Response
from semel.core.keys import KeyMalformed, parse_key, read_key
from semel.core.prefer import WAIT_S_MAX, respond_async
from semel.gateway.rules import parse_rules
from semel.gateway.settings import SettingsInvalid
from semel.http.gate import Admitted, Gate
from semel.http.monitors import Monitors
from semel.stores.paging import cursor_of, key_after
from semel.stores.redis import layout
from semel.stores.sql.rows import COLUMNS, to_record
from semel.stores.url import StoreUrl

Target = Callable[[bytes], None]
ANY, STRICT = Policy(), Policy(key_format="strict")
POLICIES = (ANY, STRICT, Policy(key_format="uuid"), Policy(key_format="ulid"))
GATE = Gate(ANY, secret=b"a secret of the tests" * 32)
MONITORS = Monitors("/.well-known/idempotency", b"s" * 32)
SEAL = Seal({"k": b"k" * 32})
KEY = Key("tenant", "POST /pay", "name")
ORIGIN = Origin(KEY, "v1:same", 1, "owner")
OWNER = re.compile(r"(?=.{20,64}$)[!-+\--~]{20,22}(\.[0-9A-Za-z._-]{0,43})?")


def key_value(data: bytes) -> None:
    """One header value: a key within its bounds, the same in each of its spellings, or refused."""
    for policy in POLICIES:
        try:
            name = parse_key(data, policy)
        except KeyMalformed:
            continue
        assert 1 <= len(name) <= 255
        assert name.isascii()
        assert name.isprintable()
        quoted = b'"' + re.sub(rb'(["\\])', rb"\\\1", name.encode()) + b'"'
        for spelling in (quoted, b" \t" + data + b"\t ", quoted + b";a=1"):
            assert parse_key(spelling, policy) == name


def key_headers(data: bytes) -> None:
    """All headers of a request: at most one key, whatever else there is."""
    headers = [(name.strip(), value) for name, _, value in (line.partition(b":") for line in data.split(b"\n"))]
    with contextlib.suppress(KeyMalformed):
        name = read_key(headers, ANY)
        given = sum(header.lower() in ANY.header_names for header, _ in headers)
        assert (name is None) == (given == 0)
        assert given <= len(ANY.header_names), "the same header twice is never one key"


def prefer(data: bytes) -> None:
    wait_s = respond_async([(b"prefer", data)])
    assert wait_s is None or 0 <= wait_s <= WAIT_S_MAX


def preconditions(data: bytes) -> None:
    """Entity tags and dates: a verdict, or Malformed; tags that were read are written and read again."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    for name in (b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since"):
        for method in ("GET", "POST"):
            with contextlib.suppress(Malformed):
                assert refusal(method, [(name, data)], ETag("v1"), modified=moment) in (None, 304, 412)
    with contextlib.suppress(Malformed):
        found = tags(data.decode("latin-1"))
        assert tags(", ".join(map(str, found))) == found


def stored_answer(data: bytes) -> None:
    try:
        response = responses.decode(Result(responses.FORMAT, data))
    except RecordUnreadable:
        return
    assert isinstance(response, Response)
    assert responses.decode(responses.encode(response, ok=True)) == response


def redis_record(data: bytes) -> None:
    for key in (None, KEY):
        with contextlib.suppress(RecordUnreadable):
            _is_a_record(layout.to_record(data, key))


def sql_record(data: bytes) -> None:
    """A row of any values that a database may give."""
    try:
        row = msgspec.msgpack.decode(data)
    except (ValueError, RecursionError):
        return
    if isinstance(row, list) and len(row) == len(COLUMNS):
        with contextlib.suppress(RecordUnreadable):
            _is_a_record(to_record(tuple(row)))


def _is_a_record(record: Record) -> None:
    assert Key(record.key.tenant, record.key.scope, record.key.name) == record.key
    assert record.result is None or isinstance(record.result.payload, bytes)


def sealed_result(data: bytes) -> None:
    with contextlib.suppress(RecordUnreadable):
        SEAL.open(ORIGIN, Result(FORMAT, data))
        raise AssertionError("it opened, and nobody had sealed it")
    assert SEAL.open(ORIGIN, SEAL.seal(ORIGIN, Result("text", data))) == Result("text", data)


def store_url(data: bytes) -> None:
    """A URL and its options are read or refused; the password is shown in neither case."""
    text = data.decode("utf-8", "surrogateescape")
    for whole in (text, f"redis://user:pass-{text}-word@host/0?n=1", f"redis://host?n={text}&flag={text}"):
        try:
            url = StoreUrl.parse(whole)
            shown = url.shown
            url.number("n", 1, least=0, most=10)
            url.flag("flag")
            url.finish()
        except StoreMisconfigured as error:
            shown = str(error)
        if whole.startswith("redis://user:pass-"):
            assert "pass-" not in shown
            assert "-word" not in shown


def canonical(data: bytes) -> None:
    """A canonical form is its own canonical form, or has none: `1e20` is written as an integer, which is not read."""
    spec = Fingerprint(body="json")
    form = canonical_json(data, spec)
    assert form is None or canonical_json(form, spec) in (form, None)


def rules_file(data: bytes) -> None:
    with contextlib.suppress(SettingsInvalid):
        rules = parse_rules(data.decode("utf-8", "surrogateescape"), "rules.toml")
        for rule in rules.rules:
            rule.covers("POST", "/payments/1")


def cursor(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        key = key_after(data.decode("latin-1"))
        assert key is not None
        assert key_after(cursor_of(key)) == key


def monitor(data: bytes) -> None:
    """Only what we signed is a monitor."""
    for path in (data.decode("utf-8", "surrogateescape"), data.decode("latin-1")):
        assert MONITORS.find(f"{MONITORS.path}{path}") is None


def key_parts(data: bytes) -> None:
    """Any caller and any path make a key that every store can keep and every log can show; other ones make others."""
    text = data.decode("utf-8", "surrogateescape")
    request = RequestParts("POST", text, "", (), b"")
    key = GATE.key(Admitted(ANY, "name"), text, request)
    assert key.tenant.isprintable()
    assert key.scope.isprintable()
    assert GATE.key(Admitted(ANY, "name"), f"{text}x", request) != key


def correlation(data: bytes) -> None:
    for name in (b"traceparent", b"x-request-id"):
        request = RequestParts("POST", "/", "", ((name, data),), b"")
        assert OWNER.fullmatch(GATE.claim(Admitted(ANY, "name"), "", request).owner)


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        key_value,
        key_headers,
        prefer,
        preconditions,
        stored_answer,
        redis_record,
        sql_record,
        sealed_result,
        store_url,
        canonical,
        rules_file,
        cursor,
        monitor,
        key_parts,
        correlation,
    )
}
