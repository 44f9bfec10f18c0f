"""The frameworks' suites: which of their tests are run, and in which ways their applications are put behind semel.

Not run: what starts development servers, benchmarks, every test on trio (semel's async code is asyncio's), and tests
that write to one folder of the source, which two runs share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ON_PYTEST = ("-m", "pytest", "-p", "transparency.plugin", "-p", "no:cacheprovider", "-q", "--timeout", "60")
ON_DJANGO = ("-W", "ignore", "runtests.py", "--parallel=1", "--settings=transparency.django_runner", "-v", "0")
# A part of Django's suite, which takes an hour: what makes requests, and what stands between a request and a view.
DJANGO_APPS = """
    admin_custom_urls admin_inlines admin_views asgi async auth_tests conditional_processing contenttypes_tests
    context_processors csrf_tests decorators file_uploads flatpages_tests generic_inline_admin generic_views handlers
    httpwrappers i18n logging_tests messages_tests middleware middleware_exceptions redirects_tests requests_tests
    responses servers sessions_tests shortcuts signed_cookies_tests sites_tests staticfiles_tests test_client
    test_client_regress test_utils transactions urlpatterns urlpatterns_reverse view_tests wsgi
""".split()
# Without what needs servers (stores, channels, the command line), and brotli and beanie, which are not installed.
# Some of Litestar's tests fail bare now and then. One hands a connection of SQLite to any thread of a pool. Those of
# WebSockets wait a tenth of a second for a message (`queue.Empty`), so they get further tries. And the suite fails the
# test during which the garbage collector finds an open socket, whichever test left it open.
LITESTAR_TESTS = (
    "tests",
    *("-W", "ignore::pytest.PytestUnraisableExceptionWarning", "--reruns", "3", "--only-rerun", "Empty"),
    *("-k", "not trio and not redis and not valkey and not asyncpg and not psycopg and not brotli"),
    "--ignore=tests/unit/test_channels",
    "--ignore=tests/unit/test_cli",
    "--ignore=tests/unit/test_plugins/test_pydantic/test_beanie_integration.py",
    "--ignore=tests/unit/test_static_files/test_file_serving_resolution.py",
    "--ignore=tests/unit/test_testing/test_sub_client",
    "--deselect=tests/examples/test_plugins/test_sqlalchemy_init_plugin.py::test_sync_app",
)


@dataclass(frozen=True)
class Suite:
    package: str
    arms: tuple[str, ...]
    tests: tuple[str, ...] = ("tests",)
    command: tuple[str, ...] = ON_PYTEST
    folder: str = "."
    """Where the command is run, below the source archive."""
    has_archive: bool = True
    """Whether the source archive on the package index carries the tests. If not, a checkout must be given."""


SUITES: Mapping[str, Suite] = {
    "starlette": Suite("starlette", ("starlette.outermost", "starlette.added"), ("tests", "-k", "not trio")),
    "fastapi": Suite(
        "fastapi",
        ("starlette.outermost", "starlette.added"),
        (
            *("tests", "-k", "not trio", "--ignore=tests/benchmarks", "--ignore=tests/test_telemetry"),
            "--ignore=tests/test_tutorial/test_static_files",
        ),
    ),
    "werkzeug": Suite("werkzeug", ("werkzeug.outermost",), ("tests", "-m", "not dev_server")),
    "flask": Suite("flask", ("flask.outermost", "flask.extension")),
    "django": Suite("django", ("django.middleware",), tuple(DJANGO_APPS), ON_DJANGO, "tests"),
    "djangorestframework": Suite("djangorestframework", ("django.middleware",)),
    "litestar": Suite("litestar", ("litestar.outermost", "litestar.plugin"), LITESTAR_TESTS, has_archive=False),
}
NO_TESTS = "its source archive carries no tests"
WITHOUT_SUITE = {"quart": NO_TESTS}


def missing_source(name: str, sources: Mapping[str, str]) -> str | None:
    """Why a suite cannot be run, or None if it can."""
    if SUITES[name].has_archive or name in sources:
        return None
    return f"{NO_TESTS}; give a checkout with --source {name}=FOLDER"
