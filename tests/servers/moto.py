"""moto's server, which stands for SQS, SNS and DynamoDB."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from servers.binaries import MissingServer
from servers.process import Server

REGION = "eu-central-1"
ACCOUNT = "123456789012"
"""Every caller belongs to it, whoever signs a request."""
ONE_BY_ONE = """
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

within, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()

def application(environ, start_response):
    with turn:
        return list(within(environ, start_response))

run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True)
"""
"""moto's server, but for a turn: without it a conditional write of DynamoDB's is not atomic."""


def client_on(url: str, service: str) -> Any:
    """A client of boto3's, for what a test wants to know without semel. It tries once: a server that is away is."""
    return boto3.client(
        service,
        region_name=REGION,
        endpoint_url=url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=Config(retries={"total_max_attempts": 1}),
    )


class AwsServer(Server):
    """A server that speaks AWS's protocol. It takes any credentials."""

    def __init__(self) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        pass

    def client(self, service: str) -> Any:
        return client_on(self.url, service)


class MotoServer(AwsServer):
    """Keeps queues, topics and tables in memory: a restart forgets them."""

    def __init__(self) -> None:
        if find_spec("moto") is None:
            raise MissingServer("moto is not installed: pip install 'moto[server]'")
        super().__init__()

    def command(self) -> Sequence[str | Path]:
        return [sys.executable, "-c", ONE_BY_ONE, str(self.port)]

    def probe(self) -> None:
        self.client("sqs").list_queues()
