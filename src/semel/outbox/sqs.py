"""Publishes to SQS queues and SNS topics by boto3, each call in a thread."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from json import dumps
from typing import Any, Literal

import boto3
from botocore import exceptions
from botocore.config import Config

from semel.core.messages import Message
from semel.errors import BrokerMisconfigured, BrokerUnavailable, NotPublished, Poison
from semel.outbox.connection import TIMEOUT_MS, SharedConnection, take_timeout
from semel.outbox.headers import CONTENT_TYPE, ID, KEY, TOPIC
from semel.outbox.publisher import BrokerUrl

Service = Literal["sqs", "sns"]
HEADERS, ENCODING = "semel-headers", "semel-encoding"
FIFO = ".fifo"
CONNECTIONS = 16
GROUP = re.compile(r"[\x21-\x7e]{1,128}")
TEXT = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
"""What SQS and SNS take as a body. Everything else is sent as base64."""
POISON = {"InvalidMessageContents", "InvalidParameterValue", "InvalidParameter", "UnsupportedOperation"}
MISCONFIGURED = {
    "AccessDenied", "AccessDeniedException", "AuthorizationError", "InvalidClientTokenId", "SignatureDoesNotMatch",
    "UnrecognizedClientException", "InvalidAccessKeyId", "ExpiredToken", "OptInRequired", "InvalidSecurity",
}  # fmt: skip
MISSING = {"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", "NotFound", "InvalidAddress"}
AWAY = {
    "Throttling",
    "ThrottlingException",
    "RequestThrottled",
    "ServiceUnavailable",
    "OverLimit",
    "KMS.ThrottlingException",
}


def open_publisher(url: BrokerUrl) -> SqsPublisher:
    """`sqs://region/account/queue`, `sns://region/account/topic`; without the last part it is the message's topic."""
    account, _, name = url.parts.path.strip("/").partition("/")
    scheme: Service = "sns" if url.parts.scheme == "sns" else "sqs"
    return SqsPublisher(
        url.parts.netloc,
        account,
        name or None,
        service=scheme,
        endpoint=url.text_option("endpoint") or None,
        timeout_ms=take_timeout(url),
        connections=url.number("connections", CONNECTIONS, least=1, most=500),
    )


class SqsPublisher:
    """Sends to a queue of SQS, or with `service="sns"` to a topic of SNS. Without `name` it is the message's topic.

    - `publish` returns after the service's reply: the message is stored in several places.
    - The message attributes `semel-id`, `semel-key`, `semel-topic` and `content-type` are what their names say.
      `semel-headers` is the message's headers as one JSON object: SQS takes ten attributes, and a message may have more
      headers. A payload that is not UTF-8 text is sent as base64, and has `semel-encoding` `base64`; an empty one is
      sent as `-`, and has `semel-encoding` `empty`.
    - To a FIFO queue or topic (`….fifo`) the deduplication id is the message's id: within five minutes the service
      itself drops a message that is published again. The message group is the ordering key (its SHA-256 if SQS could
      not take it), or the id of a message without one.
    - A queue that is not there raises `NotPublished`, as one may be created later; missing rights raise
      `BrokerMisconfigured`, a message that is too large `Poison`.

    Credentials come from boto3's own places (environment, files, the role of the machine). `endpoint` is for services
    that speak the same protocol. Each call has one of `connections` threads; boto3's own retries are off.
    """

    def __init__(
        self,
        region: str,
        account: str,
        name: str | None = None,
        *,
        service: Service = "sqs",
        endpoint: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
        connections: int = CONNECTIONS,
    ) -> None:
        self._shown = f"{service}://{region}/{account}{f'/{name}' if name else ''}"
        if not re.fullmatch("[a-z0-9-]+", region) or not re.fullmatch("[0-9]{12}", account):
            raise BrokerMisconfigured(
                f"{self._shown}: write {service}://region/account/name, with the 12 digits of the account"
            )
        self._region, self._account, self._name, self._service = region, account, name, service
        self._endpoint, self._connections, self._timeout_s = endpoint, connections, timeout_ms / 1000
        self._shared = SharedConnection(self._shown, timeout_ms, self._connect, self._disconnect)
        self._queues: dict[str, str] = {}

    async def publish(self, message: Message) -> None:
        async with self._shared.use() as (client, threads):
            # Not `asyncio.to_thread`: its threads are few, and the whole process shares them.
            await asyncio.get_running_loop().run_in_executor(threads, self._send, client, message)

    async def close(self) -> None:
        await self._shared.close()

    def _send(self, client: Any, message: Message) -> None:
        name = self._name or message.topic
        try:
            if self._service == "sns":
                arn = f"arn:{client.meta.partition}:sns:{self._region}:{self._account}:{name}"
                client.publish(TopicArn=arn, Message=_pack_body(message), **_pack_rest(message, name))
            else:
                queue = self._find_queue(client, name)
                client.send_message(QueueUrl=queue, MessageBody=_pack_body(message), **_pack_rest(message, name))
        except exceptions.ClientError as error:
            raise self._explain(error, message, name) from error
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise BrokerMisconfigured(f"{self._shown}: boto3 finds no credentials: {error}") from error
        except exceptions.ParamValidationError as error:
            raise Poison(f"{self._shown} cannot take message {message.id}: {error}") from error
        except (exceptions.BotoCoreError, OSError) as error:
            raise BrokerUnavailable(f"{self._shown} cannot be reached: {error}") from error

    def _find_queue(self, client: Any, name: str) -> str:
        if (known := self._queues.get(name)) is None:
            told = client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=self._account)
            known = self._queues[name] = told["QueueUrl"]
        return known

    def _explain(self, error: exceptions.ClientError, message: Message, name: str) -> Exception:
        answer: dict[str, Any] = error.response
        code = str(answer.get("Error", {}).get("Code", ""))
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        told = f"{self._shown} refuses message {message.id}: {code}: {answer.get('Error', {}).get('Message', '')}"
        if code in MISSING:
            self._queues.pop(name, None)
            return NotPublished(f"{self._shown}: there is no {name!r}: create it ({code})")
        if code in POISON or status == 413:
            return Poison(told)
        if code in MISCONFIGURED or status in (401, 403):
            return BrokerMisconfigured(f"{told}: check the credentials and their rights")
        return BrokerUnavailable(told) if code in AWAY or status >= 500 or status == 429 else NotPublished(told)

    async def _connect(self) -> tuple[Any, ThreadPoolExecutor]:
        threads = ThreadPoolExecutor(self._connections, thread_name_prefix="semel-sqs")
        make: Callable[[], Any] = self._make_client
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, make), threads  # reads files
        except (exceptions.BotoCoreError, ValueError) as error:
            threads.shutdown(wait=False)
            raise BrokerMisconfigured(f"{self._shown}: {error}") from error

    def _make_client(self) -> Any:
        config = Config(
            connect_timeout=self._timeout_s,
            read_timeout=self._timeout_s,
            retries={"total_max_attempts": 1},
            max_pool_connections=self._connections,
        )
        return boto3.Session(region_name=self._region).client(self._service, endpoint_url=self._endpoint, config=config)

    async def _disconnect(self, connection: tuple[Any, ThreadPoolExecutor]) -> None:
        client, threads = connection
        threads.shutdown(wait=False, cancel_futures=True)
        client.close()


def _pack_body(message: Message) -> str:
    if not message.payload:
        return "-"  # SQS takes no body without characters
    return b64encode(message.payload).decode() if _is_binary(message.payload) else message.payload.decode()


def _is_binary(payload: bytes) -> bool:
    try:
        return not TEXT.fullmatch(payload.decode())
    except UnicodeDecodeError:
        return True


def _pack_rest(message: Message, name: str) -> dict[str, Any]:
    texts = {ID: message.id, TOPIC: message.topic, CONTENT_TYPE: message.content_type}
    if message.key is not None:
        texts[KEY] = message.key
    if message.headers:
        texts[HEADERS] = dumps(dict(message.headers))
    if not message.payload:
        texts[ENCODING] = "empty"
    elif _is_binary(message.payload):
        texts[ENCODING] = "base64"
    rest: dict[str, Any] = {
        "MessageAttributes": {key: {"DataType": "String", "StringValue": value} for key, value in texts.items()}
    }
    if name.endswith(FIFO):
        key = message.id if message.key is None else message.key
        rest["MessageGroupId"] = key if GROUP.fullmatch(key) else sha256(key.encode()).hexdigest()
        rest["MessageDeduplicationId"] = message.id
    return rest
