"""RabbitMQ: a broker of our own, or one that is there already."""

import socket
from collections.abc import Sequence
from pathlib import Path

from servers import binaries
from servers.process import Server, free_port

CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
disk_free_limit.absolute = 10MB
vm_memory_high_watermark.relative = 0.6
max_message_size = 1500000
log.console = true
log.file = false
"""
# The broker finds its own node by name through epmd, which would live on as a daemon: ours is a child of the broker,
# and dies with it.
START = """
if command -v setpriv > /dev/null; then die_with_us="setpriv --pdeathsig KILL"; fi
$die_with_us epmd -address 127.0.0.1 -port "$ERL_EPMD_PORT" &
exec "$@"
"""


class Rabbitmq:
    """A running RabbitMQ, known by the URL of a user who may declare queues and exchanges."""

    def __init__(self, url: str) -> None:
        self.url = url


class RabbitmqServer(Server, Rabbitmq):
    """Up after four seconds. A restart finds durable queues with the messages that it had confirmed.

    `settings` are lines of its configuration.
    """

    def __init__(self, *settings: str) -> None:
        self._settings = settings
        self._program = binaries.require("rabbitmq")
        Server.__init__(self)
        self._node_port, self._epmd_port = free_port(), free_port()
        Rabbitmq.__init__(self, f"amqp://guest:guest@127.0.0.1:{self.port}/")

    def prepare(self) -> None:
        (self.folder / "rabbitmq.conf").write_text(CONFIGURATION.format(port=self.port) + "\n".join(self._settings))
        (self.folder / "plugins").write_text("[].\n")

    def command(self) -> Sequence[str | Path]:
        settings = {
            "HOME": self.folder,  # for the cookie of the node
            "ERL_EPMD_PORT": self._epmd_port,
            "RABBITMQ_NODENAME": "semel@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "",
            "RABBITMQ_NODE_PORT": "",
            "RABBITMQ_DIST_PORT": self._node_port,
            "RABBITMQ_MNESIA_BASE": self.folder / "data",
            "RABBITMQ_LOG_BASE": self.folder / "log",
            "RABBITMQ_CONF_ENV_FILE": self.folder / "none",
            "RABBITMQ_CONFIG_FILE": self.folder / "rabbitmq",  # without its ending
            "RABBITMQ_CONFIG_FILES": self.folder / "none",
            "RABBITMQ_ADVANCED_CONFIG_FILE": self.folder / "none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder / "plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",  # no busy waiting
            "RUNNING_UNDER_SYSTEMD": "true",  # the script then becomes the broker, instead of being its parent
        }
        environment = [f"{name}={value}" for name, value in settings.items()]
        return ["env", *environment, "sh", "-c", START, "rabbitmq", self._program]

    def stop(self) -> None:
        """Its data goes, too: nothing of it is worth the second that an end in good order takes."""
        self.kill()
        super().stop()

    def probe(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            method = connection.recv(11)[7:]
            assert method == b"\x00\x0a\x00\x0a", f"not Connection.Start: {method!r}"
