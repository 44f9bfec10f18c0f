"""Signatures of webhooks: published examples, and every way in which a request is refused."""

import hashlib
import hmac
from base64 import b64encode
from datetime import timedelta

import pytest

from semel.core.signatures import GithubSignature, SignatureFlaw, SignatureScheme, StandardWebhooks, StripeSignature

NOW_MS = 1_700_000_000_000
SECRET, OLD = b"0123456789abcdef01234567", b"another-secret-of-24-byt"
BODY = b'{"type":"order.paid"}'


def text_of(secret: bytes) -> str:
    return f"whsec_{b64encode(secret).decode()}"


def test_the_published_example_of_standard_webhooks_is_verified() -> None:
    scheme = StandardWebhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    headers = scheme.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", body, now_ms=1_614_265_330_000)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert scheme.find_flaw(headers, body, now_ms=1_614_265_330_000) is None


def test_the_example_of_githubs_documentation_is_verified() -> None:
    scheme = GithubSignature("It's a Secret to Everybody")
    given = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert scheme.find_flaw({"x-hub-signature-256": given}, b"Hello, World!", now_ms=NOW_MS) is None
    assert scheme.find_flaw({"x-hub-signature-256": given}, b"Hello, World?", now_ms=NOW_MS) is SignatureFlaw.FORGED


def test_a_secret_is_replaced_without_a_gap() -> None:
    old, both, new = StandardWebhooks(OLD), StandardWebhooks(SECRET, OLD), StandardWebhooks(text_of(SECRET))
    for sender, receiver in ((old, both), (both, old), (both, new), (new, both)):
        assert receiver.find_flaw(sender.sign("m1", BODY, now_ms=NOW_MS), BODY, now_ms=NOW_MS) is None
    assert new.find_flaw(old.sign("m1", BODY, now_ms=NOW_MS), BODY, now_ms=NOW_MS) is SignatureFlaw.FORGED


@pytest.mark.parametrize("away_ms", [-300_000, 300_000])
def test_five_minutes_are_tolerated_both_ways_and_no_more(away_ms: int) -> None:
    scheme, further = StandardWebhooks(SECRET), 1000 if away_ms > 0 else -1000
    headers = scheme.sign("m1", BODY, now_ms=NOW_MS)
    assert scheme.find_flaw(headers, BODY, now_ms=NOW_MS + away_ms) is None
    assert scheme.find_flaw(headers, BODY, now_ms=NOW_MS + away_ms + further) is SignatureFlaw.STALE
    patient = StandardWebhooks(SECRET, tolerance=timedelta(hours=1))
    assert patient.find_flaw(headers, BODY, now_ms=NOW_MS + away_ms + further) is None


@pytest.mark.parametrize(
    ("changed", "flaw"),
    [
        ({"webhook-signature": ""}, SignatureFlaw.UNSIGNED),
        ({"webhook-signature": "  "}, SignatureFlaw.UNSIGNED),
        ({"webhook-signature": "v1a,AAAA"}, SignatureFlaw.MALFORMED),
        ({"webhook-signature": "v1"}, SignatureFlaw.FORGED),
        ({"webhook-signature": "v1,"}, SignatureFlaw.FORGED),
        ({"webhook-signature": "v1,ünïcode"}, SignatureFlaw.FORGED),
        ({"webhook-signature": "v1,\udcff"}, SignatureFlaw.FORGED),
        ({"webhook-signature": "v1,AAAA " * 33}, SignatureFlaw.MALFORMED),
        ({"webhook-id": ""}, SignatureFlaw.MALFORMED),
        ({"webhook-id": "m2"}, SignatureFlaw.FORGED),
        ({"webhook-id": "\udcff"}, SignatureFlaw.FORGED),
        ({"webhook-timestamp": ""}, SignatureFlaw.MALFORMED),
        ({"webhook-timestamp": "yesterday"}, SignatureFlaw.MALFORMED),
        ({"webhook-timestamp": "١٧٠٠٠٠٠٠٠٠"}, SignatureFlaw.MALFORMED),
        ({"webhook-timestamp": "9" * 5000}, SignatureFlaw.MALFORMED),
        ({"webhook-timestamp": "1700000001"}, SignatureFlaw.FORGED),
    ],
)
def test_what_was_changed_on_the_way_is_refused(changed: dict[str, str], flaw: SignatureFlaw) -> None:
    scheme = StandardWebhooks(SECRET)
    headers = scheme.sign("m1", BODY, now_ms=NOW_MS) | changed
    assert scheme.find_flaw(headers, BODY, now_ms=NOW_MS) is flaw


def test_one_fitting_signature_among_others_is_enough() -> None:
    scheme = StandardWebhooks(SECRET)
    headers = scheme.sign("m1", BODY, now_ms=NOW_MS)
    headers["webhook-signature"] = f"v1a,ed25519 v1,AAAA {headers['webhook-signature']}"
    assert scheme.find_flaw(headers, BODY, now_ms=NOW_MS) is None
    assert scheme.find_flaw(headers, BODY + b" ", now_ms=NOW_MS) is SignatureFlaw.FORGED


def stripe_header(secret: bytes, body: bytes = BODY, time: str = "1700000000") -> str:
    signature = hmac.new(secret, time.encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"t={time},v1={signature}"


def test_a_signature_of_stripe_is_verified() -> None:
    scheme = StripeSignature("whsec_used-as-it-stands", OLD)
    assert scheme.id_header is None
    for good in (
        stripe_header(b"whsec_used-as-it-stands"),
        stripe_header(OLD),
        f"{stripe_header(SECRET)},{stripe_header(OLD).partition(',')[2]},v0=abc",
    ):
        assert scheme.find_flaw({"stripe-signature": good}, BODY, now_ms=NOW_MS) is None


@pytest.mark.parametrize(
    ("header", "flaw"),
    [
        ("", SignatureFlaw.UNSIGNED),
        ("v1=00", SignatureFlaw.MALFORMED),
        ("t=1700000000", SignatureFlaw.MALFORMED),
        ("t=1700000000,t=1700000000,v1=00", SignatureFlaw.MALFORMED),
        ("t=1700000000" + ",v1=00" * 33, SignatureFlaw.MALFORMED),
        ("t=now,v1=00", SignatureFlaw.MALFORMED),
        (stripe_header(SECRET, time="1600000000"), SignatureFlaw.STALE),
        (stripe_header(OLD), SignatureFlaw.FORGED),
        (stripe_header(SECRET, b"{}"), SignatureFlaw.FORGED),
    ],
)
def test_a_bad_signature_of_stripe_is_refused(header: str, flaw: SignatureFlaw) -> None:
    assert StripeSignature(SECRET).find_flaw({"stripe-signature": header}, BODY, now_ms=NOW_MS) is flaw


@pytest.mark.parametrize(
    ("header", "flaw"),
    [("", SignatureFlaw.UNSIGNED), ("sha1=00", SignatureFlaw.MALFORMED), ("sha256=", SignatureFlaw.FORGED)],
)
def test_a_bad_signature_of_github_is_refused(header: str, flaw: SignatureFlaw) -> None:
    assert GithubSignature(SECRET).find_flaw({"x-hub-signature-256": header}, BODY, now_ms=NOW_MS) is flaw


def test_all_are_schemes() -> None:
    for scheme in (StandardWebhooks(SECRET), StripeSignature(SECRET), GithubSignature(SECRET)):
        assert isinstance(scheme, SignatureScheme)
        assert SECRET.decode() not in repr(scheme)


@pytest.mark.parametrize("scheme", [StandardWebhooks, StripeSignature, GithubSignature])
def test_secrets_are_checked_and_never_shown(scheme: type[StandardWebhooks]) -> None:
    with pytest.raises(ValueError, match="give 1 to 8 secrets, not 0"):
        scheme()
    with pytest.raises(ValueError, match="give 1 to 8 secrets, not 9"):
        scheme(*[SECRET] * 9)
    with pytest.raises(TypeError, match="secret 2 must be text or bytes, not int"):
        scheme(SECRET, 7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="secret 1 has 3 bytes, and at least 16 are needed"):
        scheme(b"abc")


@pytest.mark.parametrize("wrong", ["whsec_no base64 at all!!", "whsec_abcde", "ünïcode-is-no-base64-at-all"])
def test_a_secret_that_was_copied_badly_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="copy it whole") as caught:
        StandardWebhooks(wrong)
    assert wrong not in str(caught.value)


def test_a_tolerance_below_a_second_is_refused() -> None:
    with pytest.raises(ValueError, match="tolerance must be between 1000"):
        StandardWebhooks(SECRET, tolerance=0.1)
