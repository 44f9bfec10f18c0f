"""Keys and results are kept exactly: what looks alike never meets, and what is too large is refused by name."""

from __future__ import annotations

from enum import Enum

import pytest
from msgspec.structs import replace

from semel.core.records import (
    DURATION_MS_MAX,
    FINGERPRINT_MAX,
    FORMAT_MAX,
    NAME_MAX,
    OWNER_MAX,
    SCOPE_MAX,
    TENANT_MAX,
    Key,
    Lease,
    Result,
)
from semel.store import Store
from semel.testing.calls import claim, complete, granted, held, occupied
from semel.testing.clock import ManualClock
from semel.testing.handles import Handles
from semel.testing.samples import LEASE_MS, SAME

# fmt: off
NAMES = [
    "abc", "abc ", " abc", "ABC", "Abc", "abç", "abc\u0327", "ａｂｃ", "abc\n", "abc\t", "abc\\", "abc/", "abc:",
    "abc\u200b", "*", "a*", "?", "[abc]", "%", "a%", "_", "a_c", "ab_", "{abc}", "{", "}", "{}", "'", '"', "''", "`",
    ";", "--", "$1", "%s", ":name", "0", "00", "null", "None", "NULL", "ß", "ss", "ı", "i", "I", "İ", "🙂", "\x01",
    "\x7f", "\ue000", "\U0010ffff",
]
COMPOSITES = [
    ("a", "b/c", "d"), ("a/b", "c", "d"), ("a", "b", "c/d"), ("a:b", "c", "d"), ("a", "b:c", "d"), ("a", "b", "c:d"),
    ("ab", "c", "d"), ("a", "bc", "d"), ("a", "b", "cd"), ("{a}", "b", "d"), ("a", "{b}", "d"), ("a", "", "b"),
    ("a", "a", "b"), ("a|b", "c", "d"), ("a", "b|c", "d"), ("a\nb", "c", "d"), ("a", "b\nc", "d"), ("a b", "c", "d"),
    ("a", "b c", "d"), ('a","b', "c", "d"), ("a", 'b","c', "d"), ("a\x1fb", "c", "d"), ("a", "b\x1fc", "d"),
    ("A", "b", "d"), ("a", "B", "d"), ("", "a/b/c", "d"), ("", "", "a/b/c/d"), ("", "", "abcd"),
]
# fmt: on
PAYLOADS = {
    "empty": b"",
    "zero": b"0",
    "NUL": b"\0",
    "null": b"null",
    "every byte": bytes(range(256)),
    "not UTF-8": b"\xff\xfe\x80",
    "blanks": b" \r\n ",
    "1 MiB": bytes(range(256)) * 4096,
}


class KeyWord(str, Enum):  # noqa: UP042
    """Text that some drivers store as the name of the member, and so does an f-string."""

    PART = "part"
    OWNER = "owner"
    FINGERPRINT = "1.same"
    FORMAT = "bytes"


class Chunk(bytes):
    """Bytes that not every driver knows."""


class Keys(Handles):
    def test_names_that_look_alike_never_meet(self, store: Store, key: Key) -> None:
        self.never_meet(store, [replace(key, name=name) for name in NAMES])

    def test_composites_that_look_alike_never_meet(self, store: Store, key: Key) -> None:
        self.never_meet(store, [Key(key.tenant + tenant, scope, name) for tenant, scope, name in COMPOSITES])

    def never_meet(self, store: Store, keys: list[Key]) -> None:
        """Each is claimed by its own owner and answered with its own result, so any two that meet are seen."""
        leases = [granted(claim(store, key, f"owner {number}")) for number, key in enumerate(keys)]
        assert [lease.key for lease in leases] == keys
        for number, lease in enumerate(leases):
            assert complete(store, lease, Result("number", b"%d" % number))
        for number, key in enumerate(keys):
            record = held(store, key)
            assert (record.key, record.owner, record.result) == (
                key,
                f"owner {number}",
                Result("number", b"%d" % number),
            )

    def test_text_of_a_subclass_is_the_same_key(self, store: Store, key: Key) -> None:
        """Text is text, also as a subclass of `str`: an operation that an enumeration names runs once."""
        name = key.tenant  # what keeps tests apart
        for given, plain in (
            (Key(name, "scope", KeyWord.PART), Key(name, "scope", "part")),
            (Key(name, KeyWord.PART, name), Key(name, "part", name)),
            (Key(KeyWord.PART, name, name), Key("part", name, name)),
        ):
            lease = granted(claim(store, given, "a"))
            occupied(claim(store, plain, "b"))
            record = held(store, plain)
            assert [type(part) for part in (record.key.tenant, record.key.scope, record.key.name)] == [str] * 3
            assert (lease.key, record.key) == (plain, plain)
            assert store.release(Lease(plain, lease.owner, lease.attempt, lease.until_ms))
            assert store.get(given) is None

    def test_owner_fingerprint_and_result_of_a_subclass_are_the_same(self, store: Store, key: Key) -> None:
        lease = granted(claim(store, key, KeyWord.OWNER, fingerprint=KeyWord.FINGERPRINT))
        assert granted(claim(store, key, "owner", fingerprint="1.same")) == lease, "the same owner repeats its claim"
        record = occupied(claim(store, key, "b", fingerprint="1.same"))
        assert (record.owner, record.fingerprint) == ("owner", "1.same")
        assert [type(part) for part in (lease.owner, record.owner, record.fingerprint)] == [str] * 3
        mine = Lease(key, KeyWord.OWNER, lease.attempt, lease.until_ms)
        assert store.renew(mine, lease_ms=LEASE_MS) is not None
        assert complete(store, mine, Result(KeyWord.FORMAT, Chunk(b"paid")))
        result = held(store, key).result
        assert result is not None
        assert result == Result("bytes", b"paid")
        assert (type(result.format), type(result.payload)) == (str, bytes)

    def test_tenant_and_scope_may_be_empty(self, store: Store, key: Key) -> None:
        name = key.tenant  # the only part that is left to keep tests apart
        self.never_meet(store, [Key("", "", name), Key("", name, name), Key(name, "", name)])

    @pytest.mark.parametrize("letter", ["x", "é"], ids=["one byte", "two bytes"])
    def test_the_largest_sizes_fit(self, store: Store, clock: ManualClock, key: Key, letter: str) -> None:
        def largest(size_max: int, start: str = "") -> str:
            room = size_max - len(start)
            return start + letter * (room // len(letter.encode())) + "." * (room % len(letter.encode()))

        largest_key = Key(largest(TENANT_MAX, key.tenant), largest(SCOPE_MAX), largest(NAME_MAX))
        fingerprint, owner = largest(FINGERPRINT_MAX), largest(OWNER_MAX)
        lease = granted(claim(store, largest_key, owner, fingerprint=fingerprint))
        assert complete(store, lease, Result(largest(FORMAT_MAX), b""))
        record = held(store, largest_key)
        assert (record.key, record.fingerprint, record.owner) == (largest_key, fingerprint, owner)
        assert record.result == Result(largest(FORMAT_MAX), b"")

    def test_the_longest_durations_fit(self, store: Store, clock: ManualClock, key: Key) -> None:
        lease = granted(claim(store, key, "a", lease_ms=DURATION_MS_MAX, retention_ms=DURATION_MS_MAX))
        assert lease.until_ms == held(store, key).expires_ms == clock.now_ms + DURATION_MS_MAX
        assert store.release(lease)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("fingerprint", "x" * (FINGERPRINT_MAX + 1)),
            ("fingerprint", ""),
            ("owner", "x" * (OWNER_MAX + 1)),
            ("owner", ""),
            ("owner", "a\0"),
            ("lease_ms", 0),
            ("lease_ms", DURATION_MS_MAX + 1),
            ("retention_ms", 0),
            ("retention_ms", DURATION_MS_MAX + 1),
        ],
    )
    def test_a_claim_beyond_a_limit_is_refused_by_name(
        self, store: Store, key: Key, field: str, value: str | int
    ) -> None:
        arguments = {"owner": "a", "fingerprint": SAME, "lease_ms": LEASE_MS, "retention_ms": LEASE_MS, field: value}
        with pytest.raises(ValueError, match=field):
            store.claim(key, takeover=False, **arguments)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert store.get(key) is None

    @pytest.mark.parametrize("duration_ms", [0, -1, DURATION_MS_MAX + 1])
    def test_a_renewal_or_a_result_beyond_a_limit_is_refused_by_name(
        self, store: Store, key: Key, duration_ms: int
    ) -> None:
        lease = granted(claim(store, key, "a"))
        before = held(store, key)
        with pytest.raises(ValueError, match="lease_ms"):
            store.renew(lease, lease_ms=duration_ms or -1)  # 0 ends the lease
        with pytest.raises(ValueError, match="retention_ms"):
            complete(store, lease, retention_ms=duration_ms)
        assert store.get(key) == before

    @pytest.mark.parametrize("ok", [True, False], ids=["succeeded", "failed"])
    @pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
    def test_a_result_is_kept_byte_for_byte(self, store: Store, key: Key, payload: bytes, ok: bool) -> None:
        result = Result("bytes", payload, ok=ok)
        assert complete(store, granted(claim(store, key, "a")), result)
        assert held(store, key).result == result

    def test_many_keys_side_by_side(self, store: Store, key: Key) -> None:
        keys = [Key(key.tenant, f"scope {number % 5}", f"{number}") for number in range(100)]
        self.never_meet(store, keys)
