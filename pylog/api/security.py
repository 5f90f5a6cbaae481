"""Users and their credentials: DescribeUserScramCredentials (50).

Owns: nothing.
Called by: dispatch, through api.handlers.
Invariants: (1) one result per user of the request.
Source: KIP-554; answers as Kafka 4.3's where no credential was ever made.
"""

from __future__ import annotations

from collections import Counter

from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from pylog._native.reactor import RequestContext
    from pylog.api import Handler, Message


def describe_user_scram_credentials(context: RequestContext, request: Message) -> Message:
    """Nobody has credentials: this broker stores none. kafka-configs asks for them with quotas.

    RESOURCE_NOT_FOUND per user, DUPLICATE_RESOURCE for one that is named twice (KIP-554).
    """
    response = messages.DescribeUserScramCredentialsResponse
    results = []
    for name, count in Counter(user.name for user in request.users or ()).items():
        error, text = ErrorCode.RESOURCE_NOT_FOUND, \
            f"Attempt to describe a user credential that does not exist: {name}"
        if count > 1:
            error, text = ErrorCode.DUPLICATE_RESOURCE, \
                "Cannot describe SCRAM credentials for the same user twice in a single request: " \
                + name
        results.append(response.DescribeUserScramCredentialsResult(
            user=name, error_code=error, error_message=text))
    return response(results=results)


def handlers() -> dict[int, Handler]:
    return {api.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials}
