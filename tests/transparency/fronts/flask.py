"""Flask: the extension, or the middleware around `app.wsgi_app`."""

from __future__ import annotations

from typing import Any

import flask
from flask import Flask

from semel.flask import Idempotency
from semel.stores.open import open_store
from transparency.wsgi import OPTIONS, hide, protected, repeating

application: Any = flask.Flask


def outermost() -> None:
    application.__call__ = lambda self, environ, start_response: protected(self.wsgi_app)(environ, start_response)


def extension() -> None:
    made, called = application.__init__, application.wsgi_app

    def with_semel(self: Flask, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        Idempotency(self, store=open_store("memory://"), **OPTIONS)

    def hidden(self: Flask, environ: Any, start_response: Any) -> Any:
        hide(environ)
        return called(self, environ, start_response)

    application.__init__, application.wsgi_app = with_semel, hidden
    application.__call__ = lambda self, environ, start_response: repeating(self.wsgi_app)(environ, start_response)
