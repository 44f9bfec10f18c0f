"""Keys, tenants, fingerprints, directives and monitors, before any front."""

from contextlib import suppress
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel import Fingerprint, Policy, RequestParts, StoreMisconfigured, StoreUnavailable
from semel.core.correlation import trace_of
from semel.core.decisions import NotStored, Run, Superseded, Undecided
from semel.core.http import Response
from semel.core.protocol import claim_for
from semel.core.records import Key, Lease, Result
from semel.core.tables import Ending
from semel.http.gate import Admitted, Gate
from semel.http.monitors import Monitored

REQUEST = RequestParts("POST", "/pay", "a=1", ((b"x", b"1"),), b'{"a":1}')
GATE = Gate(Policy(), secret="a secret of the tests")
ANSWERS = GATE.answers()


def key(policy: Policy, tenant: str | None = "t", request: RequestParts = REQUEST) -> Key:
    return GATE.key(Admitted(policy, "n"), tenant, request)


def owner(*headers: tuple[bytes, bytes]) -> str:
    return GATE.claim(Admitted(Policy(), "n"), "t", other(headers=headers)).owner


def other(**changes: object) -> RequestParts:
    parts = {name: getattr(REQUEST, name) for name in ("method", "path", "query", "headers", "body")}
    return RequestParts(**(parts | changes))


def test_scopes() -> None:
    assert key(Policy()).scope == "POST /pay"
    assert key(Policy(scope="tenant")).scope == ""
    assert key(Policy(scope=lambda request: "POST /pay")).scope == "=POST /pay"
    assert key(Policy(scope=lambda request: b"\xff")) == key(Policy(scope=lambda request: "\xff"))
    assert key(Policy(), None).tenant == ""


def test_keys_of_different_hosts_do_not_meet_where_the_policy_says_so() -> None:
    acme, beta = (other(headers=((b"host", name),)) for name in (b"Acme.example:443", b"beta.example"))
    apart = Policy(per_host=True)
    assert key(apart, request=acme).scope == "POST //acme.example/pay"
    assert key(Policy(per_host=True, scope="tenant"), request=acme).scope == "//acme.example"
    assert key(Policy(per_host=True, scope=lambda request: "x"), request=acme).scope == "=//acme.example/x"
    assert key(apart).scope == "POST ///pay", "no host is one of them"
    assert key(Policy(), request=acme) == key(Policy(), request=beta), "by default one service has many names"
    for policy in (apart, Policy(), Policy(per_host=True, scope="tenant")):
        claim = GATE.claim(Admitted(policy, "n"), "t", acme)
        assert claim.key == key(policy, request=acme), "both ways to a key lead to the same one"


class Shop(str, Enum):  # noqa: UP042
    """An f-string of a member gives its name in Python."""

    NORTH = "north"


def test_text_of_a_subclass_is_taken_as_its_characters() -> None:
    assert key(Policy(scope=lambda request: Shop.NORTH), Shop.NORTH) == Key("north", "=north", "n")
    claimed = GATE.claim(Admitted(Policy(), "n"), Shop.NORTH, REQUEST).key
    assert (claimed, type(claimed.tenant)) == (Key("north", "POST /pay", "n"), str)
    assert GATE.caller(Shop.NORTH, None) == "user.north"
    chosen = [GATE.fingerprint(Policy(fingerprint=lambda request: text), REQUEST) for text in (Shop.NORTH, "north")]  # noqa: B023
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize("field", ["scope", "fingerprint"])
def test_a_choice_that_is_no_text_is_named(field: str) -> None:
    choose: Any = lambda request: None  # noqa: E731
    with pytest.raises(TypeError, match=f"the {field} must be text, not NoneType"):
        GATE.claim(Admitted(Policy(**{field: choose}), "n"), "t", REQUEST)


def test_what_a_key_cannot_keep_is_represented_by_its_digest_which_nothing_can_imitate() -> None:
    long = key(Policy(), "x" * 256)
    assert long.tenant.startswith("sha256:")
    assert key(Policy(), long.tenant).tenant != long.tenant
    assert key(Policy(), "a\nb").tenant.startswith("sha256:")
    assert key(Policy(), "\ud800").tenant != key(Policy(), "\ud801").tenant
    assert key(Policy(), request=other(path="/" + "x" * 5000)).scope.startswith("sha256:")


def test_an_identity_that_is_no_text_is_named() -> None:
    with pytest.raises(TypeError, match="identify="):
        GATE.tenant_of(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"method": "PUT"}, {"path": "/p"}, {"query": "a=2"}, {"body": b"{}"}])
def test_each_part_makes_another_request(change: dict[str, object]) -> None:
    assert GATE.fingerprint(Policy(), REQUEST) != GATE.fingerprint(Policy(), other(**change))


def test_fingerprints_of_chosen_parts() -> None:
    chosen = Policy(fingerprint=Fingerprint(body="json", exclude=("/b",), headers=("X",), query=False))
    same = other(query="z", body=b'{"b":2, "a":1.0}')
    assert GATE.fingerprint(chosen, REQUEST) == GATE.fingerprint(chosen, same)
    assert GATE.fingerprint(chosen, REQUEST) != GATE.fingerprint(chosen, other(headers=((b"x", b"2"),)))
    assert GATE.fingerprint(Policy(fingerprint="json"), REQUEST) == GATE.fingerprint(
        Policy(fingerprint="json"), other(body=b' {"a":1e0}')
    )
    nothing = Policy(fingerprint=Fingerprint(body=None))
    assert GATE.fingerprint(nothing, REQUEST) == GATE.fingerprint(nothing, other(body=b""))


def test_the_secret_keys_the_fingerprint() -> None:
    assert GATE.fingerprint(Policy(), REQUEST) != Gate(Policy(), secret=b"another secret of the tests").fingerprint(
        Policy(), REQUEST
    )
    assert GATE.bearer(b"Bearer x") != Gate(Policy()).bearer(b"Bearer x")


def test_a_chosen_fingerprint_under_one_key_for_all_endpoints_still_tells_them_apart() -> None:
    everywhere = Policy(scope="tenant", fingerprint=lambda request: "same")
    assert GATE.fingerprint(everywhere, REQUEST) != GATE.fingerprint(everywhere, other(path="/refund"))
    here = Policy(fingerprint=lambda request: b"same")
    assert GATE.fingerprint(here, REQUEST) == GATE.fingerprint(here, other(body=b"x"))


def test_the_owner_carries_the_correlation_and_stays_short() -> None:
    trace = [(b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), (b"x-request-id", b"r" * 99)]
    assert trace_of(owner(*trace)) == (0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)
    assert len(owner(*trace)) <= 64
    assert owner((b"x-request-id", b"a b\xff")).endswith(".a_b_")
    assert len(owner(trace[1])) <= 64
    assert owner((b"traceparent", b"odd")).endswith(".odd")
    assert owner() != owner()


@given(
    tenant=st.none() | st.text(max_size=300),
    path=st.text(max_size=300),
    body=st.binary(max_size=40),
    scope=st.sampled_from(["endpoint", "tenant"]),
    fingerprint=st.sampled_from(["raw", "json"]),
    secret=st.sampled_from([None, "a secret of the tests"]),
)
def test_a_claim_is_what_its_parts_say(
    tenant: str | None, path: str, body: bytes, secret: str | None, **of: Any
) -> None:
    """The usual request is claimed without asking for them one by one."""
    gate, policy, request = Gate(Policy(), secret=secret), Policy(**of), other(path=path, body=body)
    with suppress(UnicodeEncodeError):  # no server gives a path with half a character
        made = gate.claim(admitted := Admitted(policy, "n"), tenant, request)
        assert made.key == gate.key(admitted, tenant, request)
        assert made.fingerprint == gate.fingerprint(policy, request)
        assert made == claim_for(made.key, made.fingerprint, made.owner, policy)


def answered(
    status: int = 200, directive: bytes | None = None, **changes: object
) -> tuple[Ending, Result | None, int | None]:
    headers = ((b"a", b"1"), *(((b"Semel-Directive", directive),) if directive else ()))
    done = ANSWERS.answered(Response(status, headers, b"x"), Policy(retention=100), nothing_done=False)
    assert done.response.headers == ((b"a", b"1"),)
    return done.ending, done.result, done.kept_ms


def test_directives() -> None:
    assert answered()[2] is None
    assert answered(directive=b"retention=5")[2] == 5_000
    assert answered(directive=b"retention=0")[2] == 1
    assert answered(directive=b"retention=100000")[2] == 100_000
    ending, result, kept_ms = answered(directive=b" not-kept , retention=5")
    assert (ending, kept_ms) == (Ending.TOO_LARGE, 5_000)
    assert result is not None
    assert result.payload == b""
    assert answered(503, b"not-kept")[:2] == (Ending.REFUSED, None)
    with pytest.raises(ValueError, match="retention=SECONDS"):
        answered(directive=b"store=no")


def test_too_large_keeps_whether_it_was_a_success() -> None:
    large = ANSWERS.too_large(Response(404, (), b""), Policy(), nothing_done=False)
    assert (large.ending, large.result is not None and large.result.ok) == (Ending.TOO_LARGE, False)
    assert ANSWERS.too_large(Response(200, (), b""), Policy(), nothing_done=True).ending is Ending.NOTHING_DONE


def test_what_is_refused_at_start_up() -> None:
    with pytest.raises(StoreMisconfigured, match="exactly-once"):
        Gate(Policy(guarantee="exactly-once"))
    with pytest.raises(StoreMisconfigured, match='on_store_error="closed"'):
        Gate(Policy(guarantee="exactly-once", on_store_error="open"), in_transactions=True)
    with pytest.raises(StoreMisconfigured, match="secret="):
        Gate(Policy(in_flight="accept"))


def test_monitors() -> None:
    wanted = Monitored(Key("t", "POST /pay", 'n"é'), "1.fingerprint")
    path = GATE.monitors.link(wanted)
    assert GATE.monitors.find(path) == wanted
    token, _, signature = path.rpartition("/")[2].partition(".")
    forged = Gate(Policy(), secret="another secret of the tests").monitors.link(wanted)
    for bad in (
        forged,
        path[:-1],
        path + "x",
        path.replace(token, token[:-2] + "xx"),
        path.replace(signature, "é"),
        "/elsewhere",
    ):
        assert GATE.monitors.find(bad) is None
    assert Gate(Policy()).monitors.find(path) is None


def test_answers_of_a_superseded_owner_say_nothing_false() -> None:
    done = ANSWERS.answered(Response(200, (), b""), Policy(), nothing_done=False)
    gone = StoreUnavailable("gone")
    answer = ANSWERS.settled(Superseded(Undecided(gone)), done)
    assert answer.status == 503
    assert b"Nothing was run" not in answer.body
    assert ANSWERS.settled(NotStored(gone), done).headers == ((b"idempotency-stored", b"false"),)
    with pytest.raises(ValueError, match="granted"):
        ANSWERS.answer(Run(Lease(Key("", "", "n"), "o", 1, 0)))


def test_a_mark_s_policy_is_checked_once() -> None:
    gate = Gate(Policy())
    mark = Policy(required=True)
    checked: list[Policy] = []
    check = gate._check
    gate._check = lambda policy: (checked.append(policy), check(policy))[1]  # type: ignore[method-assign, func-returns-value]
    for _ in range(3):
        assert gate.admit("POST", "/pay", [], mark) is not None
        gate.admit("POST", "/pay", [], Policy(required=True))
    assert [each is mark for each in checked].count(True) == 1


def test_who_calls_where_nobody_says_it() -> None:
    assert GATE.caller("7", b"Bearer x") == "user.7"
    assert GATE.caller(None, b"Bearer x") == GATE.bearer(b"Bearer x")
    assert GATE.caller(None, None) is None


def test_the_warning_says_what_is_stored_of_credentials() -> None:
    told = Gate(Policy()).unidentified("no identify", "Pass it.")
    assert told.startswith("no identify: ")
    assert "plain SHA-256" in told
    assert told.endswith("Pass it.")
    assert "SHA-256" not in GATE.unidentified("no identify", "Pass it.")


@pytest.mark.parametrize(
    ("root", "base"), [("", ""), ("/", ""), ("/api/", "/api"), ("/caf\xe9\r\nX: y", "/caf%C3%A9%0D%0AX:%20y")]
)
def test_links_begin_with_the_root(root: str, base: str) -> None:
    problem = GATE.answers(root).problem("key-missing")
    assert dict(problem.headers)[b"link"] == f'<{base}/.well-known/idempotency>; rel="describedby"'.encode()
    accepted = GATE.monitors.accepted(Monitored(Key("t", "s", "n"), "f"), GATE.answers(root))
    assert dict(accepted.headers)[b"location"].startswith(f"{base}/.well-known/idempotency/operations/".encode())
