"""What the failures of DynamoDB and of botocore mean, in words for the person who runs the service."""

from __future__ import annotations

import botocore.session
from botocore import exceptions

from semel.errors import StoreError, StoreMisconfigured, StoreTimeout, StoreUnavailable
from semel.stores.dynamodb.settings import DynamodbSettings


class Missing(StoreMisconfigured):
    """There is no such table."""


class Exists(StoreMisconfigured):
    """There is a table of that name by now."""


class Invalid(StoreMisconfigured):
    """The table cannot do what it was asked."""


class Unsupported(StoreMisconfigured):
    """The server, an emulator, does not know the operation."""


MIGRATE = "run semel migrate --store with this URL once, or add the option migrate=auto"
CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role; boto3's documentation has all places"
)
RIGHTS = (
    "this user needs dynamodb:GetItem, PutItem, UpdateItem, DeleteItem, Scan and DescribeTable on the table (to "
    "migrate: CreateTable, UpdateTimeToLive and DescribeTimeToLive, too)"
)
THROTTLED = "the table is throttled: its units are used up, or its traffic has grown too fast; the caller may try again"
CLOCK = "set this machine's clock (chrony, systemd-timesyncd)"
REGION = "no such region is known: see the region in the URL"
MEANINGS: dict[str, tuple[type[StoreError], str]] = {  # the server's codes: (class, what to do)
    "ProvisionedThroughputExceededException": (StoreUnavailable, THROTTLED),
    "RequestLimitExceeded": (StoreUnavailable, THROTTLED),
    "ThrottlingException": (StoreUnavailable, THROTTLED),
    "Throttling": (StoreUnavailable, THROTTLED),
    "ResourceNotFoundException": (Missing, f"there is no such table; {MIGRATE}"),
    "ResourceInUseException": (Exists, "there is a table of that name"),
    "ValidationException": (Invalid, "is this a table that semel migrate has made?"),
    "AccessDeniedException": (StoreMisconfigured, RIGHTS),
    "UnrecognizedClientException": (StoreMisconfigured, CREDENTIALS),
    "InvalidClientTokenId": (StoreMisconfigured, CREDENTIALS),
    "MissingAuthenticationTokenException": (StoreMisconfigured, CREDENTIALS),
    "IncompleteSignatureException": (StoreMisconfigured, CREDENTIALS),
    "ExpiredTokenException": (StoreMisconfigured, f"the credentials have expired: {CREDENTIALS}"),
    "InvalidSignatureException": (StoreMisconfigured, f"the secret key is wrong, or the clock: {CLOCK}"),
    "RequestTimeTooSkewed": (StoreMisconfigured, CLOCK),
    "UnknownOperationException": (Unsupported, "this server does not know the operation"),
}
NO_CREDENTIALS = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
    exceptions.NoAuthTokenError,
    exceptions.ProfileNotFound,
    exceptions.TokenRetrievalError,
)
TIMED_OUT = (exceptions.ReadTimeoutError, exceptions.ConnectTimeoutError, TimeoutError)
CONDITION_FAILED = "ConditionalCheckFailedException"


def code_of(error: Exception) -> str:
    """The server's code; empty if the server did not answer."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, exceptions.ClientError) else ""


def _is_known_region(settings: DynamodbSettings) -> bool:
    """Asked only when there is no answer: botocore may not have heard of a new region."""
    session = botocore.session.get_session()
    known = (session.get_available_regions("dynamodb", each) for each in session.get_available_partitions())
    return settings.endpoint_url is not None or any(settings.region in regions for regions in known)


def failure_of(error: Exception, settings: DynamodbSettings) -> StoreError:
    """A failure of botocore's as ours. Whatever it was, what was asked may have happened."""
    if isinstance(error, StoreError):
        return error
    kind, way_out = MEANINGS.get(code_of(error), (StoreUnavailable, ""))
    if isinstance(error, NO_CREDENTIALS):
        kind, way_out = StoreMisconfigured, CREDENTIALS
    elif isinstance(error, exceptions.EndpointConnectionError) and not _is_known_region(settings):
        kind, way_out = StoreMisconfigured, REGION
    elif isinstance(error, exceptions.ParamValidationError | exceptions.InvalidRegionError):
        kind = StoreMisconfigured
    elif isinstance(error, TIMED_OUT):
        kind = StoreTimeout
    told = " ".join(str(error).split())[:500] or type(error).__name__
    return kind(f"{settings.shown}: {told}" + (f"; {way_out}" if way_out else ""))
