"""The worker process: `python -m semel.demo.worker LISTENER FOLDER`, started by the supervisor and ended with it."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semel.demo.service import Service

if TYPE_CHECKING:
    import uvicorn

GRACE_S = 1
"""How long a worker that stops waits for answers that are on their way."""


def main(arguments: Sequence[str]) -> None:
    import uvicorn

    listener, folder = socket.socket(fileno=int(arguments[0])), Path(arguments[1])
    service = Service(folder, stopping=lambda: server.should_exit)
    config = uvicorn.Config(
        service,
        http="h11",
        ws="none",
        loop="asyncio",
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = uvicorn.Server(config)
    threading.Thread(target=_follow, args=(server,), daemon=True).start()
    service.timeline.add("started", worker=os.getpid())
    server.run(sockets=[listener])


def _follow(server: uvicorn.Server) -> None:
    """Standard input ends when the supervisor does, however it ends: no worker outlives it."""
    sys.stdin.buffer.read()
    server.should_exit = True


if __name__ == "__main__":
    main(sys.argv[1:])
