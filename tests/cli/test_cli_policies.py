"""`guide`, `openapi` and `config` show the live policy, wherever it comes from."""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from cli.calls import run
from cli.policy_apps import wsgi_app

RULES = """
[[rules]]
match = "POST /payments/{id}/capture"
required = true
key_format = "uuid"

[[rules]]
match = "/webhooks/"
exempt = true
"""


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    with make_server("127.0.0.1", 0, wsgi_app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(params=["asgi", "wsgi", "service", "rules"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    if request.param == "service":
        return "--url", request.getfixturevalue("service")
    if request.param == "rules":
        (tmp_path / "semel.toml").write_text(RULES)
        return "--rules", str(tmp_path / "semel.toml")
    return "--app", "cli.policy_apps:app" if request.param == "asgi" else "cli.policy_apps:wsgi_app"


def test_the_guide_tells_what_the_policy_says(source: tuple[str, str]) -> None:
    done = run("guide", *source)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("## Retry safety")
    assert "kept for 24 hours" in done.output
    assert "| POST /payments/{id}/capture | required | key format: uuid |" in done.output
    assert "| /webhooks/ | not used |" in done.output
    assert "| 409 | `outcome-unknown` | no |" in done.output


def test_openapi_is_merged_by_the_rules(source: tuple[str, str], tmp_path: Path) -> None:
    document = tmp_path / "openapi.json"
    operation = {"responses": {"200": {"description": "fine"}}}
    paths = ["/payments/{id}/capture", "/orders", "/webhooks/x"]
    document.write_text(json.dumps({"openapi": "3.1.0", "paths": {path: {"post": operation} for path in paths}}))
    done = run("openapi", *source, "--merge", str(document))
    assert done.exit_code == 0, done.output
    merged = json.loads(done.stdout)
    [capture] = merged["paths"]["/payments/{id}/capture"]["post"]["parameters"]
    assert (capture["name"], capture["required"], capture["schema"]["format"]) == ("Idempotency-Key", True, "uuid")
    [orders] = merged["paths"]["/orders"]["post"]["parameters"]
    assert orders["required"] is False
    assert merged["paths"]["/webhooks/x"]["post"] == operation
    assert "422" in merged["paths"]["/orders"]["post"]["responses"]


def test_the_openapi_fragment_stands_alone() -> None:
    components = json.loads(run("openapi").stdout)["components"]
    assert components["parameters"]["IdempotencyKey"]["in"] == "header"
    assert {"Idempotency400", "Idempotency409", "Idempotency422"} <= components["responses"].keys()
    [reference] = {
        media["schema"]["$ref"] for answer in components["responses"].values() for media in answer["content"].values()
    }
    assert reference.rpartition("/")[2] in components["schemas"]


def test_config_shows_the_policy_and_its_source() -> None:
    done = run("config", "--app", "cli.policy_apps:app", "--json")
    found = {each["name"]: each for each in json.loads(done.stdout)["settings"]}
    assert found["policy for /webhooks/"]["source"] == "cli.policy_apps:app"
    assert found["policy for /webhooks/"]["value"] == "exempt True"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--app", "cli.policy_apps:plain"), 1, "not protected by semel"),
        (("--app", "cli.policy_apps:hidden"), 1, "publish="),
        (("--app", "cli.policy_apps:nothing"), 2, "nothing"),
        (("--app", "no_such_module:app"), 2, "no_such_module"),
        (("--app", "cli.policy_apps"), 2, "MODULE:NAME"),
        (("--url", "localhost:8000"), 2, "https://"),
        (("--url", "http://localhost:port"), 2, "Port could not be cast"),
        (("--url", "http://["), 2, "Invalid IPv6 URL"),
        (("--url", "http://two words"), 1, "cannot be read"),
        (("--url", "http://127.0.0.1:1"), 1, "cannot be read"),
        (("--url", "http://127.0.0.1:1", "--app", "x:y"), 2, "only one"),
    ],
)
def test_a_policy_that_cannot_be_had(words: tuple[str, ...], status: int, said: str) -> None:
    done = run("guide", *words)
    assert done.exit_code == status
    assert said in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_a_rules_file_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "semel.toml").write_text("[[rules]]\nmatch = 5\n")
    done = run("guide", "--rules", str(tmp_path / "semel.toml"))
    assert done.exit_code == 2
    assert "semel.toml" in done.output


@pytest.mark.parametrize("name", ["asgi", "wsgi", "starlette", "fastapi", "flask", "litestar", "quart"])
def test_the_store_is_the_application_s(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one that the command line would take."""
    monkeypatch.setenv("APPS_FOLDER", str(tmp_path))
    monkeypatch.delitem(sys.modules, "cli.app_stores", raising=False)
    done = run("config", "--app", f"cli.app_stores:{name}", "--json", store="redis://elsewhere")
    assert done.exit_code == 0, done.output
    found = {each["name"]: each for each in json.loads(done.stdout)["settings"]}
    assert found["store"]["value"] == f"sqlite:///{tmp_path}/{name}.db"
    assert found["store"]["source"] == f"cli.app_stores:{name}"
    assert found["store.busy_timeout_ms"]["value"] == "1234"
    assert found["SEMEL_STORE"]["value"] == "redis://elsewhere"
    assert list(tmp_path.iterdir()) == [], "looking makes no file"


def test_a_store_without_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPS_FOLDER", str(tmp_path))
    monkeypatch.delitem(sys.modules, "cli.app_stores", raising=False)
    done = run("config", "--app", "cli.app_stores:made", store="redis://elsewhere")
    assert "SqliteStore, which was not opened by a URL" in done.stdout


def test_an_application_has_a_store_of_its_own() -> None:
    done = run("config", "--app", "cli.policy_apps:app", "--store", "memory://")
    assert (done.exit_code, "only one of --store and --app" in done.stderr) == (2, True)
