"""The actions as a Flask application."""

from apps.actions import act_blocking, blocking_protection
from flask import Flask, Response, request

from semel.flask import Idempotency

app = Flask(__name__)
Idempotency(app, **blocking_protection())


@app.post("/<action>")
def endpoint(action: str) -> Response:
    request.get_data()
    answer = act_blocking(action, request.headers.get("idempotency-key", "-").strip('"'))
    response = Response(iter(answer.chunks) if len(answer.chunks) > 1 else answer.chunks[0], answer.status)
    length = response.headers.get("content-length")
    response.headers.clear()
    for name, value in answer.headers:
        response.headers.add(name, value)
    if length is not None:
        response.headers.add("content-length", length)
    return response
