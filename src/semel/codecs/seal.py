"""Sealing one result: AES-256-GCM, with key ids, bound to the life of the key that the result belongs to."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from semel.codecs.origins import Origin
from semel.core.records import Claimed, Occupied, Record, Result
from semel.errors import RecordUnreadable, StoreMisconfigured
from semel.store import Page, UnreadableRecord

FORMAT = "sealed.2"
ANY_FORMAT = "sealed."
"""The beginning of every sealed format's name. A result with such a name is never taken for a plain one."""
KEY_SIZE, SALT_SIZE, NONCE_SIZE = 32, 16, 12
KEY_ID_MAX = 64


class Seal:
    """Seals and opens single results.

    The bytes are: key id with its length before it, salt, nonce, ciphertext. Each result is sealed with a key of its
    own, derived from yours and the salt: one AES-GCM key with random nonces would be worn out after 2^32 results.
    """

    def __init__(self, keys: Mapping[str, bytes], *, allow_plain: bool = False) -> None:
        if not keys:
            raise StoreMisconfigured("keys= is empty: give at least one key id and its 32 random bytes")
        self._keys = {_check_id(name): _check_key(name, key) for name, key in keys.items()}
        self._seals_with = next(iter(self._keys))
        self._allow_plain = allow_plain
        _aes(b"\0" * KEY_SIZE)  # says at start-up that the extra is missing

    def seal(self, origin: Origin, result: Result) -> Result:
        """Seal a result, so that it opens for the record of this origin alone."""
        name = self._seals_with
        salt, nonce = os.urandom(SALT_SIZE), os.urandom(NONCE_SIZE)
        plain = _frame(result.format.encode()) + result.payload
        sealed = _aes(_derive(self._keys[name], salt)).encrypt(nonce, plain, _bound_to(origin, name, result.ok))
        return Result(FORMAT, b"".join((_frame(name), salt, nonce, sealed)), ok=result.ok)

    def open(self, origin: Origin, result: Result) -> Result:
        """The result as it was before `seal`. One that was never sealed is refused, unless `allow_plain`."""
        from cryptography.exceptions import InvalidTag

        key = origin.key
        if result.format != FORMAT:
            if result.format.startswith(ANY_FORMAT):
                raise RecordUnreadable(
                    f"the result of {key} has format {result.format!r}, and this version of semel opens {FORMAT!r} "
                    "only: it was sealed by another version. Nothing runs again; the key is free past its retention"
                )
            if self._allow_plain:
                return result
            raise RecordUnreadable(
                f"the result of {key} has format {result.format!r}, it is not sealed: pass allow_plain=True until the "
                "results from before sealing was switched on are past retention"
            )
        name, at = _field(result.payload, 0)
        if name not in self._keys:
            raise RecordUnreadable(
                f"the result of {key} is sealed with the key {name.decode(errors='replace')!r}, which is not among "
                f"those that were given ({', '.join(key_id.decode() for key_id in self._keys)})"
            )
        salt, nonce = result.payload[at : at + SALT_SIZE], result.payload[at + SALT_SIZE :][:NONCE_SIZE]
        try:
            plain = _aes(_derive(self._keys[name], salt)).decrypt(
                nonce, result.payload[at + SALT_SIZE + NONCE_SIZE :], _bound_to(origin, name, result.ok)
            )
        except (InvalidTag, ValueError):
            raise RecordUnreadable(
                f"the sealed result of {key} does not open: it was changed, belongs to another key or to an earlier "
                f"life of this one, or {name.decode()} is not the key that it was sealed with"
            ) from None
        format, at = _field(plain, 0)
        return Result(format.decode(), plain[at:], ok=result.ok)

    def is_current(self, result: Result) -> bool:
        """Whether it is sealed with the key that seals now."""
        return result.format == FORMAT and _field(result.payload, 0)[0] == self._seals_with

    def opened(self, record: Record) -> Record:
        """The record with its result opened. Raises `RecordUnreadable` if it does not open."""
        return record if record.result is None else replace(record, result=self.open(Origin.of(record), record.result))

    def claimed(self, claimed: Claimed) -> Claimed:
        """The reply to a claim, with the stored result opened."""
        return replace(claimed, record=self.opened(claimed.record)) if isinstance(claimed, Occupied) else claimed

    def page(self, page: Page) -> Page:
        """A page with opened results. A result that does not open makes its record unreadable, and the others stay."""
        records: list[Record] = []
        unreadable = list(page.unreadable)
        for record in page.records:
            try:
                records.append(self.opened(record))
            except RecordUnreadable as error:
                unreadable.append(UnreadableRecord(str(record.key), str(error)))
        return dataclasses.replace(page, records=tuple(records), unreadable=tuple(unreadable))


def _aes(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise StoreMisconfigured("sealed results need cryptography: pip install 'semel[sealed]'") from error
    return AESGCM(key)


def _derive(key: bytes, salt: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    return HKDFExpand(SHA256(), KEY_SIZE, b"semel sealed.2 " + salt).derive(key)


def _bound_to(origin: Origin, name: bytes, ok: bool) -> bytes:
    parts = (FORMAT.encode(), *(part.encode() for part in origin.parts), name, b"%d" % ok)
    return b"".join(len(part).to_bytes(2) + part for part in parts)


def _frame(part: bytes) -> bytes:
    return len(part).to_bytes(1) + part


def _field(data: bytes, at: int) -> tuple[bytes, int]:
    end = at + 1 + (data[at] if at < len(data) else 0)
    return data[at + 1 : end], end


def _check_id(name: object) -> bytes:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise StoreMisconfigured(f"a key id is printable text like '2026-11', not {name!r}")
    if len(name.encode()) > KEY_ID_MAX:
        raise StoreMisconfigured(f"the key id {name!r} has {len(name.encode())} bytes, the limit is {KEY_ID_MAX}")
    return name.encode()


def _check_key(name: str, key: object) -> bytes:
    """The message never shows the key."""
    if not isinstance(key, bytes) or len(key) != KEY_SIZE:
        given = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise StoreMisconfigured(f"the key {name!r} must be {KEY_SIZE} random bytes (secrets.token_bytes), not {given}")
    return key


def check_seal(seal: object) -> None:
    if seal is not None and not isinstance(seal, Seal):
        raise TypeError(
            "seal= takes a Seal, for instance Seal({'2026-11': key}) of semel.codecs.sealed, or the attribute seal of "
            f"a sealed store, not {type(seal).__name__}"
        )
