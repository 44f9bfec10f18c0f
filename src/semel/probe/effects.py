"""How often the work took effect, counted outside of the service's answers: by a URL or a command."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from semel.probe.wire import BadRequest, ProbeRequest, send

Count = Callable[[], int]


def make_counter(source: str, request: ProbeRequest, timeout_s: float) -> Count:
    """A function that reads the count now. A URL of the same service is asked with the request's credentials."""
    if source.startswith(("http://", "https://")):
        same = urlsplit(source)[:2] == urlsplit(request.url)[:2]
        asked = ProbeRequest("GET", source, tuple(request.headers) if same else (), key_header=request.key_header)
        return lambda: _from_url(asked, timeout_s)
    return lambda: _from_command(source, timeout_s)


def _from_url(request: ProbeRequest, timeout_s: float) -> int:
    reply = send(request, timeout_s)
    if reply.status != 200:
        raise BadRequest(f"--effects {request.url}: {reply}, and 200 with a number is needed")
    try:
        found = json.loads(reply.body)
    except ValueError:
        found = reply.body.decode("utf-8", "replace")
    return _number(found, f"--effects {request.url}")


def _from_command(command: str, timeout_s: float) -> int:
    try:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise BadRequest(f"--effects {command!r} took longer than {timeout_s:g} s") from None
    if done.returncode:
        raise BadRequest(f"--effects {command!r} failed with {done.returncode}: {done.stderr.strip()[-200:]}")
    return _number(done.stdout, f"--effects {command!r}")


def _number(found: Any, source: str) -> int:
    """A number, a text that ends with one, a list's length, or the member `count` or only number of an object."""
    if isinstance(found, list):
        return len(found)
    if isinstance(found, dict):
        numbers = [value for value in found.values() if type(value) is int]
        found = found.get("count", numbers[0] if len(numbers) == 1 else None)
    if isinstance(found, str):
        found = int(texts[-1]) if (texts := re.findall(r"-?\d+", found)) else None
    if type(found) is int:
        return found
    raise BadRequest(f'{source}: no number found; give one that answers 3, [..., ...] or {{"count": 3}}')
