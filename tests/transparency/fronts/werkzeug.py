"""Werkzeug: every application that its test client, or `Response.from_app`, calls."""

from __future__ import annotations

from typing import Any

import werkzeug.test
from werkzeug._internal import _get_environ

from transparency.wsgi import protected


def outermost() -> None:
    called: Any = werkzeug.test.run_wsgi_app

    def run_wsgi_app(app: Any, environ: Any, buffered: bool = False) -> Any:
        given = _get_environ(environ)
        return called(protected(app) if "REQUEST_METHOD" in given else app, given, buffered)  # no server leaves it out

    werkzeug.test.run_wsgi_app = run_wsgi_app
