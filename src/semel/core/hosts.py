"""The host that a request asks for, in one spelling, for scopes that keep the keys of different hosts apart."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

HOST, FORWARDED = b"host", b"x-forwarded-host"
DEFAULT_PORTS = frozenset(("", "80", "443"))
"""What may be left out. Behind a proxy nobody knows whether the caller used TLS, so both count as the same."""


def host_of(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The host, and before it the one that a proxy says it was asked for, if that is another one.

    A service may go by either of them, or by any of several. So two requests have the same host here only if they have
    all of it in common. Header names are lower case.
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
    """Lower case, without a default port and the dot of a complete name; nothing that could end a host is left."""
    text = value.decode("latin-1").strip().lower()
    host, _, port = text.rpartition(":") if not text.endswith("]") and ":" in text else (text, "", "")
    if host.startswith("[") and not host.endswith("]"):  # no address, and no port
        host, port = text, ""
    port = port.lstrip("0")
    host = quote(host.removesuffix("."), safe="[]:")
    return host if port in DEFAULT_PORTS else f"{host}:{quote(port)}"
