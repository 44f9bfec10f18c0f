"""The actions as a Starlette application, with the middlewares that people have, inside and outside of ours."""

import os
from collections.abc import AsyncIterator

from apps.actions import act, protection
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from semel.asgi import IdempotencyMiddleware


async def endpoint(request: Request) -> Response:
    await request.body()
    answer = await act(request.path_params["action"], request.headers.get("idempotency-key", "-").strip('"'))

    async def stream() -> AsyncIterator[bytes]:
        for chunk in answer.chunks:
            yield chunk

    response = (
        StreamingResponse(stream(), answer.status)
        if len(answer.chunks) > 1
        else Response(answer.chunks[0], answer.status)
    )
    response.raw_headers = [
        *((name.encode(), value.encode()) for name, value in answer.headers),
        *(header for header in response.raw_headers if header[0] == b"content-length"),
    ]
    if "session" in request.scope:
        request.session["seen"] = "yes"
    return response


class Timing(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers["x-timed"] = "yes"
        return response


class ByHeader(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        name = conn.headers.get("caller")
        return (AuthCredentials(["authenticated"]), SimpleUser(name)) if name else None


def protecting(**changes: object) -> Middleware:
    return Middleware(IdempotencyMiddleware, **(protection() | changes))


CORS = Middleware(CORSMiddleware, allow_origins=["*"])
SESSIONS = Middleware(SessionMiddleware, secret_key="x")
STACKS = {
    "plain": lambda: [protecting()],
    "inside": lambda: [protecting(), CORS, SESSIONS, Middleware(GZipMiddleware, minimum_size=10), Middleware(Timing)],
    "outside": lambda: [
        Middleware(Timing), CORS, SESSIONS, Middleware(GZipMiddleware, minimum_size=10),
        Middleware(AuthenticationMiddleware, backend=ByHeader()), protecting(identify=None), Middleware(Timing),
    ],
}  # fmt: skip

app = Starlette(
    routes=[Route("/{action}", endpoint, methods=["POST"])],
    middleware=STACKS[os.environ.get("SEMEL_TEST_STACK", "plain")](),
)
