"""Litestar: the outermost application of every test client, or the last of `plugins`."""

from __future__ import annotations

from functools import wraps
from typing import Any

import litestar
from litestar.config.app import AppConfig
from litestar.plugins import InitPlugin
from litestar.testing.client.base import BaseTestClient

from semel.litestar import IdempotencyPlugin
from transparency.asgi import OPTIONS, Keyless, Repeating, protected

application: Any = litestar.Litestar
client: Any = BaseTestClient


def outermost() -> None:
    _wrap_client(protected)


def plugin() -> None:
    _wrap_client(lambda app: Repeating(app, app))
    made = application.__init__

    @wraps(made)  # a test compares the arguments with the fields of AppConfig
    def with_semel(self: Any, *args: Any, plugins: Any = None, **kwargs: Any) -> None:
        added = [IdempotencyPlugin(store="memory://", **OPTIONS), KeylessPlugin()]
        made(self, *args, plugins=[*(plugins or ()), *added], **kwargs)

    application.__init__ = with_semel


class KeylessPlugin(InitPlugin):
    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.middleware.append(Keyless)  # type: ignore[arg-type]
        return app_config


def _wrap_client(wrap: Any) -> None:
    original = client.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.app = wrap(self.app)

    client.__init__ = made
