"""The OpenAPI document of the demo's service: what a program may call. The key and its problems are added by semel."""

from __future__ import annotations

from typing import Any

from semel.core.policy import Policy
from semel.demo.messages import ACCOUNT, GUEST
from semel.demo.payments import AMOUNT_MAX, PROTECTED, UNPROTECTED
from semel.http.openapi import MEDIA, SCHEMA, describe

DESCRIPTION = """A payments service on semel's embedded store. `/payments` is protected: one key, one payment.
`/unprotected/payments` is the same handler without protection. A request header `Demo-Fault: crash` kills the worker
after the bank has paid, and `Demo-Fault: lose-answer` keeps the answer back until the caller hangs up."""
PAYMENT = {
    "type": "object",
    "required": ["amount"],
    "additionalProperties": False,
    "properties": {"amount": {"type": "integer", "minimum": 1, "maximum": AMOUNT_MAX, "description": "In cents."}},
    "example": {"amount": 2500},
}


def document(policy: Policy) -> dict[str, Any]:
    drawn = {
        "openapi": "3.1.0",
        "info": {"title": "semel demo", "version": "1", "description": DESCRIPTION},
        "paths": {
            PROTECTED: {"post": _payment("pay", "Pay once per key")},
            UNPROTECTED: {"post": _payment("payUnprotected", "Pay as often as asked")},
            "/bank": {"get": _bank()},
            "/record": {"get": _record()},
            "/operator/resolve": {"post": _resolve()},
        },
        "components": {"schemas": {"Payment": PAYMENT, "Receipt": _receipt(), "Statement": _statement()}},
    }
    return describe(drawn, lambda method, path: policy if path == PROTECTED else None)


def _payment(name: str, summary: str) -> dict[str, Any]:
    problems = {
        "400": "The payment cannot be read",
        "402": "The account is empty",
        "413": "The request body is too large",
    }
    if name == "pay":
        problems["503"] = "The store cannot decide: nothing was run"
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [_account("header")],
        "requestBody": _body({"$ref": "#/components/schemas/Payment"}),
        "responses": {"201": _json("Paid", {"$ref": "#/components/schemas/Receipt"}), **_problems(problems)},
    }


def _bank() -> dict[str, Any]:
    return {
        "operationId": "readStatement",
        "summary": "What the bank knows of an account",
        "parameters": [_account("query")],
        "responses": {
            "200": _json("The statement", {"$ref": "#/components/schemas/Statement"}),
            **_problems({"400": "There can be no such account"}),
        },
    }


def _record() -> dict[str, Any]:
    texts = {name: {"type": "string"} for name in ("tenant", "scope", "name", "state", "fingerprint")}
    numbers = {name: {"type": "integer"} for name in ("attempt", "created_ms", "lease_until_ms", "expires_ms")}
    key = {"name": "key", "in": "query", "required": True, "schema": {"type": "string", "minLength": 1}}
    return {
        "operationId": "readRecord",
        "summary": "What the store keeps for a key of an account",
        "parameters": [_account("query"), key],
        "responses": {
            "200": _json("The record", _object({**texts, **numbers})),
            **_problems({"400": "The key cannot be read", "404": "There is no such record"}),
        },
    }


def _resolve() -> dict[str, Any]:
    key = {"type": "string", "minLength": 1, "maxLength": 255}
    answers = {"key": key, "paid": {"type": "boolean"}, "resolved": {"enum": ["answer", "released"]}}
    problems = {
        "400": "The key cannot be read",
        "404": "There is no such key",
        "409": "There is nothing to resolve",
        "413": "The request body is too large",
    }
    return {
        "operationId": "resolve",
        "summary": "Ask the bank, and resolve a key whose outcome is unknown",
        "parameters": [_account("header")],
        "requestBody": _body(_object({"key": key}) | {"additionalProperties": False}),
        "responses": {"200": _json("Resolved", _object(answers)), **_problems(problems)},
    }


def _receipt() -> dict[str, Any]:
    return _object({"payment": {"type": "string"}, "amount": {"type": "integer"}, "currency": {"const": "EUR"}})


def _statement() -> dict[str, Any]:
    numbers = {name: {"type": "integer"} for name in ("number", "amount", "at_ms")}
    entry = _object({**numbers, "reference": {"type": "string"}})
    totals = {name: {"type": "integer"} for name in ("opening", "balance", "count")}
    return _object({"account": {"type": "string"}, **totals, "entries": {"type": "array", "items": entry}})


def _account(where: str) -> dict[str, Any]:
    schema = {"type": "string", "pattern": f"^{ACCOUNT.pattern}$", "default": GUEST}
    name = "Account" if where == "header" else "account"
    return {"name": name, "in": where, "description": "The account that pays. Accounts share no key.", "schema": schema}


def _object(members: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(members), "properties": members}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _problems(titles: dict[str, str]) -> dict[str, Any]:
    content = {MEDIA: {"schema": {"$ref": f"#/components/schemas/{SCHEMA}"}}}
    return {status: {"description": title, "content": content} for status, title in titles.items()}
