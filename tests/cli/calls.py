"""Calls of the command line in this process, and records for it to look at."""

import json
import time
from typing import Any
from wsgiref.util import setup_testing_defaults

from click.testing import CliRunner, Result

from semel import Filter, Key, open_store
from semel.cli.group import semel
from semel.codecs import responses
from semel.core.http import Response
from semel.core.records import Acquired, Lease, Record
from semel.store import Inspectable, Store
from semel.wsgi import IdempotencyMiddleware
from waiting import until

HOUR_MS = 3_600_000
SCOPE = "POST /payments"
ANSWER = responses.encode(Response(201, ((b"content-type", b"application/json"),), b'{"paid": 10}'), ok=True)


def run(*words: str, store: str | None = None, **environment: str) -> Result:
    """Run `semel` with a standard input that is no terminal."""
    env = {"SEMEL_STORE": store, **environment}
    return CliRunner().invoke(semel, words, env=env, prog_name="semel")


def run_json(*words: str, store: str | None = None, status: int = 0) -> Any:
    done = run(*words, "--json", store=store)
    assert done.exit_code == status, done.output
    return json.loads(done.stdout)


def claimed(store: Store, key: Key, *, lease_ms: int = HOUR_MS) -> Lease:
    reply = store.claim(key, "v1:x", owner="owner", lease_ms=lease_ms, retention_ms=HOUR_MS, takeover=False)
    assert isinstance(reply, Acquired)
    return reply.lease


def finished(store: Store, key: Key) -> Record:
    assert store.complete(claimed(store, key), ANSWER, retention_ms=HOUR_MS)
    return there(store, key)


def unknown(store: Store, key: Key) -> Record:
    """A record whose owner died. It lapses by the store's own clock."""
    claimed(store, key, lease_ms=1)
    assert isinstance(store, Inspectable)
    inspect = store
    until(lambda: key in [each.key for each in inspect.scan(Filter("unknown", key.tenant)).records])
    time.sleep(0.02)  # the clock of this process says so, too
    return there(store, key)


def there(store: Store, key: Key) -> Record:
    record = store.get(key)
    assert record is not None
    return record


class Service:
    """A protected service on the same store. It counts what it did, outside of the store."""

    def __init__(self, url: str) -> None:
        self.effects: list[str] = []
        self.store = open_store(url)
        self.protected = IdempotencyMiddleware(self.work, store=self.store, identify=lambda environ: "shop")

    def work(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        self.effects.append(environ["HTTP_IDEMPOTENCY_KEY"])
        start_response("200 OK", [("content-type", "text/plain")])
        return [b"done %d" % len(self.effects)]

    def post(self, name: str) -> tuple[str, bytes]:
        told: list[str] = []
        environ: Any = {"REQUEST_METHOD": "POST", "PATH_INFO": "/payments", "HTTP_IDEMPOTENCY_KEY": name}
        setup_testing_defaults(environ)
        environ["CONTENT_LENGTH"] = "0"

        def start_response(status: str, headers: object, exc_info: object = None) -> Any:
            told.append(status)

        answer = self.protected(environ, start_response)
        return told[0], b"".join(answer)

    def record(self) -> Record:
        """The only record there is."""
        assert isinstance(self.store, Inspectable)
        [record] = self.store.scan(Filter()).records
        return record

    def interrupted(self, name: str) -> Record:
        """Let the service claim a key as it does, and die at once."""
        self.post(name)
        record = self.record()
        assert self.store.expire(record)  # type: ignore[attr-defined]
        self.store.purge(limit=100)
        self.effects.clear()
        lapsing = self.store.claim(
            record.key, record.fingerprint, owner="dead", lease_ms=1, retention_ms=HOUR_MS, takeover=False
        )
        assert isinstance(lapsing, Acquired)
        until(lambda: self.store.scan(Filter("unknown")).records)  # type: ignore[attr-defined]
        time.sleep(0.02)
        return self.record()
