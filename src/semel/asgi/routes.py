"""Finds the endpoint that a request will reach, by asking the framework's own router. No framework is imported here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

from semel.asgi.types import Scope
from semel.http.marks import UNMARKED, UNSAFE, Mark, Marked, Unmarked, mark_of, marked, methods_of, nearest_mark

FULL = 2
"""The value of Starlette's `Match.FULL`."""
WRAPPERS_MAX = 50
NO_ROUTE: Final = Unmarked()
"""No route matches here, so the next ones are asked. `UNMARKED` stands for a route without a mark."""


def mark_in(scope: Scope, app: Any) -> Mark:
    """The mark of the endpoint for `scope`: Litestar has found it already; Starlette's or FastAPI's router is asked."""
    handler = scope.get("route_handler")
    if handler is not None:
        return litestar_mark(handler)
    routes = _routes_of(scope, app)
    mark = NO_ROUTE if routes is None else _starlette_mark(routes, scope)
    return UNMARKED if mark is NO_ROUTE else mark


def marked_in(scope: Scope, app: Any) -> Iterator[Marked]:
    """Every marked endpoint of a Starlette or FastAPI application."""
    return _find_marked(_routes_of(scope, app) or (), "")


def place_of(scope: Scope) -> tuple[str, str]:
    """The root below which the caller finds the application, and the path below that root.

    Most servers and Starlette's mounts leave the root in the path; some servers give it only beside the path.
    """
    root: str = scope.get("root_path", "").rstrip("/")
    path: str = scope["path"]
    return root, path.removeprefix(root) if path.startswith(f"{root}/") else path


def _routes_of(scope: Scope, app: Any) -> Iterable[Any] | None:
    """The routes behind our middleware, else those of the application in the scope, which may be wrapped."""
    routes = _routes(app)
    return _routes(scope.get("app")) if routes is None else routes


def _routes(app: Any) -> Iterable[Any] | None:
    """The routes of an application, also through middlewares that wrap it."""
    for _ in range(WRAPPERS_MAX):
        if hasattr(app, "routes"):
            routes: Iterable[Any] = app.routes
            return routes
        app = getattr(app, "app", None)
    return None


def litestar_mark(handler: Any) -> Mark:
    found = (getattr(handler, "opt", None) or {}).get("semel", UNMARKED)
    return mark_of(getattr(handler, "fn", None)) if found is UNMARKED else found


def _starlette_mark(routes: Iterable[Any], scope: Scope) -> Mark:
    """Match as the router does, through mounts and included routers. The router itself will match again."""
    for route in routes:
        if hasattr(route, "effective_candidates"):
            mark = _fastapi_mark(route, scope)
        elif hasattr(route, "matches"):
            match, child = route.matches(scope)
            if match.value != FULL:
                continue
            below = getattr(route, "routes", None)
            mark = (
                _starlette_mark(below, {**scope, **child})
                if below
                else nearest_mark(child.get("endpoint"), scope["method"])
            )
        else:
            continue
        if mark is not NO_ROUTE:
            return mark
    return NO_ROUTE


def _fastapi_mark(included: Any, scope: Scope) -> Mark:
    """FastAPI matches an included router as a whole. Its routes have the router's prefix on their paths here."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    for route in included.effective_candidates():
        if hasattr(route, "effective_candidates"):
            mark = _fastapi_mark(route, scope)
        elif route.path_regex is None:
            mark = _starlette_mark([route.starlette_route or route.original_route], scope)
        else:
            hit = route.path_regex.match(path) and scope["method"] in route.methods
            mark = nearest_mark(route.endpoint, scope["method"]) if hit else NO_ROUTE
        if mark is not NO_ROUTE:
            return mark
    return NO_ROUTE


def _find_marked(routes: Iterable[Any], prefix: str) -> Iterator[Marked]:
    """Every marked route, without those that the OpenAPI schema leaves out."""
    for route in routes:
        if hasattr(route, "effective_candidates"):
            yield from _find_marked(route.effective_candidates(), prefix)
        elif below := getattr(route, "routes", None):
            yield from _find_marked(below, prefix + getattr(route, "path", ""))
        elif hasattr(route, "methods") and getattr(route, "include_in_schema", True):
            methods = route.methods or (methods_of(route.endpoint) if isinstance(route.endpoint, type) else UNSAFE)
            yield from marked(prefix + route.path_format, methods, partial(nearest_mark, route.endpoint))
