"""The rules file and the settings: what they mean, and what an error says to the person who wrote them."""

import base64
import json
import pickle
import re
from datetime import timedelta
from pathlib import Path

import pytest

from semel import Fingerprint, Policy
from semel.gateway import GatewaySettings, SettingsInvalid, read_rules
from semel.gateway.rules import TenantTable, parse_rules
from semel.gateway.tenants import identify_by
from semel.http.gate import Gate

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "gateway" / "semel.toml"


def test_a_rule_starts_from_the_policy_of_the_file() -> None:
    rules = parse_rules(
        """
        [policy]
        retention = "48h"
        headers = ["Idempotency-Key", "Request-Id"]

        [[rules]]
        match = "POST /payments/{id}"
        required = true
        lease = 5
        quota = "600/minute"
        fingerprint = { body = "json", exclude = ["/sent_at"] }

        [[rules]]
        match = "/webhooks/"
        exempt = true
        """,
        "semel.toml",
    )
    payments, webhooks = rules.rules
    assert rules.policy == Policy(retention=timedelta(days=2), headers=("Idempotency-Key", "Request-Id"), per_host=True)
    assert payments.policy is not None
    assert (payments.policy.retention_ms, payments.policy.lease_ms) == (172_800_000, 5_000)
    assert (payments.policy.required, payments.policy.quota) == (True, "600/minute")
    assert payments.policy.fingerprint == Fingerprint(body="json", exclude=("/sent_at",))
    assert payments.policy.per_host, "the upstream may choose by the host, which it gets"
    assert webhooks.policy is None
    assert rules.key_headers == {b"idempotency-key", b"request-id"}
    assert pickle.loads(pickle.dumps(rules)) == rules, "workers are told by a pipe"


def test_one_service_of_many_names_has_one_scope_for_them() -> None:
    rules = parse_rules('[policy]\nper_host = false\n[[rules]]\nmatch = "/a/"\nper_host = true', "semel.toml")
    assert (rules.policy.per_host, [rule.policy and rule.policy.per_host for rule in rules.rules]) == (False, [True])
    assert read_rules(None).policy.per_host, "also without a file"


def test_the_example_is_right_and_shows_every_table() -> None:
    rules = read_rules(EXAMPLE)
    assert (len(rules.rules) >= 3, rules.tenant is not None) == (True, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = ", "f.toml: this is not TOML: "),
        ("rule = 1", "f.toml: top level: object contains unknown field `rule`; allowed are [policy], [[rules]], ["),
        ("policy = 1", "f.toml: [policy]: expected `object`, got `int`"),
        ("[tenant]\nclaim = 1", "f.toml: [tenant]: object contains unknown field `claim`; allowed are header, "),
        ("[tenant]\nheader = 1", "f.toml: [tenant] header: expected `str | null`, got `int`"),
        ("[tenant]", 'f.toml, [tenant]: give either header = "X-Account" or jwt_claim = "sub"'),
        ('[tenant]\nheader="a"\njwt_claim="b"', "f.toml, [tenant]: give either"),
        ('[policy]\nretenion = "1h"', "f.toml, [policy]: unknown field retenion (did you mean retention?); allowed"),
        ('[policy]\nin_flight = "queue"', "f.toml, [policy], in_flight: expected 'reject', 'wait', 'accept', not 'q"),
        ('[policy]\nretention = "1 fortnight"', 'f.toml, [policy], retention: expected seconds, or text like "30s"'),
        pytest.param(f"x = {'9' * 5000}", "f.toml: this is not TOML: ", id="a number of 5000 digits"),
        pytest.param(f"x = {'[' * 100000}", "f.toml: this is not TOML: ", id="nesting without end"),
        pytest.param(f'[policy]\nlease = "{"9" * 400}d"', "is longer than anything can be kept", id="for ever"),
        ("[policy]\nper_host = 1", "f.toml, [policy], per_host: expected True or False, not 1"),
        ("[policy]\nrequired = 1", "f.toml, [policy], required: expected True or False, not 1"),
        ('[policy]\nmethods = ["GET"]', "f.toml, [policy], methods: GET: safe methods are never touched"),
        ('[policy]\nguarantee = "exactly-once"', "f.toml, [policy], guarantee: a gateway is not part of the"),
        ('[policy]\nfingerprint = { boddy = "raw" }', "f.toml, [policy], fingerprint: Object contains unknown field"),
        ("[[rules]]\nrequired = true", "f.toml, [[rules]] 1: match is missing"),
        ('[[rules]]\nmatch = "POST"', "f.toml, [[rules]] 1 (POST): Rule 'POST': write a path"),
        ('[[rules]]\nmatch = "/a"\nexempt = 1', "f.toml, [[rules]] 1 (/a), exempt: expected true or false, not 1"),
        ('[[rules]]\nmatch = "/a"\nexempt = true\nlease = 1', "f.toml, [[rules]] 1 (/a): an exempt rule has no policy"),
        ('[[rules]]\nmatch = "/a"\n[[rules]]\nmatch = "/b"\nquota = "1/week"', "f.toml, [[rules]] 2 (/b), quota: "),
    ],
)  # fmt: skip
def test_an_error_names_file_table_and_field(text: str, said: str) -> None:
    with pytest.raises(SettingsInvalid, match=re.escape(said)):
        parse_rules(text, "f.toml")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"--rules .*: it cannot be read: "):
        read_rules(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'x = "\xe9"')
    with pytest.raises(SettingsInvalid, match=r"--rules .*: it cannot be read: "):
        read_rules(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"upstream": "127.0.0.1:3000"}, "--upstream '127.0.0.1:3000': write http://host:port"),
        ({"upstream": "http://u:p@host"}, "--upstream"),
        ({"upstream": "http://host:99999"}, "--upstream"),
        ({"upstream": "http://["}, "--upstream"),
        ({"secret": ""}, "--secret is empty"),
        ({"secret": "abc"}, "--secret has 3 bytes, and at least 16 are needed: make one with"),
        ({"store": "memory://"}, "--store memory://: a worker that dies would forget its keys"),
        ({"listen": "8080"}, "--listen '8080': write host:port"),
        ({"listen": "::1:80"}, "--listen"),
        ({"admin": "localhost:99999"}, "--admin"),
        ({"workers": 0}, "--workers 0: 1 to 256"),
        ({"timeout_s": 0}, "--timeout 0: over 0"),
        ({"connect_timeout_s": -1}, "--connect-timeout -1: over 0"),
        ({"keepalive_s": -1}, "--keepalive -1: 0 for a connection"),
        ({"downstream_key": "x"}, "--downstream-key 'x': derived, caller, none"),
        ({"host": "x"}, "--host 'x': caller, upstream"),
        ({"publish": "policy"}, "--publish 'policy': a path that starts with a slash, or none"),
        ({"head_timeout_s": 0}, "--head-timeout 0: over 0, at most a day"),
        ({"body_timeout_s": -1}, "--body-timeout -1: over 0"),
        ({"idle_timeout_s": 1e9}, "--idle-timeout 1000000000.0: over 0"),
        ({"send_timeout_s": float("nan")}, "--send-timeout nan: over 0"),
        ({"body_rate": 0}, "--body-rate 0: at least 1 byte a second"),
        ({"connections_max": 0}, "--connections-max 0: 1 to 1000000"),
    ],
)
def test_a_wrong_setting_names_its_option(wrong: dict[str, object], said: str) -> None:
    good: dict[str, object] = {"upstream": "http://host:1/", "store": "sqlite:///x.db", "listen": "[::1]:0"}
    assert GatewaySettings(**good).base == "http://host:1"  # type: ignore[arg-type]
    with pytest.raises(SettingsInvalid, match=re.escape(said)):
        GatewaySettings(**good | wrong)  # type: ignore[arg-type]


def token(claims: object) -> bytes:
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (b"{}", json.dumps(claims).encode(), b"x"))


@pytest.mark.parametrize(
    ("authorization", "tenant"),
    [
        (b"Bearer " + token({"sub": "ann"}), "ann"),
        (b"bearer  " + token({"sub": "änn"}), "änn"),
        (b"Bearer " + token({"sub": 17}), "17"),
        (b"Bearer " + token({"sub": ""}), None),
        (b"Bearer " + token({"sub": True}), None),
        (b"Bearer " + token({"sub": ["ann"]}), None),
        (b"Bearer " + token({"name": "ann"}), None),
        (b"Bearer " + token(["ann"]), None),
        (b"Bearer a.b.c", None),
        (b"Bearer a." + base64.urlsafe_b64encode(b"[" * 30_000) + b".c", None),
        (b"Bearer a.!.c", None),
        (b"Bearer " + token({"sub": "ann"}) + b".x", None),
        (b"Basic " + token({"sub": "ann"}), None),
    ],
)
def test_a_claim_of_a_token(authorization: bytes, tenant: str | None) -> None:
    gate = Gate(Policy())
    identify = identify_by(TenantTable(jwt_claim="sub"), gate)
    scope = {"headers": [(b"authorization", authorization)]}
    assert identify(scope) == (tenant or gate.bearer(authorization)), "callers without it are told apart all the same"
    assert identify({"headers": []}) is None
