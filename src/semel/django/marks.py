"""Where a mark on a Django view may stand: the handler method or action, the view function, the class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from django.contrib.admindocs import utils as regexes
from django.http import HttpRequest
from django.urls import Resolver404, URLResolver, get_resolver
from django.urls.resolvers import RegexPattern

from semel.http.marks import UNMARKED, UNSAFE, Mark, Marked, Unmarked, mark_of, marked, methods_of

IN_VIEW = "semel_authenticate"
"""A method of view classes that claim the key themselves, after they have authenticated the caller."""
PARAMETER = re.compile(r"<(?:[^<>:]*:)?([^<>:]+)>")


def class_of(view: object) -> object | None:
    """The class behind a view function: Django calls it `view_class`, Django REST framework `cls`."""
    return getattr(view, "view_class", None) or getattr(view, "cls", None)


def mark_on(view: object, method: str) -> Mark:
    view_class = class_of(view)
    actions: dict[str, str] = getattr(view, "actions", None) or {}
    handler = getattr(view_class, actions.get(method.lower(), method.lower()), None)
    for place in (handler, view, view_class):
        mark = mark_of(place)
        if not isinstance(mark, Unmarked):
            return mark
    return UNMARKED


def claims_in_view(view: object) -> bool:
    return hasattr(class_of(view), IN_VIEW)


def authenticate(request: HttpRequest, path: str) -> bool:
    """Let the view at `path` authenticate the caller of `request`; False when that view cannot."""
    try:
        found = get_resolver(getattr(request, "urlconf", None)).resolve(path)
    except Resolver404:
        return False
    ask = getattr(class_of(found.func), IN_VIEW, None)
    return ask is not None and bool(ask(request, found))


def marked_views() -> Iterator[Marked]:
    """Every marked view of the project."""
    return _marked(get_resolver().url_patterns, "/")


def _marked(patterns: Any, prefix: str) -> Iterator[Marked]:
    for each in patterns:
        path = prefix + _path(each.pattern)
        if isinstance(each, URLResolver):
            yield from _marked(each.url_patterns, path)
            continue
        view = each.callback
        actions: dict[str, str] = getattr(view, "actions", None) or {}
        methods = [method.upper() for method in actions] or methods_of(class_of(view)) or UNSAFE
        yield from marked(path, methods, partial(mark_on, view))


def _path(pattern: Any) -> str:
    """A route as it is written for people, with `{name}` for its parameters."""
    route = str(pattern)
    if isinstance(pattern, RegexPattern):
        route = regexes.replace_named_groups(regexes.remove_non_capturing_groups(route))
        route = regexes.replace_metacharacters(regexes.replace_unnamed_groups(route))
    return PARAMETER.sub(r"{\1}", route)
