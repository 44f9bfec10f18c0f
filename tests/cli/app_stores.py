"""One application for each framework, each on a store of its own, for `semel config --app`."""

import os
from typing import Any

from fastapi import FastAPI
from flask import Flask
from litestar import Litestar
from quart import Quart
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

import semel.fastapi
import semel.flask
import semel.litestar
import semel.quart
from cli.policy_apps import plain, plain_wsgi
from semel import open_store
from semel.asgi import IdempotencyMiddleware
from semel.stores.sqlite.store import SqliteStore
from semel.wsgi import IdempotencyMiddleware as WsgiMiddleware

FOLDER = os.environ.get("APPS_FOLDER", "")
given: Any = {"identify": lambda request: "x"}


def url(name: str) -> str:
    return f"sqlite:///{FOLDER}/{name}.db?busy_timeout_ms=1234"


asgi = IdempotencyMiddleware(plain, store=url("asgi"), **given)
wsgi = WsgiMiddleware(plain_wsgi, store=open_store(url("wsgi")), **given)
made = WsgiMiddleware(plain_wsgi, store=SqliteStore(f"{FOLDER}/made.db"), **given)
starlette = Starlette(
    middleware=[Middleware(GZipMiddleware), Middleware(IdempotencyMiddleware, store=url("starlette"), **given)]
)
fastapi = FastAPI()
semel.fastapi.protect(fastapi, store=url("fastapi"), **given)
flask = Flask("flask")
semel.flask.Idempotency(flask, store=url("flask"), **given)
litestar = Litestar(plugins=[semel.litestar.IdempotencyPlugin(store=url("litestar"), **given)])
quart = Quart("quart")
semel.quart.protect(quart, store=url("quart"), **given)
