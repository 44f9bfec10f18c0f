"""The host that a request asks for, in one spelling, for scopes that keep the keys of different hosts apart."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

HOST, FORWARDED = b"host", b"x-forwarded-host"
DEFAULT_PORTS = frozenset(("", "80", "443"))
"""The default ports. A service behind a proxy cannot tell whether the caller used TLS, so either may be left out."""


def host_of(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The host of a request, and before it the host that a proxy forwards for, if that is another one.

    A service may route by either of them, or by any of several. So two requests have the same host here only if all of
    these names are equal. Header names are lower case.
    """
    asked, forwarded = list[str](), list[str]()
    for name, value in headers:
        if name == HOST:
            asked.append(_spell(value))
        elif name == FORWARDED:
            forwarded += map(_spell, value.split(b","))
    host = ",".join(asked)
    return host if not forwarded or forwarded == asked else f"{','.join(forwarded)}|{host}"


def _spell(value: bytes) -> str:
    """Lower case, without a default port, without the dot of a complete name, and without anything that ends a host."""
    text = value.decode("latin-1").strip().lower()
    host, _, port = text.rpartition(":") if not text.endswith("]") and ":" in text else (text, "", "")
    if host.startswith("[") and not host.endswith("]"):  # neither an address nor a port
        host, port = text, ""
    port = port.lstrip("0")
    host = quote(host.removesuffix("."), safe="[]:")
    return host if port in DEFAULT_PORTS else f"{host}:{quote(port)}"
