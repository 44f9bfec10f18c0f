"""Flask: marks on views, and exceptions that Flask answers for."""

import logging
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pytest
from flask import Blueprint, Flask, Response, request, session, stream_with_context
from flask.testing import FlaskClient
from flask.views import MethodView
from werkzeug.debug import DebuggedApplication
from werkzeug.test import TestResponse

from semel import Key, NotExecuted, OutcomeUnknown, Policy, Result, StoreMisconfigured
from semel.flask import Idempotency, Rule, idempotency_exempt, idempotent
from semel.runtime.operation import current_operation


class Shop:
    """An application with one view, `/pay`, whose effects are counted."""

    def __init__(
        self,
        work: Any = lambda: ("done", 201),
        *,
        testing: bool = False,
        before: Callable[[Flask], None] = lambda app: None,
        **settings: Any,
    ) -> None:
        self.effects = 0
        self.app = Flask("shop")
        self.app.secret_key = "secret"
        self.app.testing = testing
        before(self.app)
        settings = {"identify": lambda environ: "me"} | settings
        self.idempotency = Idempotency(self.app, store="memory://", **settings)
        self.work = work
        self.app.add_url_rule("/pay", "pay", self.pay, methods=["GET", "POST"])
        self.client: FlaskClient = self.app.test_client()

    def pay(self) -> Any:
        self.effects += 1
        return self.work()

    def post(self, path: str = "/pay", *, key: str | None = "k", **more: Any) -> TestResponse:
        return self.client.post(path, headers={} if key is None else {"Idempotency-Key": key}, **more)

    def stored(self) -> Result:
        record = self.app.extensions["semel"].store.get(Key("me", "POST /pay", "k"))
        assert record is not None
        assert record.result is not None
        result: Result = record.result
        return result


def raise_(error: Exception) -> Any:
    raise error


def kept(answer: TestResponse) -> tuple[int, bytes]:
    return answer.status_code, answer.data


def test_a_repeat_gets_the_first_answer() -> None:
    def work() -> Response:
        assert request.form["amount"] == "5"
        session["seen"] = True
        operation = current_operation()
        assert operation is not None
        return Response(stream_with_context(str(part) for part in (operation.key.name, request.path)), status=201)

    shop = Shop(work)
    first, again = shop.post(data={"amount": "5"}), shop.post(data={"amount": "5"})
    assert kept(first) == kept(again) == (201, b"k/pay")
    assert "Set-Cookie" in first.headers
    assert "Set-Cookie" not in again.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert shop.effects == 1
    assert current_operation() is None


@pytest.mark.parametrize("status", [201, 404, 422, "200 Splendid", 299, "299 My Phrase"])
def test_the_reason_phrase_is_flasks(status: Any) -> None:
    shop = Shop(lambda: Response("x", status=status))
    bare = shop.post(key=None)
    assert [shop.post().status for _ in range(2)] == [bare.status] * 2
    assert shop.stored().format == ("http.1" if isinstance(status, int) else "http-reason.1")


def test_files_still_reach_the_view() -> None:
    shop = Shop(lambda: request.files["file"].read())
    assert shop.post(data={"file": (BytesIO(b"content"), "a.txt")}).data == b"content"


@pytest.mark.parametrize("status", [500, 503, 200])
def test_the_applications_page_for_what_it_does_not_handle_is_the_answer(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever its status says, it is a failure, and never gives the key back."""
    shop = Shop(lambda: raise_(RuntimeError("boom")))
    seen: list[Exception] = []

    def own_page(error: Exception) -> tuple[str, int]:
        seen.append(error)
        return f"own page {len(seen)}", status

    shop.app.register_error_handler(500, own_page)
    shop.app.after_request(lambda response: Response(response.data, response.status, {"X-After": "request"}))
    first, again = shop.post(), shop.post()
    assert kept(first) == kept(again) == (status, b"own page 1")
    assert first.headers["X-After"] == again.headers["X-After"] == "request"
    assert again.headers["Idempotent-Replayed"] == "true"
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["boom"]
    assert len(seen) == shop.effects == 1
    assert not shop.stored().ok


def test_without_a_page_of_the_application_flasks_is_the_answer() -> None:
    shop = Shop(lambda: raise_(RuntimeError("boom")))
    bare, first, again = shop.post(key=None), shop.post(), shop.post()
    assert kept(first) == kept(again) == kept(bare)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert shop.effects == 2


def test_a_large_page_for_an_exception_is_sent_and_not_kept() -> None:
    shop = Shop(lambda: raise_(RuntimeError("boom")), policy=Policy(result_max=10))
    shop.app.register_error_handler(500, lambda error: ("x" * 20, 500))
    assert kept(shop.post()) == (500, b"x" * 20)
    again = shop.post()
    assert again.json is not None
    assert (again.status_code, again.json["detail"].split(",")[0]) == (409, "The operation failed")
    assert shop.effects == 1


THROUGH = [{"TESTING": True}, {"PROPAGATE_EXCEPTIONS": True}, {"DEBUG": True}]


@pytest.mark.parametrize("config", THROUGH)
def test_an_exception_that_flask_lets_through_surfaces_as_without_us(config: dict[str, bool]) -> None:
    shop = Shop(lambda: raise_(RuntimeError("boom")))
    shop.app.config.update(config)
    with pytest.raises(RuntimeError, match="boom"):
        shop.post()
    again = shop.post()
    assert again.json is not None
    assert (again.status_code, again.json["type"]) == (500, "/.well-known/idempotency#internal-error")
    assert again.headers["Idempotent-Replayed"] == "true"
    assert shop.effects == 1


@pytest.mark.parametrize("propagate", [None, False])
def test_testing_is_asked_only_where_nothing_is_chosen(propagate: bool | None) -> None:
    shop = Shop(lambda: raise_(RuntimeError("boom")), testing=True)
    shop.app.config["PROPAGATE_EXCEPTIONS"] = propagate
    if propagate is None:
        with pytest.raises(RuntimeError, match="boom"):
            shop.post()
    else:
        assert kept(shop.post()) == kept(shop.post())
    assert shop.effects == 1


@pytest.mark.parametrize("config", THROUGH)
def test_a_debuggers_page_is_sent_and_never_stored(config: dict[str, bool]) -> None:
    def debugged(app: Flask) -> None:
        app.config.update(config)
        app.wsgi_app = DebuggedApplication(app.wsgi_app)  # type: ignore[method-assign]

    shop = Shop(lambda: raise_(RuntimeError("boom")), before=debugged)
    first, again = shop.post(), shop.post()
    assert b"Traceback (most recent call last)" in first.data
    assert again.json is not None
    assert (again.status_code, again.json["type"]) == (409, "/.well-known/idempotency#result-not-kept")
    assert shop.effects == 1
    assert shop.stored() == Result("http-not-kept.1", b"", ok=False)


def test_a_handled_exception_is_an_answer() -> None:
    shop = Shop(lambda: raise_(KeyError("x")))
    shop.app.register_error_handler(KeyError, lambda error: (f"handled {shop.effects}", 409))
    assert kept(shop.post()) == kept(shop.post()) == (409, b"handled 1")


@pytest.mark.parametrize("testing", [False, True])
def test_not_executed_gives_the_key_back(testing: bool, caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy(release_statuses=())
    shop = Shop(lambda: raise_(NotExecuted("the till is closed")), testing=testing, policy=policy)
    shop.app.register_error_handler(Exception, lambda error: ("caught all", 500))
    for effects in (1, 2):
        answer = shop.post()
        assert answer.json is not None
        assert (answer.status_code, answer.json["detail"]) == (503, "the till is closed")
        assert answer.headers["Retry-After"] == "1"
        assert shop.effects == effects
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("catches_all", [False, True])
@pytest.mark.parametrize("testing", [False, True])
def test_an_outcome_that_the_view_says_is_unknown_stays_unknown(testing: bool, catches_all: bool) -> None:
    shop = Shop(lambda: raise_(OutcomeUnknown("The bank hung up.")), testing=testing)
    if catches_all:
        shop.app.register_error_handler(Exception, lambda error: ("caught all", 500))
    answer = shop.post()
    assert answer.json is not None
    assert (answer.status_code, answer.json["detail"]) == (504, "The bank hung up.")
    assert shop.post().status_code == 409
    assert shop.effects == 1


@pytest.mark.parametrize("error", [NotExecuted, OutcomeUnknown])
def test_what_is_declared_without_a_key_is_the_applications(error: type[Exception]) -> None:
    assert Shop(lambda: raise_(error("x"))).post(key=None).status_code == 500


def test_release_exceptions_give_the_key_back_and_flask_answers() -> None:
    shop = Shop(lambda: raise_(LookupError("x")), policy=Policy(release_exceptions=(LookupError,)))
    for effects in (1, 2):
        answer = shop.post()
        assert (answer.status_code, answer.mimetype, shop.effects) == (500, "text/html", effects)


def test_who_calls_may_come_from_the_session() -> None:
    def who(environ: Any) -> str | None:
        with shop.app.request_context(environ):
            return session.get("user")

    shop = Shop(lambda: request.get_data(), identify=who)
    for name in ("ann", "bob"):
        with shop.client.session_transaction() as opened:
            opened["user"] = name
        assert "Idempotent-Replayed" not in shop.post(data=b"x").headers
        assert shop.post(data=b"x").headers["Idempotent-Replayed"] == "true"
    assert shop.effects == 2


def test_marks_come_before_rules() -> None:
    shop = Shop(rules=[Rule("/free/"), Rule("/strict/", Policy(required=True))])
    shop.app.add_url_rule("/free/<int:number>", "free", idempotent()(lambda number: "ok"), methods=["POST"])
    shop.app.add_url_rule("/strict/<int:number>", "strict", idempotency_exempt(lambda number: "ok"), methods=["POST"])
    assert shop.post("/free/1", key=None).status_code == 400
    assert shop.post("/strict/1", key=None).status_code == 200
    shop.post("/strict/1")
    assert "Idempotent-Replayed" not in shop.post("/strict/1").headers
    assert shop.post("/strict/x", key=None).status_code == 400, "not a view: the rules apply"
    assert shop.post("/free/x").status_code == 404


def test_marks_on_blueprints_and_view_classes() -> None:
    class Marked(MethodView):
        decorators = [idempotent(Policy(required=True, methods=("POST", "PUT")))]

        def post(self) -> str:
            return "post"

        @idempotency_exempt
        def put(self) -> str:
            return "put"

    @idempotent()
    class Whole(MethodView):
        def post(self) -> str:
            return "post"

    shop = Shop()
    blueprint = Blueprint("api", __name__, url_prefix="/api")
    blueprint.add_url_rule("/marked", view_func=Marked.as_view("marked"))
    blueprint.add_url_rule("/whole", view_func=Whole.as_view("whole"))
    shop.app.register_blueprint(blueprint)
    assert shop.post("/api/marked", key=None).status_code == 400
    assert shop.client.put("/api/marked").data == b"put"
    assert shop.post("/api/whole", key=None).status_code == 400
    assert shop.post("/api/whole").data == b"post"


def test_marks_are_published() -> None:
    class Things(MethodView):
        @idempotent(Policy(in_flight="wait"))
        def put(self, number: int) -> str:
            return "ok"

        def post(self, number: int) -> str:
            return "ok"

    shop = Shop(rules=[Rule("/pay", Policy(required=True))])
    shop.app.add_url_rule("/free", "free", idempotency_exempt(lambda: "ok"), methods=["GET", "POST"])
    shop.app.add_url_rule("/things/<any(a, b):kind>/<int:number>", view_func=Things.as_view("things"))
    assert shop.client.get("/.well-known/idempotency").get_json()["operations"] == [
        {"match": "POST /free", "exempt": True},
        {"match": "PUT /things/{kind}/{number}", "required": False, "in_flight": "wait"},
        {"match": "/pay", "required": True},
        {"match": "everything else", "methods": ["PATCH", "POST", "PUT"], "required": False},
    ]


def test_a_marks_policy_is_checked() -> None:
    shop = Shop()
    shop.app.add_url_rule("/once", "once", idempotent(Policy(in_flight="accept"))(lambda: "ok"), methods=["POST"])
    for _ in range(2):
        with pytest.raises(StoreMisconfigured):
            shop.post("/once")


def test_a_marks_quota_counts() -> None:
    shop = Shop()
    shop.app.add_url_rule("/few", "few", idempotent(Policy(quota="1/hour"))(lambda: "ok"), methods=["POST"])
    assert [shop.post("/few", key=key).status_code for key in ("a", "b", "a")] == [200, 429, 200]


def test_an_application_factory_names_the_store_in_its_settings() -> None:
    idempotency = Idempotency(identify=lambda environ: "me")
    app = Flask("shop")
    with pytest.raises(StoreMisconfigured, match="SEMEL_STORE"):
        idempotency.init_app(app)
    app.config["SEMEL_STORE"] = "memory://"
    idempotency.init_app(app)
    with pytest.raises(StoreMisconfigured, match="already"):
        idempotency.init_app(app)


def test_large_streams_are_delivered_whole() -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(10):
            yield b"x" * 100

    shop = Shop(lambda: Response(parts()), policy=Policy(result_max=150))
    assert shop.post().data == b"x" * 1000
    assert shop.post().status_code == 409
    assert shop.effects == 1
