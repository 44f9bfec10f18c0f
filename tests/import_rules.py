"""Which module may import which: the import directions of the design, as data and one function."""

import ast
import sys
from collections.abc import Iterator

TOOLS = ("testing", "cli", "dashboard")  # imported by nobody but themselves

# Which rooms a room may import besides itself, `errors` and `store`. `stores.open` finds a store by its URL. What is
# below `stores.sql` runs on any connection. Only `connections` imports the folder of one database.
BELOW = ("core", "codecs", "runtime", "stores.open")
ROOMS: dict[str, tuple[str, ...]] = {
    "core": (),
    "codecs": ("core",),
    "runtime": ("core", "codecs", "stores.open"),
    "http": ("core", "codecs", "runtime"),
    "stores": ("core", "codecs", "runtime"),
    "connections": ("core", "stores"),
    "database": ("core", "runtime", "connections", "stores.sql"),
    "watermark": ("core", "connections", "database", "stores.sql"),
    "functions": BELOW,
    "transaction": (*BELOW, "connections", "stores.sql", "stores.waiters"),
    "flow": (*BELOW, "connections", "transaction", "stores.sql"),
    "inbox": (*BELOW, "transaction", "stores.sql"),
    "outbox": (*BELOW, "connections", "transaction", "stores.sql"),
    "client": BELOW,
    "asgi": (*BELOW, "http", "transaction"),
    "wsgi": (*BELOW, "http", "transaction"),
    "django": (*BELOW, "http", "asgi", "stores.sql.migrations"),
    "gateway": (*BELOW, "http", "asgi", "telemetry", "purger"),
    "telemetry": (*BELOW,),
    "fastapi": (*BELOW, "http", "asgi"),
    "litestar": (*BELOW, "http", "asgi"),
    "quart": (*BELOW, "http", "asgi"),
    "flask": (*BELOW, "http", "wsgi"),
    "faststream": (*BELOW, "inbox"),
}

# The core decides; whoever calls it brings the clock, the randomness and the IO.
CORE_MAY_USE = ("semel.core", "semel.errors")
CORE_MUST_NOT_USE = {"time", "random", "secrets", "os", "asyncio", "threading", "socket", "logging"}

BASE_DEPENDENCIES = {"msgspec"}
# Third-party packages that a folder or module may import when it is imported itself, because it belongs to an extra.
EXTRAS = {
    "semel.stores.postgres": {"psycopg"},
    "semel.stores.redis": {"redis", "hiredis"},
    "semel.stores.mariadb": {"pymysql", "aiomysql"},
    "semel.stores.dynamodb": {"boto3", "botocore", "aiobotocore"},
    "semel.flask": {"flask", "werkzeug"},
    "semel.litestar": {"litestar"},
    "semel.faststream": {"faststream"},
    "semel.quart": {"quart", "werkzeug"},
    "semel.inbox.rabbitmq": {"aio_pika"},
    "semel.inbox.nats": {"nats"},
    "semel.inbox.redis": {"redis"},
    "semel.stores.django": {"django", "asgiref"},
    "semel.django": {"django", "asgiref", "rest_framework"},
    "semel.telemetry.prometheus": {"prometheus_client"},
    "semel.telemetry.opentelemetry": {"opentelemetry"},
    "semel.gateway": {"aiohttp", "httptools", "uvicorn", "uvloop", "prometheus_client", "multidict", "yarl"},
    "semel.demo": {"uvicorn"},
    "semel.outbox.rabbitmq": {"aio_pika", "aiormq"},
    "semel.outbox.nats": {"nats"},
    "semel.outbox.redis": {"redis"},
    "semel.outbox.webhook": {"aiohttp"},
    "semel.outbox.sqs": {"boto3", "botocore"},
    "semel.outbox.kafka": {"aiokafka"},
    "semel.client.httpx": {"httpx"},
    "semel.client.httpx2": {"httpx2"},
    "semel.client.requests": {"requests", "urllib3"},
    "semel.client.aiohttp": {"aiohttp", "multidict"},
    "semel.client.urllib3": {"urllib3"},
    "semel.cli": {"click"},
    "semel.testing": {"pytest", "hypothesis", "_pytest", "httpx"},
}


def violations(module: str, source: str, *, package: bool = False) -> list[str]:
    """One sentence for each import in the source of `module` that the design forbids."""
    tree = ast.parse(source)
    lazy = set(_lazy(tree))
    return [
        f"{module}:{node.lineno} imports {name}: {reason}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in _imported(node, module, package)
        if (reason := _forbidden(module, name, at_import=node not in lazy))
    ]


def _forbidden(module: str, name: str, *, at_import: bool) -> str | None:
    root = name.partition(".")[0]
    if _within(module, "semel.core"):
        if root == "semel" and not any(_within(name, allowed) for allowed in CORE_MAY_USE):
            return "the core knows nothing but itself and the errors"
        if root != "semel" and root not in sys.stdlib_module_names and root not in BASE_DEPENDENCIES:
            return "the core imports only the standard library, and msgspec for its values"
        if root in CORE_MUST_NOT_USE:
            return "the core has no IO, no clock, no randomness"
    room = ".".join(module.split(".")[1:2])
    if room in ROOMS and root == "semel" and not _is_open_to(room, name):
        return f"{room} may import {', '.join(ROOMS[room]) or 'nothing of semel'}, errors and store"
    for tool in TOOLS:
        if _within(name, f"semel.{tool}") and not _within(module, f"semel.{tool}") and module != "semel.__main__":
            return f"nothing imports {tool}"
    if at_import and root != "semel" and root not in sys.stdlib_module_names and root not in _installed_with(module):
        return "the base install has no such package: import it where it is used"
    return None


def _is_open_to(room: str, name: str) -> bool:
    """Whether a module of `room` may import `name`, which is a module or something in one."""
    return any(_within(name, f"semel.{place}") for place in (room, "errors", "store", *ROOMS[room]))


def _installed_with(module: str) -> set[str]:
    return BASE_DEPENDENCIES.union(*(names for place, names in EXTRAS.items() if _within(module, place)))


def _within(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}.")


def _imported(node: ast.Import | ast.ImportFrom, module: str, package: bool) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    origin = [node.module] if node.module else []
    if node.level:
        parts = module.split(".")
        origin = parts[: len(parts) - node.level + package] + origin
    # The last part may be a module (`from semel import asgi`) or not (`from json import loads`): no rule minds.
    return [".".join([*origin, alias.name]) for alias in node.names]


def _lazy(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes that do not run when the module is imported: inside functions and under `if TYPE_CHECKING`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ast.walk(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from ast.walk(child)
