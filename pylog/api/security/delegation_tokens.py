"""Delegation tokens: Create (38), Renew (39), Expire (40), Describe (41).

Owns: nothing.
Invariants: a client that logged in with a token, or that is not authenticated, gets no token; a
  token is visible to its owner, its renewers, and principals that may describe it or its owner's
  tokens.
Source: KIP-48, KIP-373 (tokens for others); Kafka 4.4's KafkaApis and ControllerApis.
"""

from __future__ import annotations

import functools
import random
from collections import namedtuple

from pylog.metadata.image.uuids import id_text, random_id
from pylog.peer.errors import PeerError
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.config import Settings
    from pylog.metadata.controller import delegation_tokens
    from pylog.metadata.controller.active_controller import ActiveController
    from pylog.metadata.service import MetadataService
    from pylog.security.authorization.access import Access
    from pylog.security.principals import Principal

NEVER = -1
REQUESTER_SINCE = 3
ANONYMOUS = "ANONYMOUS"

Asker = namedtuple("Asker", ("principal", "protocol"))
Asker.__doc__ = "The requester and its security protocol; None for requests that brokers forward."


class DelegationTokensApi:
    """asker: returns the requester. access: None allows everything. now_ms: the wall clock.
    forward: forwards a request to the active controller; None: `controller` is it.
    """

    def __init__(self, controller: ActiveController, metadata: MetadataService, settings: Settings,
                 asker: Callable[[RequestContext], Asker], access: Access | None,
                 now_ms: Callable[[], int],
                 forward: Callable[[RequestContext, Message], Awaitable[Message]] | None = None):
        self._controller = controller
        self._metadata = metadata
        self._settings = settings
        self._asker = asker
        self._access = access
        self._now_ms = now_ms
        self._random = random.SystemRandom()
        self._forward = forward

    def handlers(self) -> dict[int, Handler]:
        return {api.CREATE_DELEGATION_TOKEN: self.create, api.RENEW_DELEGATION_TOKEN: self.renew,
                api.EXPIRE_DELEGATION_TOKEN: self.expire,
                api.DESCRIBE_DELEGATION_TOKEN: self.describe}

    def _limits(self) -> delegation_tokens.Limits:
        from pylog.metadata.controller import delegation_tokens

        return delegation_tokens.Limits(self._settings["delegation.token.secret.key"],
                                        self._settings["delegation.token.max.lifetime.ms"],
                                        self._settings["delegation.token.expiry.time.ms"])

    async def create(self, context: RequestContext, request: Message) -> Message:
        """Create a token for the requester, or for an owner for whom the requester may create
        tokens.

        Errors: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        DELEGATION_TOKEN_AUTH_DISABLED, INVALID_PRINCIPAL_TYPE.
        """
        # Imported here, as below, because few brokers have tokens.
        from pylog.metadata.controller import delegation_tokens
        from pylog.security.authorizer import CREATE_TOKENS, USER_RESOURCE
        from pylog.security.principals import Principal

        asker = self._asker(context)
        requester, owner = asker.principal, asker.principal
        if request.owner_principal_name:
            if request.owner_principal_type is None:
                return _made(context.api_version, ErrorCode.INVALID_PRINCIPAL_TYPE, owner,
                             requester)
            owner = Principal(request.owner_principal_type, request.owner_principal_name, False)
        made = functools.partial(_made, context.api_version)
        if not _is_known(asker):
            return made(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, owner, requester)
        if str(owner) != str(requester) and not self._may(
                context, CREATE_TOKENS, USER_RESOURCE, str(owner)):
            return made(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, owner, requester)
        if self._forward is not None:
            return await self._passed_on(context, request, messages.CreateDelegationTokenResponse)
        limits = self._limits()
        (decided,) = await self._controller.change_tokens(
            delegation_tokens.create, limits, id_text(random_id(self._random)), str(owner),
            str(requester), [(row.principal_type, row.principal_name) for row in request.renewers],
            request.max_lifetime_ms, self._now_ms())
        return made(decided.error, owner, requester, decided.record, limits)

    async def renew(self, context: RequestContext, request: Message) -> Message:
        """Extend a token's lifetime. Errors: as for create(), DELEGATION_TOKEN_NOT_FOUND,
        DELEGATION_TOKEN_EXPIRED, DELEGATION_TOKEN_OWNER_MISMATCH.
        """
        from pylog.metadata.controller import delegation_tokens

        return await self._changed(messages.RenewDelegationTokenResponse, delegation_tokens.renew,
                                   context, request, request.renew_period_ms)

    async def expire(self, context: RequestContext, request: Message) -> Message:
        """Shorten a token's lifetime, or end it now. Errors as for renew()."""
        from pylog.metadata.controller import delegation_tokens

        return await self._changed(messages.ExpireDelegationTokenResponse, delegation_tokens.expire,
                                   context, request, request.expiry_time_period_ms)

    async def _changed(self, response: Any, decide: Callable, context: RequestContext,
                       request: Message, period_ms: int) -> Message:
        asker = self._asker(context)
        if not _is_known(asker):
            return response(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
                            expiry_timestamp_ms=NEVER)
        if self._forward is not None:
            return await self._passed_on(context, request, response)
        (decided,) = await self._controller.change_tokens(
            decide, self._limits(), bytes(request.hmac), str(asker.principal), period_ms,
            self._now_ms())
        end_ms = NEVER
        if decided.record is not None:
            end_ms = decided.record.expiration_timestamp
        elif not decided.error:
            end_ms = period_ms
        return response(error_code=decided.error, expiry_timestamp_ms=end_ms)

    async def _passed_on(self, context: RequestContext, request: Message,
                         response: Any) -> Message:
        assert self._forward is not None, context.api_key
        try:
            return await self._forward(context, request)
        except PeerError:
            return response(error_code=ErrorCode.REQUEST_TIMED_OUT)

    def describe(self, context: RequestContext, request: Message) -> Message:
        """Return the visible tokens of some owners or renewers, by default of all."""
        from pylog.metadata.controller import delegation_tokens

        response = messages.DescribeDelegationTokenResponse
        asker, limits = self._asker(context), self._limits()
        if not _is_known(asker):
            return response(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
        if limits.secret is None:
            return response(error_code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        owners = None if request.owners is None else {
            f"{owner.principal_type}:{owner.principal_name}" for owner in request.owners}
        version = context.api_version
        return response(tokens=[
            _described(version, record, limits)
            for record in delegation_tokens.of(self._metadata.image)
            if (owners is None or owners & {record.owner, *record.renewers})
            and self._may_see(context, asker.principal, record)])

    def _may_see(self, context: RequestContext, requester: Principal, record: Any) -> bool:
        from pylog.security.authorizer import (
            DELEGATION_TOKEN, DESCRIBE, DESCRIBE_TOKENS, USER_RESOURCE,
        )

        return self._access is None or str(requester) in (record.owner, *record.renewers) \
            or self._access.may_besides(context, DESCRIBE, DELEGATION_TOKEN, record.token_id) \
            or self._access.may_besides(context, DESCRIBE_TOKENS, USER_RESOURCE, record.owner)

    def _may(self, context: RequestContext, operation: int, kind: int, name: str) -> bool:
        return self._access is None or self._access.may(context, operation, kind, name)


def _is_known(asker: Asker) -> bool:
    """Return True if the requester is authenticated, and not by a token."""
    if asker.protocol is None:
        return True
    if asker.protocol == "SSL":
        return asker.principal.name != ANONYMOUS
    return asker.protocol != "PLAINTEXT" and not asker.principal.from_token


def _made(version: int, error: int, owner: Principal, requester: Principal, record: Any = None,
          limits: delegation_tokens.Limits | None = None) -> Message:
    from pylog.security.sasl.delegation_token import proof

    response = messages.CreateDelegationTokenResponse(
        error_code=error, principal_type=owner.kind, principal_name=owner.name,
        issue_timestamp_ms=NEVER, expiry_timestamp_ms=NEVER, max_timestamp_ms=NEVER)
    if version >= REQUESTER_SINCE:
        response.token_requester_principal_type = requester.kind
        response.token_requester_principal_name = requester.name
    if record is not None:
        assert limits is not None, error
        response.issue_timestamp_ms = record.issue_timestamp
        response.expiry_timestamp_ms = record.expiration_timestamp
        response.max_timestamp_ms = record.max_timestamp
        response.token_id = record.token_id
        response.hmac = proof(limits.secret, record.token_id)
    return response


def _described(version: int, record: Any, limits: delegation_tokens.Limits) -> Message:
    from pylog.security.sasl.delegation_token import proof

    row = messages.DescribeDelegationTokenResponse.DescribedDelegationToken
    owner, requester, *renewers = [text.split(":", 1) for text in (
        record.owner, record.requester, *record.renewers)]
    found = row(
        principal_type=owner[0], principal_name=owner[1], issue_timestamp=record.issue_timestamp,
        expiry_timestamp=record.expiration_timestamp, max_timestamp=record.max_timestamp,
        token_id=record.token_id, hmac=proof(limits.secret, record.token_id), renewers=[
            messages.DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer(
                principal_type=kind, principal_name=name) for kind, name in renewers])
    if version >= REQUESTER_SINCE:
        found.token_requester_principal_type, found.token_requester_principal_name = requester
    return found
