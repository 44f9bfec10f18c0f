"""A Django project whose views write in the transaction that their answer is stored in. Says nothing if all is well."""

from __future__ import annotations

import json
import sys
from functools import partial
from types import ModuleType
from typing import Any

from semel import Policy
from semel.transaction import TransactionStore
from semel.transaction.drivers.django import atomic
from transaction.victims import configure


def main(postgres: str, sqlite: str, alias: str) -> None:
    store: TransactionStore[Any] = TransactionStore(partial(atomic, alias))
    configure(
        postgres,
        sqlite,
        ROOT_URLCONF="shop_urls",
        ALLOWED_HOSTS=["*"],
        MIDDLEWARE=["semel.django.IdempotencyMiddleware"],
        SEMEL={"store": store, "policy": Policy(guarantee="exactly-once", required=True), "identify": lambda _: "shop"},
        LOGGING_CONFIG=None,
    )
    from django.http import HttpRequest, HttpResponse, JsonResponse
    from django.test import Client
    from django.urls import path

    def pay(request: HttpRequest) -> HttpResponse:
        body = json.loads(request.body)
        with store.current().cursor() as cursor:
            cursor.execute("INSERT INTO effects (name) VALUES (%s)", [body["name"]])
        if body["answer"] == "raise":
            raise ArithmeticError("on purpose")
        return JsonResponse({"paid": body["name"]}, status=int(body["answer"]))

    urls: Any = ModuleType("shop_urls")
    urls.urlpatterns = [path("pay", pay)]
    sys.modules["shop_urls"] = urls
    client = Client(raise_request_exception=False)
    for answer, status in (("201", 201), ("402", 402), ("raise", 500)):
        name = f"django.{answer}"
        body = {"name": name, "answer": answer}
        replies = [
            client.post("/pay", body, content_type="application/json", headers={"Idempotency-Key": name})
            for _ in range(2)
        ]
        assert [reply.status_code for reply in replies] == [status, status], replies
        assert replies[0].content == replies[1].content
        assert replies[1].headers["Idempotent-Replayed"] == "true", replies[1].headers


if __name__ == "__main__":
    main(*sys.argv[1:])
