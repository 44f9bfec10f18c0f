"""What passes through a gateway, and how: bytes, order, streams both ways, and what belongs to one connection only."""

import gzip
import socket
import threading
import time

import pytest

from gateway.gatewaying import Asked, GatewayServer, Upstream, read, request
from semel.gateway.headers import drop_hop_by_hop, rewrite_for_upstream
from waiting import until


def test_headers_pass_in_order_and_what_belongs_to_one_connection_does_not(
    gateway: GatewayServer, upstream: Upstream, key: str
) -> None:
    def answer(_: Upstream, __: Asked, connection: socket.socket) -> None:
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nX-A: 1\r\nSet-Cookie: a=1\r\nX-B: 2\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n"
            b"Keep-Alive: timeout=5\r\nX-A: caf\xc3\xa9\r\nSet-Cookie: b=2\r\nServer: theirs\r\nDate: today\r\n"
            b"Content-Length: 2\r\n\r\nok"
        )

    upstream.behaviours["/a/../b%2Fc//d"] = answer
    got = gateway.ask(
        "POST", "/a/../b%2Fc//d?x=%20y+z&q='&q=", key.encode(),
        "X-A: 1", "X-B: 2", "X-A: 3", "Connection: X-Secret", "X-Secret: 1", "TE: trailers", "Keep-Alive: 5",
        "Proxy-Authorization: x", "X_Under: 1", "Cookie: s=1", "Accept-Encoding: br", "Via: 1.0 before",
        "Forwarded: for=9.9.9.9", "X-Forwarded-For: 9.9.9.9", "X-Forwarded-Proto: https",
    )  # fmt: skip
    asked = upstream.asked[-1]
    assert asked.line == "POST /a/../b%2Fc//d?x=%20y+z&q='&q= HTTP/1.1"
    names = [name.lower() for name, _ in asked.headers]
    assert [value for name, value in asked.headers if name.lower().startswith("x-a")] == ["1", "3"]
    gone = {"connection", "x-secret", "te", "keep-alive", "proxy-authorization", "x_under", "user-agent", "accept"}
    assert not gone & set(names)
    assert asked.all("host") == ["shop.example"]
    assert (asked.all("cookie"), asked.all("accept-encoding")) == (["s=1"], ["br"])
    assert asked.all("via") == ["1.0 before, 1.1 semel"]
    assert asked.all("forwarded") == ['for=9.9.9.9, for=127.0.0.1;proto=http;host="shop.example"']
    assert asked.all("x-forwarded-for") == ["9.9.9.9, 127.0.0.1"]
    assert (asked.all("x-forwarded-proto"), asked.all("x-forwarded-host")) == (["https"], ["shop.example"])
    shown = [(name, value) for name, value in got.headers if name != "connection"]
    assert shown == [
        ("x-a", "1"), ("set-cookie", "a=1"), ("x-b", "2"), ("x-a", "caf\xc3\xa9"), ("set-cookie", "b=2"),
        ("server", "theirs"), ("date", "today"), ("content-length", "2"), ("via", "1.1 semel"),
    ]  # fmt: skip


def test_packed_bodies_and_redirects_are_not_ours_to_open(gateway: GatewayServer, upstream: Upstream) -> None:
    packed = gzip.compress(b"x" * 1000)

    def answer(_: Upstream, __: Asked, connection: socket.socket) -> None:
        connection.sendall(
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Encoding: gzip\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(packed), packed)
        )

    upstream.behaviours["/packed"] = answer
    got = gateway.ask("GET", "/packed")
    assert (got.status, got.header("location"), got.body) == (302, "http://127.0.0.1:1/", packed)


@pytest.mark.parametrize(
    ("method", "head", "status", "length"),
    [
        ("HEAD", b"200 OK\r\nContent-Length: 500", 200, "500"),
        ("GET", b"304 Not Modified\r\nContent-Length: 500", 304, None),
        ("POST", b"204 No Content", 204, None),
        ("GET", b"200 OK\r\nContent-Length: 0", 200, "0"),
    ],
)
def test_answers_without_a_body(
    gateway: GatewayServer, upstream: Upstream, method: str, head: bytes, status: int, length: str | None
) -> None:
    upstream.behaviours["/none"] = lambda _, __, connection: connection.sendall(b"HTTP/1.1 " + head + b"\r\n\r\n")
    got = gateway.ask(method, "/none", b"" if method == "POST" else None)
    assert (got.status, got.header("content-length"), got.body) == (status, length, b"")


def test_events_arrive_one_by_one_and_the_upstream_hears_that_the_caller_left(
    gateway: GatewayServer, upstream: Upstream
) -> None:
    left = threading.Event()

    def events(_: Upstream, __: Asked, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        upstream.go.wait(20)
        connection.sendall(b"data: 2\n\n")
        connection.settimeout(20)
        if connection.recv(1) == b"":
            left.set()

    upstream.behaviours["/events"] = events
    with gateway.open() as connection:
        connection.sendall(request("GET", "/events"))
        received = b""
        while b"data: 1" not in received:
            received += connection.recv(65_536)
        assert b"data: 2" not in received
        upstream.go.set()
        while b"data: 2" not in received:
            received += connection.recv(65_536)
    assert left.wait(20)


def test_an_upload_reaches_the_upstream_part_by_part(gateway: GatewayServer, upstream: Upstream, key: str) -> None:
    part = f"{len(key):x}\r\n{key}\r\n".encode()
    with gateway.open() as connection:
        connection.sendall(request("POST", "/upload", b"", "Transfer-Encoding: chunked") + part)
        until(lambda: key.encode() in upstream.received, "the first part waits for the second")
        connection.sendall(part + b"0\r\n\r\n")
        assert read(connection).status == 201
    assert upstream.asked[-1].body == key.encode() * 2


def test_neither_side_is_read_faster_than_the_other_takes(gateway: GatewayServer, upstream: Upstream) -> None:
    size, sent = 64 * 1024 * 1024, 0

    def flood(_: Upstream, __: Asked, connection: socket.socket) -> None:
        nonlocal sent
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        part = b"x" * 65_536
        while sent < size:
            connection.sendall(part)
            sent += len(part)

    upstream.behaviours["/flood"] = flood
    with gateway.open() as connection:
        connection.sendall(request("GET", "/flood"))
        stalled, seen = 0, -1
        while stalled < 20:  # until nothing has moved for a while
            stalled = stalled + 1 if sent == seen and sent else 0
            seen = sent
            time.sleep(0.02)
        assert sent < size / 2, "the gateway took in what nobody reads"


def test_a_body_with_a_length_and_one_in_chunks_arrive_as_they_were(
    gateway: GatewayServer, upstream: Upstream, key: str
) -> None:
    large = key.encode() + bytes(range(256)) * 4000
    assert gateway.ask("PUT", "/pay", large).status == 201
    assert (upstream.asked[-1].body, upstream.asked[-1].all("content-length")) == (large, [str(len(large))])
    assert gateway.ask("POST", "/pay", b"5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked").status == 201
    assert upstream.asked[-1].body == b"hello"
    assert gateway.ask("POST", "/pay", b"ab", "Expect: 100-continue").status == 201
    assert gateway.ask("GET", "/pay").status == 201
    assert (upstream.asked[-1].body, upstream.asked[-1].all("content-length")) == (b"", [])


def test_the_key_that_the_upstream_gets(gateway: GatewayServer, upstream: Upstream, key: str) -> None:
    lines = (f"X-Idempotency-Key: {key}",)
    assert gateway.post("/pay", f'"{key}"', key.encode(), *lines).status == 201
    [derived] = upstream.asked[-1].all("idempotency-key")
    assert (len(derived), derived == key, upstream.asked[-1].all("x-idempotency-key")) == (36, False, [])
    with GatewayServer(upstream.port, "--downstream-key", "none", "--host", "upstream") as other:
        assert other.post("/pay", f'"{key}"', key.encode(), *lines).status == 201
    names = {name.lower() for name, _ in upstream.asked[-1].headers}
    assert not names & {"idempotency-key", "x-idempotency-key"}
    assert upstream.asked[-1].all("host") == [f"127.0.0.1:{upstream.port}"]


def test_exempt_requests_keep_their_key(gateway: GatewayServer, upstream: Upstream, key: str) -> None:
    for _ in range(2):
        assert gateway.post("/exempt/pay", key, key.encode()).header("idempotent-replayed") is None
        assert upstream.asked[-1].all("idempotency-key") == [key]


def test_tenants_by_header_never_meet(gateway: GatewayServer, upstream: Upstream, key: str) -> None:
    for account in ("ann", "bob", "ann, bob"):
        assert gateway.post("/pay", key, key.encode(), f"X-Account: {account}").header("idempotent-replayed") is None
    assert gateway.post("/pay", key, key.encode(), "X-Account: ann").header("idempotent-replayed") == "true"
    for token in ("1", "2"):  # nobody said who it is: callers are told apart by their credentials
        assert gateway.post("/pay", key, key.encode(), f"Authorization: Bearer {token}").status == 201
    assert upstream.effects(key) == 5
    derived = [asked.all("idempotency-key")[0] for asked in upstream.asked if asked.body == key.encode()]
    assert len(set(derived)) == 5


def hosted(name: str, key: str, *lines: str) -> bytes:
    asking = request("POST", "/pay", key.encode(), f"Idempotency-Key: {key}", *lines)
    return asking.replace(b"Host: shop.example", f"Host: {name}".encode())


def test_hosts_never_meet(gateway: GatewayServer, upstream: Upstream, key: str) -> None:
    """The upstream gets the caller's host, and may choose the customer or the route by it."""

    def replayed(asking: bytes) -> bool:
        with gateway.open() as connection:
            connection.sendall(asking)
            answer = read(connection)
        assert answer.status == 201
        return answer.header("idempotent-replayed") == "true"

    assert [replayed(hosted(name, key)) for name in ("acme.example", "beta.example")] == [False, False]
    assert upstream.effects(key) == 2
    spellings = ("acme.example", "ACME.example", "acme.example:80", "acme.example:443", "acme.example.")
    assert all(replayed(hosted(name, key)) for name in spellings)
    assert upstream.effects(key) == 2
    assert not replayed(hosted("acme.example:8080", key)), "another port is another service"
    behind = [hosted("gateway.internal", key, f"X-Forwarded-Host: {name}.example") for name in ("acme", "beta")]
    assert [replayed(each) for each in behind] == [False, False], "a proxy says which one the caller asked for"
    assert [replayed(each) for each in behind] == [True, True]
    assert upstream.effects(key) == 5


def test_one_service_of_many_names(upstream: Upstream, key: str) -> None:
    with GatewayServer(upstream.port, rules="[policy]\nper_host = false") as gateway:
        for at, name in enumerate(("acme.example", "beta.example")):
            with gateway.open() as connection:
                connection.sendall(hosted(name, key))
                assert read(connection).header("idempotent-replayed") == (None if at == 0 else "true")
    assert upstream.effects(key) == 1


WELL_KNOWN = "/.well-known/idempotency"


def test_the_policy_is_published_where_the_operator_says(gateway: GatewayServer, upstream: Upstream, key: str) -> None:
    assert gateway.ask("GET", WELL_KNOWN).header("content-type") == "application/json"
    with GatewayServer(upstream.port, "--publish", "/-/retries", rules="[policy]\nrequired = true") as other:
        assert b'"retention_seconds"' in other.ask("GET", "/-/retries").body
        assert other.ask("GET", WELL_KNOWN).status == 201, "it is the upstream's"
        assert b'"type": "/-/retries#key-missing"' in other.post("/pay", None).body


def test_the_policy_is_not_published(key: str) -> None:
    """Problems do not name a page that is not there, those of the gateway's own neither."""
    upstream = Upstream()
    options = ("--publish", "none", "--connect-timeout", "2", "--keepalive", "0")
    with GatewayServer(upstream.port, *options, rules="[policy]\nrequired = true") as gateway:
        assert gateway.ask("GET", WELL_KNOWN).status == 201
        assert upstream.asked[-1].path == WELL_KNOWN
        refused = [gateway.post("/pay", None)]
        assert b'"type": "urn:semel:key-missing"' in refused[0].body

        def cut(_: Upstream, __: Asked, ___: socket.socket) -> None:
            """No answer."""

        upstream.behaviours["/cut"] = cut
        refused += [gateway.post("/cut", key, key.encode()), gateway.ask("DELETE", "/cut")]
        assert [answer.status for answer in refused[1:]] == [504, 504]
        assert all(b'"type": "urn:semel:interrupted"' in answer.body for answer in refused[1:])
        upstream.close()
        until(lambda: gateway.ask("DELETE", "/gone").status == 502)
        refused += [gateway.ask("DELETE", "/gone"), gateway.post("/gone", f"{key}-2", key.encode())]
        assert all(b'"type": "urn:semel:unreachable"' in answer.body for answer in refused[3:])
        assert [answer.header("link") for answer in refused] == [None] * len(refused)


def test_what_connection_names_is_dropped_whatever_its_case() -> None:
    headers = [(b"Connection", b"Close, X-One"), (b"x-one", b"1"), (b"X-Two", b"2"), (b"Transfer-Encoding", b"chunked")]
    assert drop_hop_by_hop(headers) == [(b"X-Two", b"2")]


def test_an_address_of_version_six_is_quoted() -> None:
    scope = {"headers": [(b"host", b'a"b')], "client": ("::1", 1), "scheme": "http", "http_version": "1.1"}
    headers = dict(rewrite_for_upstream(scope, host=b"x", dropped=frozenset()))
    assert headers[b"forwarded"] == b'for="[::1]";proto=http'


@pytest.mark.parametrize("keyed", [True, False])
def test_what_comes_after_the_body_is_not_a_header(
    gateway: GatewayServer, upstream: Upstream, key: str, keyed: bool
) -> None:
    """Whoever checks headers in front of us has not seen it, and for us the head was checked already."""
    trailed = key.encode() + b"\r\n0\r\nX-Account: admin\r\nHost: other\r\n\r\n"
    body = b"%x\r\n" % len(key) + trailed
    with gateway.open() as connection:
        named = [f"Idempotency-Key: {key}"] if keyed else []
        connection.sendall(request("POST", "/pay", body, "Transfer-Encoding: chunked", "X-Account: shop", *named))
        assert read(connection).status == 201
    asked = upstream.asked[-1]
    assert asked.body == key.encode()
    assert (asked.all("x-account"), asked.all("host")) == (["shop"], ["shop.example"])
