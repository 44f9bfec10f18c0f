"""The gate: what every HTTP front decides before the work. Is the request protected, which key, whose, which request?

A gate holds settings only. It never touches a store or a connection, so ASGI, WSGI and Django share it unchanged. The
answers are in `semel.http.answers`, accepted operations in `semel.http.monitors`.
"""

from __future__ import annotations

import base64
from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from os import urandom
from secrets import token_bytes, token_urlsafe

from msgspec import Struct

from semel.codecs.canonical import canonical_json
from semel.core import http
from semel.core.correlation import TRACE_LABEL, request_label
from semel.core.effects import Claim, Plan
from semel.core.events import NO_KEY, Event, EventKind
from semel.core.fingerprint import URL_SAFE, Fingerprint, RequestParts, digest, fingerprint, raw
from semel.core.hosts import host_of
from semel.core.http import Headers, Response
from semel.core.keys import KeyMalformed, read_key
from semel.core.policy import Policy
from semel.core.policy_values import ErrorStyle
from semel.core.protocol import claim_for
from semel.core.records import SCOPE_MAX, TENANT_MAX, Key, plain_text
from semel.core.rules import Rule, every_policy, policy_for
from semel.errors import StoreMisconfigured
from semel.http.answers import Answers
from semel.http.marks import UNMARKED, Mark, Unmarked
from semel.http.monitors import Monitored, Monitors
from semel.runtime.arguments import checked_policy, checked_rules, checked_secret
from semel.runtime.listener import OnEvent, ignore

TRACEPARENT, REQUEST_ID = b"traceparent", b"x-request-id"
DIGESTED = "sha256:"
JSON = Fingerprint(body="json")


class Admitted(Struct, frozen=True, gc=False):
    """A request that carries a key under a policy."""

    policy: Policy
    name: str


class Refused(Struct, frozen=True):
    """A request that gets a problem as its answer at once."""

    kind: str
    detail: str
    errors: ErrorStyle


def too_large_body(size_max: int, policy: Policy) -> Refused:
    return Refused("body-too-large", f"The limit is {size_max} bytes.", policy.errors)


class Gate:
    """The settings of one middleware, checked at start-up."""

    def __init__(
        self,
        policy: Policy,
        rules: Iterable[Rule] = (),
        *,
        publish: str | None = http.WELL_KNOWN,
        secret: bytes | str | None = None,
        on_event: OnEvent = ignore,
        in_transactions: bool = False,
    ) -> None:
        self.policy = checked_policy(policy)
        self._in_transactions = in_transactions
        self._on_event = on_event
        self.rules = checked_rules(rules)
        self.publish = publish
        self.published_at = publish or http.WELL_KNOWN
        self.secret = checked_secret(secret)
        self.rootless = Answers(publish, errors=policy.errors)
        self.monitors = Monitors(self.published_at, self.secret, in_transactions=in_transactions)
        self._checked: dict[int, Policy] = {}
        every = every_policy(self.rules, policy)
        self.has_quota = any(each.quota is not None for each in every)
        self.required = any(each.required for each in every)
        self.header_set = frozenset[bytes]().union(*(each.header_set for each in every))
        for each in every:
            self._check(each)

    def _check(self, policy: Policy) -> None:
        checked_policy(policy, "a mark")
        if policy.guarantee == "exactly-once" and not self._in_transactions:
            raise StoreMisconfigured(
                'Policy.guarantee="exactly-once" needs a store that gives the handler its database transaction: '
                'semel.transaction.TransactionStore. This one does not; use "at-most-once" (the default) or '
                '"at-least-once" with it.'
            )
        if policy.guarantee == "exactly-once" and policy.on_store_error == "open":
            raise StoreMisconfigured(
                'Policy.on_store_error="open" runs the handler without its transaction, so it cannot be '
                'guarantee="exactly-once": leave on_store_error="closed"'
            )
        if policy.in_flight == "accept" and self.secret is None:
            raise StoreMisconfigured(
                'Policy.in_flight="accept" needs a link that cannot be guessed: give the middleware a secret='
            )
        if policy.fingerprint == "json" or (
            isinstance(policy.fingerprint, Fingerprint) and policy.fingerprint.body == "json"
        ):
            canonical_json(b"{}", JSON)  # fails at start-up if the extra is missing
        self._checked[id(policy)] = policy  # a reference, so that no other object gets its id

    def admit(
        self, method: str, path: str, headers: Sequence[tuple[bytes, bytes]], mark: Mark = UNMARKED
    ) -> Admitted | Refused | None:
        """None when the request is not protected, a problem when it is refused, else the key it carries.

        `path` is the decoded path below the application's root, as its own routes see it.
        """
        method = method.upper()  # as some frameworks do: a `post` that they run as POST must not pass unprotected
        if isinstance(mark, Unmarked):
            policy = policy_for(method, _as_routed(path), self.rules, self.policy) if self.rules else self.policy
        else:
            policy = mark
            if policy is not None and id(policy) not in self._checked:
                self._check(policy)
        if policy is None or method not in policy.methods:
            return None
        try:
            name = read_key(headers, policy)
        except KeyMalformed as error:
            return Refused("key-malformed", f"{error}.", policy.errors)
        if name is None:
            if policy.required:
                return Refused("key-missing", f"Send the header {next(iter(policy.headers))}.", policy.errors)
            return None
        return Admitted(policy, name)

    def answers(self, root: str = "") -> Answers:
        """The answers for a caller that finds the application below `root`."""
        return Answers(self.publish, root, self.policy.errors) if root else self.rootless

    def refuse(self, refused: Refused, answers: Answers, method: str, path: str, headers: Headers) -> Response:
        """The answer to a request that is refused before its key is claimed. Reports the refusal as an event."""
        key = Key("", _bound_text(f"{method.upper()} {path}", SCOPE_MAX), NO_KEY.name)
        given = dict(headers)
        label = _label(given.get(TRACEPARENT), given.get(REQUEST_ID, b""))
        self._on_event(Event(EventKind.REFUSED, key, detail=refused.kind, asker=f".{label}"))
        return answers.styled(refused.errors).problem(refused.kind, refused.detail)

    def monitor(self, monitored: Monitored, tenant: str | None, root: str = "") -> Plan[Response | None]:
        """How an accepted operation ended, for its own tenant; None for other tenants."""
        if self.tenant_of(tenant) != monitored.key.tenant:
            return None
        return (yield from self.monitors.answer(monitored, self.answers(root), self.policy))

    def claim(self, admitted: Admitted, tenant: str | None, request: RequestParts) -> Claim:
        """The claim of a request: for its key, with its fingerprint, by a new owner.

        The common cases of `key` and of the owner are written out here, because nearly all requests take them.
        """
        policy, headers = admitted.policy, dict(request.headers)
        scope = f"{request.method} {_host_in(policy, request)}{request.path}"
        if (
            policy.scope == "endpoint"
            and type(tenant) is str
            and len(both := tenant + scope) <= TENANT_MAX
            and both.isascii()
            and both.isprintable()
            and DIGESTED not in both
        ):
            key = Key(tenant, scope, admitted.name)
        else:
            key = self.key(admitted, tenant, request)
        raw_alone = policy.fingerprint == "raw"
        fingerprint = raw(request, self.secret) if raw_alone else self.fingerprint(policy, request)
        if TRACEPARENT in headers or REQUEST_ID in headers:
            owner = _label_owner(headers.get(TRACEPARENT), headers.get(REQUEST_ID, b""))
        else:
            owner = b2a_base64(urandom(16), newline=False).translate(URL_SAFE, b"=").decode()
        return claim_for(key, fingerprint, owner, policy)

    def key(self, admitted: Admitted, tenant: str | None, request: RequestParts) -> Key:
        policy = admitted.policy
        host = _host_in(policy, request)
        if policy.scope == "endpoint":
            scope = f"{request.method} {host}{request.path}"
        elif policy.scope == "tenant":
            scope = host
        else:
            chosen = policy.scope(request)
            text = chosen.decode("latin-1") if isinstance(chosen, bytes) else plain_text("the scope", chosen)
            scope = f"={host}/{text}" if host else f"={text}"
        return Key(self.tenant_of(tenant), _bound_text(scope, SCOPE_MAX), admitted.name)

    def fingerprint(self, policy: Policy, request: RequestParts) -> str:
        spec = policy.fingerprint
        if spec == "raw":
            return raw(request, self.secret)
        if spec == "json":
            spec = JSON
        if isinstance(spec, Fingerprint):
            return fingerprint(request, spec, canonicalise=canonical_json, secret=self.secret)
        chosen = spec(request)
        encoded = chosen if isinstance(chosen, bytes) else plain_text("the fingerprint", chosen).encode()
        # With one key for all endpoints, its use at another endpoint is another request, whatever the fingerprint.
        where = [request.method.encode(), request.path.encode()] if policy.scope == "tenant" else []
        return digest([b"chosen", *where, encoded], secret=self.secret)

    # The caller

    def tenant_of(self, tenant: str | None) -> str:
        if tenant is not None and not isinstance(tenant, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"identify= must return text or None, not {type(tenant).__name__}")
        return _bound_text(plain_text("tenant", tenant or ""), TENANT_MAX)

    def caller(self, user: str | None, authorization: bytes | None) -> str | None:
        """The caller's name without an `identify`: the authenticated user, else a digest of the credentials."""
        if user is not None:
            return f"user.{plain_text('the user', user)}"
        return None if authorization is None else self.bearer(authorization)

    def bearer(self, authorization: bytes) -> str:
        """A digest that names the holder of these credentials. With a secret, they cannot be guessed from it."""
        return f"auth.{digest([b'authorization', authorization], secret=self.secret)}"

    def unidentified(self, missing: str, way_out: str) -> str:
        """The warning at start-up that there is no `identify`."""
        warning = (
            f"{missing}: callers are told apart by the authenticated user, else by their Authorization header, so a "
            "refreshed token looks like another caller, and callers without one share their keys."
        )
        if self.secret is None:
            warning += (
                " Without a secret that header is stored as its plain SHA-256: a reader of the store can confirm a "
                "guessed credential. Give a secret, 32 random bytes."
            )
        return f"{warning} {way_out}"


def _host_in(policy: Policy, request: RequestParts) -> str:
    """The host as a part of the scope: empty, unless the policy keeps hosts apart."""
    return f"//{host_of(request.headers)}" if policy.per_host else ""


def _label_owner(trace: bytes | None, request_id: bytes) -> str:
    """An owner, followed by the request's correlation id, so that the record names it."""
    label = _label(trace, request_id)
    if trace is not None and TRACE_LABEL.fullmatch(label) is not None:
        # A shorter spelling of the same number of bits leaves room for trace and span.
        return f"{base64.b85encode(token_bytes(16)).decode()}.{label}"
    return f"{token_urlsafe(16)}.{label}"


def _label(trace: bytes | None, request_id: bytes) -> str:
    return request_label(None if trace is None else trace.decode("latin-1"), request_id.decode("latin-1"))


def _as_routed(path: str) -> str:
    """The path as the most lenient routers see it: no spelling may run an endpoint under the rule of another one.

    Werkzeug drops all leading slashes but one; Starlette's patterns match before a newline at the end.
    """
    return f"/{path.lstrip('/').removesuffix(chr(10))}"


def _bound_text(text: str, size_max: int) -> str:
    """A text as part of a key. One that is too long, cannot be kept, or looks like a digest becomes its digest."""
    if len(text) <= size_max and text.isascii() and text.isprintable() and not text.startswith(DIGESTED):
        return text  # nearly all texts
    encoded = text.encode("utf-8", "surrogatepass")
    plain = len(encoded) <= size_max and text.isprintable() and not text.startswith(DIGESTED)
    return text if plain else f"{DIGESTED}{digest([encoded])}"
