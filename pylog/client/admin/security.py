"""Admin calls for ACLs, SCRAM users and delegation tokens.

Owns: the names for Kafka's numeric codes.
Invariants: a password never leaves this process: only values derived from it are sent.
Source: Kafka's Admin client (KIP-48, KIP-140, KIP-290, KIP-554).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from typing import Any

from pylog.client import blocking
from pylog.client.admin.types import (
    AclBinding, AclFilter, DelegationToken, ScramCredentialInfo, ScramDeletion, ScramUpsertion,
)
from pylog.client.errors import ConfigError, error, raise_among, raise_for
from pylog.protocol import messages

RESOURCE_TYPES = ("UNKNOWN", "ANY", "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID",
                  "DELEGATION_TOKEN", "USER")
PATTERN_TYPES = ("UNKNOWN", "ANY", "MATCH", "LITERAL", "PREFIXED")
OPERATIONS = ("UNKNOWN", "ANY", "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE",
              "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE",
              "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT")
PERMISSIONS = ("UNKNOWN", "ANY", "DENY", "ALLOW")
# Names of the fields of AclBinding and AclFilter.
WORDS = {"resource_type": RESOURCE_TYPES, "pattern_type": PATTERN_TYPES, "operation": OPERATIONS,
         "permission": PERMISSIONS}
MECHANISMS = ("UNKNOWN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_SALT_BYTES = 24


def number_of(words: tuple[str, ...], word: str) -> int:
    """Return Kafka's number for a name. Raises ConfigError."""
    try:
        return words.index(word.upper())
    except ValueError:
        raise ConfigError(f"{word!r}: expected one of {', '.join(words[1:])}") from None


def word_of(words: tuple[str, ...], number: int) -> str:
    """Return the name, or UNKNOWN for a number of a later version."""
    return words[number] if 0 < number < len(words) else words[0]


class SecurityAdministration:
    """Methods of Admin, which provides `cluster`, `_retry_items` and `_send_to_controller`."""

    cluster: Any
    _retry_items: Any
    _send_to_controller: Any

    async def describe_acls(self, wanted: AclFilter | None = None, timeout: float | None = None
                            ) -> list[AclBinding]:
        """Return the ACLs that match a filter, all by default. Raises SecurityDisabledError."""
        wanted = AclFilter() if wanted is None else wanted
        request = messages.DescribeAclsRequest(**_filter(wanted))

        async def attempt() -> list[AclBinding]:
            response = await self._send_to_controller(request)
            raise_for(response.error_code, response.error_message or "")
            return [_binding(resource, rule)
                    for resource in response.resources for rule in resource.acls]

        found: list[AclBinding] = await self.cluster.retry(attempt, timeout)
        return found

    async def create_acls(self, rules: Iterable[AclBinding], timeout: float | None = None) -> None:
        """Add ACLs; existing ones are not changed."""
        new = messages.CreateAclsRequest

        async def query(left: dict[AclBinding, Any]) -> dict[AclBinding, Any]:
            response = await self._send_to_controller(new(creations=list(left.values())))
            return {rule: error(row.error_code, row.error_message or "") if row.error_code else None
                    for rule, row in zip(left, response.results)}

        await self._retry_items({rule: new.AclCreation(
            resource_type=number_of(RESOURCE_TYPES, rule.resource_type),
            resource_name=rule.resource_name,
            resource_pattern_type=number_of(PATTERN_TYPES, rule.pattern_type),
            principal=rule.principal, host=rule.host,
            operation=number_of(OPERATIONS, rule.operation),
            permission_type=number_of(PERMISSIONS, rule.permission))
                                 for rule in rules}, timeout, query)

    async def delete_acls(self, filters: Iterable[AclFilter], timeout: float | None = None
                          ) -> dict[AclFilter, list[AclBinding]]:
        """Delete the ACLs that match the filters; return those deleted by each filter."""
        new = messages.DeleteAclsRequest

        async def query(left: dict[AclFilter, Any]) -> dict[AclFilter, Any]:
            response = await self._send_to_controller(new(filters=list(left.values())))
            return {wanted: error(row.error_code, row.error_message or "") if row.error_code
                    else [_binding(rule, rule) for rule in row.matching_acls]
                    for wanted, row in zip(left, response.filter_results)}

        found: dict[AclFilter, list[AclBinding]] = await self._retry_items({
            wanted: new.DeleteAclsFilter(**_filter(wanted)) for wanted in filters}, timeout, query)
        return found

    # ---- users ----------------------------------------------------------------------------------

    async def describe_user_scram_credentials(
            self, users: Iterable[str] = (), timeout: float | None = None
    ) -> dict[str, list[ScramCredentialInfo]]:
        """Describe credentials by user, all by default. Raises ResourceNotFoundError if a user has
        none.
        """
        new = messages.DescribeUserScramCredentialsRequest
        named = list(dict.fromkeys(users))
        request = new(users=[new.UserName(name=name) for name in named] if named else None)

        async def attempt() -> dict[str, list[ScramCredentialInfo]]:
            response = await self._send_to_controller(request)
            raise_for(response.error_code, response.error_message or "")
            outcomes: dict[str, Any] = {
                row.user: error(row.error_code, row.error_message or row.user) if row.error_code
                else [ScramCredentialInfo(word_of(MECHANISMS, info.mechanism), info.iterations)
                      for info in row.credential_infos] for row in response.results}
            raise_among(outcomes)
            return outcomes

        found: dict[str, list[ScramCredentialInfo]] = await self.cluster.retry(attempt, timeout)
        return found

    async def alter_user_scram_credentials(
            self, alterations: Iterable[ScramUpsertion | ScramDeletion],
            timeout: float | None = None) -> None:
        """Set and remove passwords. Sends only values derived from them."""
        new = messages.AlterUserScramCredentialsRequest
        rows: dict[str, list[Any]] = {}
        for one in alterations:
            rows.setdefault(one.user, []).append(
                await blocking.run(_upsertion, one) if isinstance(one, ScramUpsertion)
                else new.ScramCredentialDeletion(
                    name=one.user, mechanism=number_of(MECHANISMS, one.mechanism)))

        async def query(left: dict[str, list[Any]]) -> dict[str, Any]:
            every = [row for own in left.values() for row in own]
            response = await self._send_to_controller(new(
                deletions=[row for row in every if isinstance(row, new.ScramCredentialDeletion)],
                upsertions=[row for row in every if isinstance(row, new.ScramCredentialUpsertion)]))
            return {row.user: error(row.error_code, row.error_message or "") if row.error_code
                    else None for row in response.results}

        await self._retry_items(rows, timeout, query)


    # ---- delegation tokens ----------------------------------------------------------------------

    async def create_delegation_token(
            self, renewers: Iterable[str] = (), owner: str | None = None,
            max_lifetime_ms: int = -1, timeout: float | None = None) -> DelegationToken:
        """Create a token for this client's user, or for an owner that it may act for.

        renewers, owner: `User:name`. Authenticate with SCRAM: token_id, password and
        pylog.sasl.tokenauth.
        """
        new = messages.CreateDelegationTokenRequest
        request = new(max_lifetime_ms=max_lifetime_ms, renewers=[
            new.CreatableRenewers(principal_type=kind, principal_name=name)
            for kind, name in map(_principal, renewers)])
        if owner is not None:
            request.owner_principal_type, request.owner_principal_name = _principal(owner)

        async def attempt() -> DelegationToken:
            response = await self._send_to_controller(request)
            raise_for(response.error_code)
            return DelegationToken(
                response.token_id, response.hmac,
                f"{response.principal_type}:{response.principal_name}", tuple(renewers),
                response.issue_timestamp_ms, response.expiry_timestamp_ms,
                response.max_timestamp_ms)

        renewers = list(renewers)
        made: DelegationToken = await self.cluster.retry(attempt, timeout)
        return made

    async def renew_delegation_token(self, hmac: bytes, period_ms: int = -1,
                                     timeout: float | None = None) -> int:
        """Renew a token; return its new expiry in ms since 1970."""
        return await self._until(messages.RenewDelegationTokenRequest(
            hmac=hmac, renew_period_ms=period_ms), timeout)

    async def expire_delegation_token(self, hmac: bytes, period_ms: int = -1,
                                      timeout: float | None = None) -> int:
        """Expire a token, immediately by default; return its new expiry in ms since 1970."""
        return await self._until(messages.ExpireDelegationTokenRequest(
            hmac=hmac, expiry_time_period_ms=period_ms), timeout)

    async def _until(self, request: Any, timeout: float | None) -> int:
        async def attempt() -> int:
            response = await self._send_to_controller(request)
            raise_for(response.error_code)
            end_ms: int = response.expiry_timestamp_ms
            return end_ms

        found: int = await self.cluster.retry(attempt, timeout)
        return found

    async def describe_delegation_token(
            self, owners: Iterable[str] | None = None, timeout: float | None = None
    ) -> list[DelegationToken]:
        """Return the tokens that this client may see, of some owners or of all."""
        new = messages.DescribeDelegationTokenRequest
        request = new(owners=None if owners is None else [
            new.DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
            for kind, name in map(_principal, owners)])

        async def attempt() -> list[DelegationToken]:
            response = await self._send_to_controller(request)
            raise_for(response.error_code)
            return [DelegationToken(
                row.token_id, row.hmac, f"{row.principal_type}:{row.principal_name}", tuple(
                    f"{one.principal_type}:{one.principal_name}" for one in row.renewers),
                row.issue_timestamp, row.expiry_timestamp, row.max_timestamp)
                    for row in response.tokens]

        found: list[DelegationToken] = await self.cluster.retry(attempt, timeout)
        return found


def _filter(wanted: AclFilter) -> dict[str, Any]:
    """Return a filter with Kafka's numbers, by the requests' field names."""
    return {"resource_type_filter": number_of(RESOURCE_TYPES, wanted.resource_type),
            "resource_name_filter": wanted.resource_name,
            "pattern_type_filter": number_of(PATTERN_TYPES, wanted.pattern_type),
            "principal_filter": wanted.principal, "host_filter": wanted.host,
            "operation": number_of(OPERATIONS, wanted.operation),
            "permission_type": number_of(PERMISSIONS, wanted.permission)}


def _principal(text: str) -> tuple[str, str]:
    kind, colon, name = text.partition(":")
    if not colon or not name:
        raise ConfigError(f"{text!r}: expected User:name")
    return kind, name


def _binding(resource: Any, rule: Any) -> AclBinding:
    return AclBinding(
        word_of(RESOURCE_TYPES, resource.resource_type), resource.resource_name,
        word_of(PATTERN_TYPES, resource.pattern_type), rule.principal, rule.host,
        word_of(OPERATIONS, rule.operation), word_of(PERMISSIONS, rule.permission_type))


def _upsertion(one: ScramUpsertion) -> Any:
    """Derive the salted password; blocks for milliseconds, depending on the iterations."""
    number, salt = number_of(MECHANISMS, one.mechanism), secrets.token_bytes(_SALT_BYTES)
    return messages.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=one.user, mechanism=number, iterations=one.iterations, salt=salt,
        salted_password=hashlib.pbkdf2_hmac(
            _HASHES[MECHANISMS[number]], one.password.encode(), salt, one.iterations))
