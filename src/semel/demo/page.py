"""The page's files, as answers. They come with the package, need no network, and may load nothing else."""

from __future__ import annotations

from importlib.resources import files

from semel.core.http import Response

TYPES = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def load() -> dict[str, Response]:
    """Every file of the page by its path."""
    found = {
        f"/{file.name}": _response(file.name, file.read_bytes())
        for file in files("semel.demo").joinpath("static").iterdir()
    }
    found["/"] = found.pop("/index.html")
    return found


def _response(name: str, body: bytes) -> Response:
    headers = (
        (b"content-type", TYPES[name.rpartition(".")[2]]),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-cache"),
        (b"content-security-policy", POLICY),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    )
    return Response(200, headers, body)
