"""A Django project whose views write in the transaction that their answer is stored in. Says nothing if all is well."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

from semel import OutcomeUnknown, Policy
from semel.connections.django import atomic
from semel.transaction import TransactionStore, within
from transaction.victims import configure

POLICY = Policy(guarantee="exactly-once", required=True, result_max=1000)
PART = "x" * 400
DEADLOCKS = {
    "default": "DO $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '40P01'; END $$",
    "maria": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'on purpose'",
}


class Timeout(BaseException):
    """As gevent's is: no Exception, so that nothing catches it on its way."""


def main(postgres: str, sqlite: str, mariadb: str, alias: str) -> None:
    store: TransactionStore[Any] = TransactionStore(partial(atomic, alias))
    configure(
        postgres,
        sqlite,
        mariadb,
        ROOT_URLCONF="shop_urls",
        ALLOWED_HOSTS=["*"],
        MIDDLEWARE=["semel.django.IdempotencyMiddleware"],
        SEMEL={"store": store, "policy": POLICY, "identify": lambda _: "shop"},
        LOGGING_CONFIG=None,
    )
    from django.db import connections
    from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
    from django.http.response import HttpResponseBase
    from django.test import Client
    from django.urls import path

    runs: dict[str, int] = {}

    def write(name: str) -> None:
        with store.current().cursor() as cursor:
            cursor.execute("INSERT INTO effects (name) VALUES (%s)", [name])

    def pay(request: HttpRequest) -> HttpResponseBase:
        body = json.loads(request.body)
        name, answer = body["name"], body["answer"]
        runs[name] = runs.get(name, 0) + 1
        write(name)
        within(store.current()).publish(name, {"answer": answer})
        if answer == "raise":
            raise ArithmeticError("on purpose")
        if answer == "unknown" and runs[name] == 1:
            raise OutcomeUnknown("on purpose")
        if answer == "timeout" and runs[name] == 1:
            raise Timeout
        if answer == "deadlock" and runs[name] == 1:
            with store.current().cursor() as cursor:
                cursor.execute(DEADLOCKS[alias])
        if answer in ("stream", "break"):
            return StreamingHttpResponse(parts(name, answer), status=201)
        return JsonResponse({"paid": name}, status=int(answer) if answer.isdecimal() else 201)

    def parts(name: str, answer: str) -> Iterator[str]:
        yield from [PART] * 4
        write(name)
        if answer == "break":
            raise ArithmeticError("on purpose, in the middle of the answer")

    urls: Any = ModuleType("shop_urls")
    urls.urlpatterns = [path("pay", pay)]
    sys.modules["shop_urls"] = urls
    client = Client(raise_request_exception=False)

    def call(answer: str) -> Any:
        name = f"django.{answer}"
        body = {"name": name, "answer": answer}
        return client.post("/pay", body, content_type="application/json", headers={"Idempotency-Key": name})

    for answer, status in (("201", 201), ("402", 402), ("raise", 500), ("break", 500)):
        replies = [call(answer) for _ in range(2)]
        assert [reply.status_code for reply in replies] == [status, status], replies
        assert replies[0].content == replies[1].content
        assert replies[1].headers["Idempotent-Replayed"] == "true", replies[1].headers
    # Cut off: rolled back at once, the thread's connection is free, and the repeat runs.
    assert call("unknown").status_code == 504
    assert not connections[alias].in_atomic_block
    assert call("unknown").status_code == 201
    try:
        call("timeout")
        raise AssertionError("the exception goes on")
    except Timeout:
        assert not connections[alias].in_atomic_block
    assert call("timeout").status_code == 201
    # Too large to keep: sent after the commit, whole.
    large, again = call("stream"), call("stream")
    assert (large.status_code, large.getvalue().decode()) == (201, PART * 4), large
    assert again.status_code == 409, again
    if alias in DEADLOCKS:
        assert [call("deadlock").status_code for _ in range(2)] == [503, 201]


if __name__ == "__main__":
    main(*sys.argv[1:])
