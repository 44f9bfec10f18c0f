"""Which policy applies to a path that the upstream may read in more than one way.

The gateway forwards a path as it came. However the upstream reads it, the request is at least as protected as the rules
say. Where different rules apply to different readings, the gateway cannot tell which is right and refuses the request.
"""

from __future__ import annotations

from semel.asgi import IdempotencyMiddleware
from semel.asgi.types import Scope
from semel.core import http
from semel.core.http import NAME
from semel.core.rules import possible_policies
from semel.core.spellings import ODD, decodings
from semel.http import marks
from semel.http.gate import Gate
from semel.http.marks import SAFE, UNMARKED, Mark

POLICY = "semel.gateway.policy"
"""Where the scope of a request has the policy that was found here."""
CONTRADICTION = http.Response(
    400,
    ((b"content-type", b"text/plain; charset=utf-8"),),
    b"The path of this request can be read in several ways, and different rules apply to them. Nothing was run. Send "
    b"it in its plain spelling: without dot segments, repeated slashes, ;parameters, and slashes that are encoded.",
)


class RuledMiddleware(IdempotencyMiddleware):
    """The middleware, which takes the policy that `read_path` has put into the scope."""

    async def look_at_store(self) -> None:
        """Do nothing: the supervisor looks at the store, once for all workers."""

    def mark(self, scope: Scope) -> Mark:
        found: Mark = scope.get(POLICY, UNMARKED)
        return found


def read_path(scope: Scope, gate: Gate) -> Scope | None:
    """The scope, with its policy if the path has several readings; None when the readings contradict each other."""
    path: str = scope["path"]
    raw: bytes = scope["raw_path"]
    if scope["method"] in SAFE or not gate.rules or (b"%" not in raw and ODD.search(path) is None):
        return scope
    decoded = decodings(path, raw.decode("ascii"))
    found = possible_policies(scope["method"].upper(), decoded, gate.rules, gate.policy)
    if len(found) > 1 and not gate.header_set.isdisjoint(map(NAME, scope["headers"])):
        return None
    marks.expect()
    return {**scope, POLICY: found[0]}
