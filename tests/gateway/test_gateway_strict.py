"""Shapes of requests that two programs might read differently: refused on the wire, closed, and never passed on."""

import socket
import time

import pytest

from gateway.gatewaying import Asked, GatewayServer, Upstream, created, read, request

POST = b"POST /smuggled HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
SHAPES: dict[str, bytes] = {
    "length and chunks": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "the same length twice": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nab",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nab",
    "a list of lengths": POST + b"Content-Length: 2, 2\r\n\r\nab",
    "a signed length": POST + b"Content-Length: +2\r\n\r\nab",
    "a hexadecimal length": POST + b"Content-Length: 0x2\r\n\r\nab",
    "a negative length": POST + b"Content-Length: -1\r\n\r\n",
    "an empty length": POST + b"Content-Length: \r\n\r\n",
    "a length beyond numbers": POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "a blank before the colon": POST + b"Content-Length : 2\r\n\r\nab",
    "bare line feeds": b"POST /smuggled HTTP/1.1\nHost: x\nContent-Length: 2\n\nab",
    "one bare line feed": b"POST /smuggled HTTP/1.1\r\nHost: x\nContent-Length: 2\r\n\r\nab",
    "a bare carriage return": b"POST /smuggled HTTP/1.1\r\nHost: x\rContent-Length: 2\r\n\r\nab",
    "a folded header": POST + b"X-A: 1\r\n 2\r\nContent-Length: 2\r\n\r\nab",
    "a folded length": POST + b"Content-Length:\r\n 2\r\n\r\nab",
    "a fold before all headers": b"POST /smuggled HTTP/1.1\r\n X: y\r\nHost: x\r\nContent-Length: 2\r\n\r\nab",
    "NUL in a value": POST + b"X-A: a\x00b\r\nContent-Length: 2\r\n\r\nab",
    "NUL in a name": POST + b"X\x00A: b\r\nContent-Length: 2\r\n\r\nab",
    "NUL in the path": b"GET /smuggled\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a control character": POST + b"X-A: a\x01b\r\nContent-Length: 2\r\n\r\nab",
    "no colon": POST + b"Foo\r\nContent-Length: 2\r\n\r\nab",
    "no name": POST + b": x\r\nContent-Length: 2\r\n\r\nab",
    "another encoding": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked not last": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "nearly chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST /smuggled HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "line feeds in chunks": CHUNKED + b"2\nab\n0\n\n",
    "a line feed in an extension": CHUNKED + b"2;\nab\r\n0\r\n\r\n",
    "a chunk size with a prefix": CHUNKED + b"0x2\r\nab\r\n0\r\n\r\n",
    "a negative chunk": CHUNKED + b"-2\r\nab\r\n0\r\n\r\n",
    "a length after the chunks": CHUNKED + b"2\r\nab\r\n0\r\nContent-Length: 7\r\n\r\n",
    "no host": b"POST /smuggled HTTP/1.1\r\nContent-Length: 2\r\n\r\nab",
    "two hosts": POST + b"Host: y\r\nContent-Length: 2\r\n\r\nab",
    "a host with a path": b"POST /smuggled HTTP/1.1\r\nHost: x/y\r\nContent-Length: 2\r\n\r\nab",
    "a host with a user": b"POST /smuggled HTTP/1.1\r\nHost: x@y\r\nContent-Length: 2\r\n\r\nab",
    "another server's address": b"POST http://other/smuggled HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab",
    "a star": b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    "a fragment": b"GET /smuggled#a HTTP/1.1\r\nHost: x\r\n\r\n",
    "a tunnel": b"CONNECT other:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    "another protocol": POST + b"Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nab",
    "two protocols": POST + b"Connection: upgrade\r\nUpgrade: h2c, websocket\r\nContent-Length: 2\r\n\r\nab",
    "two upgrades": POST + b"Connection: upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nab",
    "HTTP/2 in a tunnel": b"CONNECT other:80 HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    "an offer of HTTP/2, and two lengths": POST + OFFER + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nab",
    "an offer of HTTP/2, and length and chunks": (
        POST + OFFER + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "an offer of HTTP/2, and odd chunks": POST + OFFER + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\nab\r\n0\r\n\r\n",
    "an offer of HTTP/2, and two hosts": POST + OFFER + b"Host: y\r\nContent-Length: 2\r\n\r\nab",
    "HTTP/2 itself": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2.0": b"GET /smuggled HTTP/2.0\r\nHost: x\r\n\r\n",
    "HTTP/0.9": b"GET /smuggled\r\n\r\n",
    "raw bytes in the path": b"GET /smuggled\xff HTTP/1.1\r\nHost: x\r\n\r\n",
}
OVER = {
    "one endless header": POST + b"X-A: " + b"a" * 300_000,
    "a line after the body that does not end": (
        POST + b"Idempotency-Key: endless\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX-A: " + b"a" * 2_000_000
    ),
    "a large header": POST + b"X-A: " + b"a" * 70_000 + b"\r\nContent-Length: 2\r\n\r\nab",
    "many headers": POST + b"".join(b"X-%d: a\r\n" % number for number in range(300)) + b"Content-Length: 0\r\n\r\n",
    "a long path": b"GET /smuggled" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
}
GOOD = b"POST /pay HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab"


def answers(gateway: GatewayServer, data: bytes) -> bytes:
    """All that comes until the gateway closes."""
    received = b""
    with gateway.open() as connection:
        try:
            connection.sendall(data)
            while part := connection.recv(65_536):
                received += part
        except ConnectionError:  # it closed while we were still sending
            pass
    return received


def smuggled(upstream: Upstream) -> list[str]:
    return [asked.line for asked in list(upstream.asked) if "smuggled" in asked.line]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_could_be_read_in_two_ways_is_refused(gateway: GatewayServer, upstream: Upstream, shape: str) -> None:
    said = answers(gateway, SHAPES[shape])
    assert said.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert said.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in said
    assert smuggled(upstream) == []


def test_a_header_that_could_not_be_passed_on_unchanged_is_refused(
    gateway: GatewayServer, upstream: Upstream, key: str
) -> None:
    for lines in (["X-A: caf\xe9"], ["X-A: caf\xe9", f"Idempotency-Key: {key}"]):
        refused = gateway.ask("POST", "/pay", key.encode(), *lines)
        assert (refused.status, refused.body) == (400, b"A header is not UTF-8.")
    assert gateway.post("/pay", key, key.encode()).status == 201, "its key was given back"
    assert upstream.effects(key) == 1


@pytest.mark.parametrize("shape", OVER)
def test_every_size_has_a_bound(gateway: GatewayServer, upstream: Upstream, shape: str) -> None:
    said = answers(gateway, OVER[shape])
    assert said == b"" or said.startswith(b"HTTP/1.1 431 ")  # what it says may be lost with what it did not read
    assert smuggled(upstream) == []


def test_a_bad_request_behind_a_good_one_is_not_taken_for_its_answer(
    gateway: GatewayServer, upstream: Upstream
) -> None:
    said = answers(gateway, GOOD + SHAPES["length and chunks"])
    assert said.count(b"HTTP/1.1 ") <= 1
    assert b" 400 " not in said.partition(b"\r\n")[0], "the first answer belongs to the first request"
    assert smuggled(upstream) == []


def test_pipelined_requests_are_answered_in_order(gateway: GatewayServer, upstream: Upstream, key: str) -> None:
    first = GOOD.replace(b"/pay", f"/{key}/1".encode())
    last = f"GET /{key}/2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    assert answers(gateway, first + last).count(b"HTTP/1.1 201") == 2
    assert [asked.path for asked in upstream.asked if key in asked.path] == [f"/{key}/1", f"/{key}/2"]


def late(behind: Upstream, asked: Asked, connection: socket.socket) -> bool:
    behind.go.wait(20)
    return created(behind, asked, connection)


@pytest.mark.parametrize(("kept", "after"), [("keep-alive", b"\r\n" * 100_000), ("close", b"x" * 200_000)])
def test_what_follows_a_whole_request_is_not_about_it(
    gateway: GatewayServer, upstream: Upstream, key: str, kept: str, after: bytes
) -> None:
    """Nobody keeps it, so it needs no bound; and the request before it is answered as if nothing had come."""
    upstream.behaviours["/late"] = late
    asking = request("POST", "/late", key.encode()).replace(b"Connection: close", f"Connection: {kept}".encode())
    with gateway.open() as connection:
        connection.sendall(asking)
        upstream.wait_for(key)
        connection.sendall(after)
        time.sleep(0.2)  # it has been read; if it has not, this proves less
        upstream.go.set()
        assert read(connection).status == 201
    assert upstream.effects(key) == 1


def test_the_end_of_one_request_is_not_counted_as_the_head_of_the_next(
    gateway: GatewayServer, upstream: Upstream, key: str
) -> None:
    large = b"POST /%b HTTP/1.1\r\nHost: x\r\nContent-Length: 150000\r\n\r\n" % key.encode() + b"x" * 150_000
    with gateway.open() as connection:
        connection.sendall(large + b"POST /" + key.encode())
        assert read(connection).status == 201
        connection.sendall(b"/2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        assert read(connection).status == 201
    assert [asked.path for asked in upstream.asked if key in asked.path] == [f"/{key}", f"/{key}/2"]


def test_what_follows_a_body_does_not_end_the_connection(gateway: GatewayServer, upstream: Upstream, key: str) -> None:
    """The parser obeys `Connection: close` there, too, and would hear nothing more: who comes next is not served."""
    chunked = b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n%b: close\r\n\r\n"
    for name, expected in ((b"X-Connection", [b"201", b"201"]), (b"Connection", [b"400"]), (b"connection", [b"400"])):
        first = b"POST /%b HTTP/1.1\r\nHost: x\r\n" % key.encode() + chunked % name
        last = b"POST /%b/2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % key.encode()
        assert [each[:3] for each in answers(gateway, first + last).split(b"HTTP/1.1 ")[1:]] == expected


@pytest.mark.parametrize(
    "body",
    [b"Content-Length: 2\r\n\r\nab", b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"],
    ids=["length", "chunks"],
)
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "byte by byte"])
def test_an_offer_of_http2_is_ignored(
    gateway: GatewayServer, upstream: Upstream, key: str, body: bytes, at_once: bool
) -> None:
    """Java's client offers it with its first request on a connection, with or without a body. RFC 9110, section 7.8."""
    place = key.encode()
    offering = b"POST /%b HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nIdempotency-Key: %b\r\n" % (place, place) + OFFER + body
    bodiless = b"GET /%b/2 HTTP/1.1\r\nHost: x\r\n" % place + OFFER.lower() + b"\r\n"
    last = b"GET /%b/3 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: H2C\r\n\r\n" % place
    sent = offering + bodiless + last
    with gateway.open() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(sent), len(sent) if at_once else 1):
            connection.sendall(sent[at : at + (len(sent) if at_once else 1)])
        said = b""
        while part := connection.recv(65_536):
            said += part
    assert said.count(b"HTTP/1.1 201 ") == said.count(b"HTTP/1.1 ") == 3
    asked = [each for each in upstream.asked if key in each.path]
    assert [(each.path, each.body) for each in asked] == [(f"/{key}", b"ab"), (f"/{key}/2", b""), (f"/{key}/3", b"")]
    assert asked[0].all("x-a") == ["1"]
    for each in asked:
        assert not any(each.all(name) for name in ("connection", "upgrade", "http2-settings"))
