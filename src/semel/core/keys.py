"""The caller's name for an operation, as it stands in a header: the bare form and the quoted form of RFC 9651 mean
the same key.

A malformed key is never ignored: the caller asked for protection, so a key that cannot be read is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from operator import itemgetter

from semel.core.policy import Policy
from semel.core.records import NAME_MAX

NAME, VALUE = itemgetter(0), itemgetter(1)
BARE = re.compile(rb"[\x21\x23-\x2b\x2d-\x7e]+")  # visible ASCII without the double quote and the comma
STRING = re.compile(rb'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
PARAMETERS = re.compile(
    rb"(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:"
    rb"-?(?:[0-9]{1,12}\.[0-9]{1,3}|[0-9]{1,15})|@-?[0-9]{1,15}|\?[01]|:[A-Za-z0-9+/=]*:"
    rb'|%?"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"|[A-Za-z*][!#$%&\'*+.^_`|~:/0-9A-Za-z-]*))?)*'
)
FORMATS = {
    "uuid": re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    "ulid": re.compile(r"[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}"),
}


class KeyMalformed(ValueError):
    """The header does not hold one readable key. The text is for the caller and quotes nothing of the value."""


def read_key(headers: Sequence[tuple[bytes, bytes]], policy: Policy) -> str | None:
    """The key in the one of the policy's headers that was sent; None without one. Several headers must agree."""
    values = dict(headers)
    if len(values) == len(headers) and b"".join(values).islower():
        names: Collection[bytes] = values  # nearly always: each name once, and in lower case
    else:
        names = list(map(bytes.lower, map(NAME, headers)))
        values = dict(zip(names, map(VALUE, headers), strict=True))
    key: str | None = None
    plain = policy.key_format == "any"
    for name in policy.header_names:
        if name not in values:
            continue
        if len(names) != len(values) and list(names).count(name) > 1:
            raise KeyMalformed(f"the header {name.decode()} was sent more than once")
        again, value = key, values[name]
        if plain and len(value) <= NAME_MAX and BARE.fullmatch(value) is not None:
            key = value.decode("ascii")  # nearly all requests
        else:
            key = parse_key(value, policy)
        if again is not None and again != key:
            sent = [each.decode() for each in policy.header_names if each in values]
            raise KeyMalformed(f"the headers {' and '.join(sent)} carry different keys")
    return key


def parse_key(value: bytes, policy: Policy) -> str:
    """Read one header value: 1 to 255 characters, bare or as an RFC 9651 String whose parameters are ignored."""
    value = value.strip(b" \t")
    if not value:
        raise KeyMalformed("the key is empty")
    quoted = STRING.match(value)
    if quoted is not None:
        if PARAMETERS.fullmatch(value, quoted.end()) is None:
            raise KeyMalformed("only parameters may follow the closing quote")
        key = re.sub(rb"\\(.)", rb"\1", quoted[1])
    elif policy.key_format == "strict":
        raise KeyMalformed('the key must be a quoted string, like "8e03978e"')
    elif BARE.fullmatch(value):
        key = value
    else:
        raise KeyMalformed("the key must be visible ASCII without commas and quotes, or a quoted string")
    if not 1 <= len(key) <= NAME_MAX:
        raise KeyMalformed(f"the key has {len(key)} characters; 1 to {NAME_MAX} are allowed")
    return _check_format(key.decode("ascii"), policy)


def _check_format(key: str, policy: Policy) -> str:
    wanted = policy.key_format
    if isinstance(wanted, re.Pattern):
        if wanted.fullmatch(key) is None:
            raise KeyMalformed(f"the key must match {wanted.pattern}")
    elif wanted in FORMATS and FORMATS[wanted].fullmatch(key) is None:
        raise KeyMalformed(f"the key must be a {wanted.upper()}")
    return key
