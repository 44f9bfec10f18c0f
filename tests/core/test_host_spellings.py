"""The host that a request asks for, in one spelling."""

import pytest

from semel.core.hosts import host_of


@pytest.mark.parametrize(
    ("host", "read"),
    [
        (b"shop.example", "shop.example"),
        (b"Shop.EXAMPLE", "shop.example"),
        (b" shop.example ", "shop.example"),
        (b"shop.example.", "shop.example"),
        (b"shop.example:80", "shop.example"),
        (b"shop.example:443", "shop.example"),
        (b"shop.example:", "shop.example"),
        (b"shop.example.:0443", "shop.example"),
        (b"shop.example:8080", "shop.example:8080"),
        (b"shop.example:08080", "shop.example:8080"),
        (b"shop.example:http", "shop.example:http"),
        (b"[::1]", "[::1]"),
        (b"[2001:DB8::1]:443", "[2001:db8::1]"),
        (b"[::1]:8080", "[::1]:8080"),
        (b"[::1", "[::1"),
        (b"", ""),
        (b".", ""),
        (b"a/b", "a%2Fb"),
        (b"a|b", "a%7Cb"),
        (b"caf\xe9", "caf%C3%A9"),
    ],
)
def test_spellings_of_a_host(host: bytes, read: str) -> None:
    assert host_of(((b"x", b"1"), (b"host", host))) == read


def test_a_host_that_a_proxy_names_counts_beside_the_one_that_it_asked_for() -> None:
    """The service may go by either."""
    host, forwarded = (b"host", b"gateway.internal"), b"x-forwarded-host"
    acme, beta = (host_of((host, (forwarded, name))) for name in (b"acme.example", b"beta.example"))
    assert (acme, beta) == ("acme.example|gateway.internal", "beta.example|gateway.internal")
    assert host_of((host, (forwarded, b"Gateway.internal:443"))) == "gateway.internal"
    assert host_of((host, (forwarded, b"a.example, b.example"))) == "a.example,b.example|gateway.internal"
    assert host_of(((forwarded, b"a.example"),)) == "a.example|"


def test_no_host_and_several() -> None:
    """Nobody knows which of several the service goes by, so all of them count, in their order."""
    assert host_of(()) == ""
    assert host_of(((b"host", b"a"), (b"host", b"b"))) == "a,b"
    assert host_of(((b"host", b"b"), (b"host", b"a"))) == "b,a"
