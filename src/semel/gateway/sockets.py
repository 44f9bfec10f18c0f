"""The sockets that a gateway listens on: opened here, or handed over by the process that holds them.

Two kinds of process hand sockets over: a service manager (`LISTEN_FDS`, as systemd does it), and a gateway that is
restarted. Both keep them open meanwhile, so that no caller is refused: connections wait until a worker accepts them.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from semel.gateway.settings import DEFAULT_LISTEN, GatewaySettings, SettingsInvalid, parse_address

BACKLOG = 2_048
HANDED_OVER = "SEMEL_HANDED_OVER"
"""The environment variable with the sockets that a successor inherits: `listen=5 admin=6 channel=7`."""
ACTIVATION = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
FIRST_FD = 3
"""The number of the first file that a service manager hands over."""


@dataclass(frozen=True, slots=True)
class Sockets:
    listen: socket.socket
    admin: socket.socket | None = None
    channel: socket.socket | None = None
    """The channel to the gateway that this one succeeds. That closes it when this one is to end."""

    def describe(self, channel: socket.socket) -> dict[str, int]:
        """The files that a successor inherits, by their names."""
        named = {"listen": self.listen, "admin": self.admin, "channel": channel}
        return {name: each.fileno() for name, each in named.items() if each is not None}

    def close(self) -> None:
        for each in (self.listen, self.admin):
            if each is not None:
                each.close()


def open_sockets(settings: GatewaySettings) -> Sockets:
    """The sockets that were handed over, else new ones."""
    text = os.environ.pop(HANDED_OVER, "")
    if text:
        found = {name: _adopt(int(number)) for name, _, number in (each.partition("=") for each in text.split())}
        return Sockets(found["listen"], found.get("admin"), found["channel"])
    found = _adopt_activated()
    if "listen" in found and settings.listen not in (DEFAULT_LISTEN, shown := format_address(found["listen"])):
        raise SettingsInvalid(
            f"--listen {settings.listen}: the service manager has handed over {shown}; leave --listen out, or change "
            "ListenStream= of the socket unit"
        )
    listen = found.get("listen") or _create("--listen", settings.listen)
    admin = found.get("admin")
    if admin is None and settings.admin is not None:
        admin = _create("--admin", settings.admin)
    return Sockets(listen, admin)


def format_address(found: socket.socket) -> str:
    host, port, *_ = found.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _create(option: str, text: str) -> socket.socket:
    host, port = parse_address(option, text)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def _adopt_activated() -> dict[str, socket.socket]:
    """What a service manager handed over to this very process (sd_listen_fds)."""
    pid, count, names = (os.environ.pop(name, "") for name in ACTIVATION)
    if pid != str(os.getpid()) or not count.isdecimal():
        return {}
    named = [*names.split(":"), *([""] * int(count))][: int(count)] if names else [""] * int(count)
    found = dict[str, socket.socket]()
    for number, name in enumerate(named, FIRST_FD):
        role = "admin" if name == "admin" else "listen"
        if role in found:
            raise SettingsInvalid(
                f"the service manager has handed over {count} sockets ({names or 'without names'}): give one to listen "
                "on, and at most another one with FileDescriptorName=admin"
            )
        found[role] = _adopt(number)
        if found[role].family not in (socket.AF_INET, socket.AF_INET6) or not _is_listening(found[role]):
            raise SettingsInvalid(
                f"the service manager has handed over a socket that is not a listening TCP socket ({found[role]}): "
                "write ListenStream=host:port and Accept=no into the socket unit"
            )
    return found


def _adopt(number: int) -> socket.socket:
    try:
        found = socket.socket(fileno=number)
    except OSError as error:
        raise SettingsInvalid(f"file {number} was handed over and is no socket: {error}") from None
    found.set_inheritable(False)
    return found


def _is_listening(found: socket.socket) -> bool:
    return found.type == socket.SOCK_STREAM and bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
