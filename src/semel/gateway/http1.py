"""What the gateway accepts from a connection: HTTP/1 in one reading only.

Two programs that read the same bytes differently are how a request is smuggled past one of them. The parser refuses
most of that by itself (both lengths, repeated and odd lengths, bare line feeds, folded lines, control characters). This
class refuses the rest: what the parser accepts and another program might read otherwise, and what has no bound.
"""

from __future__ import annotations

import logging
from enum import Enum
from functools import lru_cache
from urllib.parse import urlsplit

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from semel.gateway.headers import drop_offer, offers_http2_alone

logger = logging.getLogger("semel.gateway")
HEAD_MAX = 65_536
HEADERS_MAX = 200
PATH_SHOWN_MAX = 200
HOSTS_MAX = 256
"""How many checked Host headers are remembered."""


class MessageRefused(Exception):
    """The request has more than one reading, or is too large; the text says why."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


class Part(Enum):
    """The part of a request that is arriving."""

    NOTHING = "nothing"
    HEAD = "head"
    OFFER = "an offer of HTTP/2: its head is about to be read again without it"
    BODY = "body"


class StrictProtocol(HttpToolsProtocol):
    """Answers 400 or 431 and closes, before the application sees anything."""

    _data_size = 0
    _head_size = 0
    _part = Part.HEAD
    _between_size = 0
    """Bytes since the last part of a body: the sizes of chunks, and what follows the last one."""
    _refused: MessageRefused | None = None

    def data_received(self, data: bytes) -> None:
        if self._refused is not None or self.transport.is_closing():
            return
        self._data_size = len(data)
        self._between_size += len(data)
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._part is Part.BODY and self._between_size > HEAD_MAX and self._refused is None:
            self._refuse(
                MessageRefused(f"There are more than {HEAD_MAX} bytes between parts of the body, or after it.", 431)
            )
        if self._part is Part.HEAD and self._refused is None:
            # The parser reports a header line only when it ends, so a line that never ends is counted here.
            self._head_size += len(data)
            if self._head_size > HEAD_MAX:
                self._refuse(MessageRefused(f"The head of the request is larger than {HEAD_MAX} bytes.", 431))

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = self._read_again() + data[offer.args[0] :]
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return
            else:
                return

    def _read_again(self) -> bytes:
        """The head without the offer of HTTP/2, for another parser: this one would take what follows for HTTP/2.

        A server may ignore the offer (RFC 9110, section 7.8). What follows the head is then the body as HTTP/1 has it.
        """
        head = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        head.extend(b"%b: %b" % header for header in drop_offer(self.headers))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as the server sets it
        return b"\r\n".join([*head, b"", b""])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # The data in which a head begins is not counted: it may hold the end of the request before.
        self._part, self._head_size = Part.HEAD, -self._data_size

    def on_body(self, body: bytes) -> None:
        self._between_size = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._part is Part.OFFER:
            return
        if any(name == b"connection" for name, _ in self.headers):  # the parser obeys it, and would read no more
            self._refused = MessageRefused("Connection is a header, and must not follow the body.")
            raise self._refused
        self._part = Part.NOTHING
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        try:
            self._check()
        except MessageRefused as refused:
            self._refused = refused
            raise  # the parser stops, and `send_400_response` is called
        if self.parser.should_upgrade():
            self._part = Part.OFFER
            return
        self._part, self._between_size = Part.BODY, 0
        super().on_headers_complete()
        self.headers = []  # trailers after the body are not checked, so they are not forwarded

    def send_400_response(self, msg: str) -> None:
        """Answer a request that the parser or this class has refused."""
        self._refuse(self._refused or MessageRefused(msg))

    def _check(self) -> None:
        assert self.parser is not None
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise MessageRefused(f"HTTP/{version} is not spoken here.")
        if len(self.headers) > HEADERS_MAX:
            raise MessageRefused(f"There are more than {HEADERS_MAX} header lines.", 431)
        # After an Upgrade the parser takes no body, so one could hide there. An offer of HTTP/2 is taken out below.
        if self.parser.should_upgrade() and not offers_http2_alone(self.parser.get_method(), self.headers):
            raise MessageRefused("Upgrade (but for an offer of h2c, which is ignored) and CONNECT are not supported.")
        if not self.url.startswith(b"/") or b"#" in self.url:
            raise MessageRefused("The request target must be a path that starts with a slash, and has no fragment.")
        self._check_headers(version)

    def _check_headers(self, version: str) -> None:
        size, hosts = len(self.url), []
        for at, (name, value) in enumerate(self.headers):
            size += len(name) + len(value) + 4
            if (bare := value.strip(b" \t")) is not value:  # the parser leaves spaces at the end of a value
                self.headers[at] = name, bare
            if name == b"host":
                hosts.append(bare)
            elif name == b"transfer-encoding" and (version == "1.0" or bare.lower() != b"chunked"):
                raise MessageRefused("The only Transfer-Encoding is chunked, and not in HTTP/1.0.")
        if size > HEAD_MAX:
            raise MessageRefused(f"The head of the request is larger than {HEAD_MAX} bytes.", 431)
        if len(hosts) > 1 or (version == "1.1" and not hosts):
            raise MessageRefused("There must be exactly one Host header.")
        if hosts and not _is_host(hosts[0]):
            raise MessageRefused("The Host header cannot be read.")

    def _refuse(self, refused: MessageRefused) -> None:
        """Say why, if that cannot be taken for the answer to an earlier request, and close."""
        path = getattr(self, "url", b"").partition(b"?")[0][:PATH_SHOWN_MAX].decode("ascii", "backslashreplace")
        logger.info(
            "a request was refused: %d: %s path=%r",
            *(refused.status, refused, path),
            extra={"semel_status": refused.status, "semel_path": path, "semel_why": str(refused)},
        )
        self._refused = refused
        if self._part is not Part.BODY:
            earlier: RequestResponseCycle | None = self.cycle
            alone = earlier is None or earlier.response_complete
        else:  # this is the body of the request that is being served
            alone = not self.cycle.response_started and not self.pipeline
            self.cycle.disconnected = True  # a second answer must not follow this one
        if alone:
            text = str(refused).encode("latin-1", "replace")
            self.transport.write(
                STATUS_LINE[refused.status]
                + b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
                + b"content-length: %d\r\n\r\n%b" % (len(text), text)
            )
        self.transport.close()


@lru_cache(HOSTS_MAX)
def _is_host(value: bytes) -> bool:
    try:
        parts = urlsplit(b"//" + value)
        return parts.netloc == value and b"@" not in value and (parts.port is None or parts.port >= 0)
    except ValueError:
        return False
