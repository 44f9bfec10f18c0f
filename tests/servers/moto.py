"""moto's server, which stands for SQS and SNS: there is no other that can be had."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import boto3

from servers.binaries import MissingServer
from servers.process import Server

REGION = "eu-central-1"
ACCOUNT = "123456789012"
"""Every caller belongs to it, whoever signs a request."""


class MotoServer(Server):
    """Keeps queues and topics in memory: a restart forgets them. It takes any credentials."""

    def __init__(self) -> None:
        if find_spec("moto") is None:
            raise MissingServer("moto is not installed: pip install 'moto[server]'")
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        pass

    def command(self) -> Sequence[str | Path]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def probe(self) -> None:
        self.client("sqs").list_queues()

    def client(self, service: str) -> Any:
        """A client of boto3's, for what a test wants to know without semel."""
        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
