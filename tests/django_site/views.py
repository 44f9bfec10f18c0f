"""Views that count their effects. What they answer is said by the last part of the path."""

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from django.core.exceptions import SuspiciousOperation
from django.db import connections
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.utils import translation
from django.views import View
from django.views.decorators.csrf import csrf_exempt

import semel
from semel.django import idempotency_exempt, idempotent
from semel.runtime.operation import current_operation

effects: list[str] = []
headers_seen: list[dict[str, object]] = []
entered = threading.Event()
go_on = threading.Event()
CHUNK = b"x" * 1000
HUGE = 40
"""Megabytes: more than a process may take for one answer."""


class Refused(Exception):
    """Listed in `release_exceptions`."""


def ok(request: HttpRequest) -> HttpResponseBase:
    operation = current_operation()
    response = JsonResponse({"number": len(effects), "psp": operation.derive("psp") if operation else None}, status=201)
    response.headers["X-Paid"] = "yes"
    response.set_cookie("seen", "1")
    return response


def raising(error: type[Exception]) -> Callable[[HttpRequest], HttpResponseBase]:
    def answer(request: HttpRequest) -> HttpResponseBase:
        raise error(f"{error.__name__} on purpose")

    return answer


def chunks(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield CHUNK


def breaking() -> Iterator[bytes]:
    yield CHUNK
    raise RuntimeError("broke off on purpose")


def nothing_done(request: HttpRequest) -> HttpResponseBase:
    operation = current_operation()
    assert operation is not None
    operation.nothing_done()
    return HttpResponse("later", status=202)


def undone_boom(request: HttpRequest) -> HttpResponseBase:
    nothing_done(request)
    raise RuntimeError("on purpose")


def undone_break() -> Iterator[bytes]:
    operation = current_operation()
    assert operation is not None
    operation.nothing_done()
    yield CHUNK
    raise RuntimeError("on purpose")


def directed(request: HttpRequest) -> HttpResponseBase:
    return HttpResponse("secret", headers={"Semel-Directive": "not-kept"})


def german(request: HttpRequest) -> HttpResponseBase:
    translation.activate("de")
    return HttpResponse("ja")


def headers(request: HttpRequest) -> HttpResponseBase:
    headers_seen.append(dict(request.META))
    return HttpResponse("seen")


def slow(request: HttpRequest) -> HttpResponseBase:
    entered.set()
    assert go_on.wait(20)
    return ok(request)


def echo(request: HttpRequest) -> HttpResponseBase:
    files = {name: file.read().decode() for name, file in request.FILES.items()}
    return JsonResponse({"post": request.POST.dict(), "files": files})


ANSWERS: dict[str, Callable[[HttpRequest], HttpResponseBase]] = {
    "ok": ok,
    "boom": raising(RuntimeError),
    "not-executed": raising(semel.NotExecuted),
    "interrupted": raising(semel.OutcomeUnknown),
    "refused": raising(Refused),
    "missing": raising(Http404),
    "busy": lambda request: HttpResponse("busy", status=429),
    "empty": lambda request: HttpResponse(status=204),
    "moved": lambda request: HttpResponse(status=303, headers={"Location": "/elsewhere"}),
    "invalid": lambda request: JsonResponse({"no": "funds"}, status=402),
    "stream": lambda request: StreamingHttpResponse(chunks(3), content_type="text/csv"),
    "huge": lambda request: StreamingHttpResponse((bytes(1_000_000) for _ in range(HUGE)), content_type="text/csv"),
    "big": lambda request: StreamingHttpResponse(chunks(30), content_type="text/csv"),
    "large": lambda request: HttpResponse(CHUNK * 30),
    "breaking": lambda request: StreamingHttpResponse(breaking()),
    "file": lambda request: FileResponse(io.BytesIO(b"a file"), filename="receipt.txt"),
    "template": lambda request: TemplateResponse(request, "paid.html", {"number": len(effects)}),
    "nothing-done": nothing_done,
    "directed": directed,
    "german": german,
    "headers": headers,
    "suspicious": raising(SuspiciousOperation),
    "undone-boom": undone_boom,
    "undone-break": lambda request: StreamingHttpResponse(undone_break()),
    "splendid": lambda request: HttpResponse("ok", reason="Splendid"),
    "splendid-stream": lambda request: StreamingHttpResponse(chunks(3), status=299, reason="Splendid"),
    "slow": slow,
    "echo": echo,
}


@csrf_exempt
def pay(request: HttpRequest, answer: str) -> HttpResponseBase:
    effects.append(answer)
    return ANSWERS[answer](request)


async def achunks(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield CHUNK


async def ahuge() -> AsyncIterator[bytes]:
    for _ in range(HUGE):
        yield bytes(1_000_000)


@csrf_exempt
async def apay(request: HttpRequest, answer: str) -> HttpResponseBase:
    effects.append(answer)
    if answer in ("stream", "big"):
        return StreamingHttpResponse(achunks(3 if answer == "stream" else 30), content_type="text/csv")
    if answer == "huge":
        return StreamingHttpResponse(ahuge(), content_type="text/csv")
    if answer == "slow":
        entered.set()
        while not go_on.is_set():
            await asyncio.sleep(0.005)
        return ok(request)
    return ANSWERS[answer](request)


@csrf_exempt
def book(request: HttpRequest, alias: str) -> HttpResponseBase:
    """Writes into a ledger, inside the transaction of ATOMIC_REQUESTS, and fails."""
    assert connections[alias].in_atomic_block
    effects.append("booked")
    with connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO ledger VALUES ('one')")
    raise RuntimeError("after booking")


def with_csrf(request: HttpRequest) -> HttpResponseBase:
    effects.append("csrf")
    return echo(request)


def count(request: HttpRequest) -> HttpResponseBase:
    effects.append("get")
    return HttpResponse(str(len(effects)))


@csrf_exempt
@idempotent()
def marked(request: HttpRequest, number: str = "") -> HttpResponseBase:
    effects.append("marked")
    return ok(request)


@csrf_exempt
@idempotency_exempt
def exempt(request: HttpRequest, shop: str = "", number: int = 0) -> HttpResponseBase:
    effects.append("exempt")
    return ok(request)


class Payments(View):
    @idempotent()
    def post(self, request: HttpRequest) -> HttpResponseBase:
        effects.append("class")
        return ok(request)

    def put(self, request: HttpRequest) -> HttpResponseBase:
        effects.append("class")
        return ok(request)
