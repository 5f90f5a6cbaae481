"""Credentials and ACLs: DescribeAcls (29) to DeleteAcls (31), DescribeUserScramCredentials (50),
AlterUserScramCredentials (51), and SASL requests on listeners without SASL (17, 36).

Owns: nothing.
Invariants: one result per user, ACL or filter of the request; a successful result is sent after the
  record is on disk and in force.
Source: KIP-140, KIP-290, KIP-554; responses as in Kafka 4.4.
"""

from __future__ import annotations

import itertools
from collections import Counter

from pylog.metadata.image.image import SCRAM_CREDENTIAL
from pylog.protocol import api, messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message, Result
    from pylog.api.security.sasl import AuthenticationApi
    from pylog.metadata.controller.active_controller import ActiveController
    from pylog.metadata.service import MetadataService

PART_RULES = 500
NO_AUTHORIZER = ("No Authorizer is configured. Set authorizer.class.name="
                 "org.apache.kafka.metadata.authorizer.StandardAuthorizer on every node.")


class SecurityApi:
    """Credentials and ACLs, decided by `controller`. metadata: has the current image. enforced:
    True if an authorizer uses the ACLs. authentication: of a request's listener, None without SASL.
    """

    def __init__(self, controller: ActiveController, metadata: MetadataService, enforced: bool,
                 authentication: Callable[[RequestContext], AuthenticationApi | None]):
        self._controller = controller
        self._metadata = metadata
        self._enforced = enforced
        self._authentication = authentication

    def handlers(self) -> dict[int, Handler]:
        return {
            api.SASL_HANDSHAKE: self.sasl_handshake,
            api.SASL_AUTHENTICATE: self.sasl_authenticate,
            api.DESCRIBE_ACLS: self.describe_acls,
            api.CREATE_ACLS: self.create_acls,
            api.DELETE_ACLS: self.delete_acls,
            api.DESCRIBE_USER_SCRAM_CREDENTIALS: self.describe_user_scram_credentials,
            api.ALTER_USER_SCRAM_CREDENTIALS: self.alter_user_scram_credentials,
        }

    def sasl_handshake(self, context: RequestContext, request: Message) -> Message:
        """See api.security.sasl. Error ILLEGAL_SASL_STATE on a listener without SASL."""
        found = self._authentication(context)
        if found is not None:
            return found.sasl_handshake(context, request)
        return messages.SaslHandshakeResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])

    def sasl_authenticate(self, context: RequestContext, request: Message) -> Result:
        """See api.security.sasl. Error ILLEGAL_SASL_STATE on a listener without SASL."""
        found = self._authentication(context)
        if found is not None:
            return found.sasl_authenticate(context, request)
        return messages.SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate request received after successful authentication")

    # ---- ACLs -----------------------------------------------------------------------------------

    def describe_acls(self, context: RequestContext, request: Message) -> Iterator[Message | None]:
        """Yield the ACLs that a filter matches, by resource.

        Errors: SECURITY_DISABLED without an authorizer; INVALID_REQUEST for a filter of another
        version.
        """
        from pylog.metadata.controller import acls

        new = messages.DescribeAclsResponse
        try:
            if not self._enforced:
                raise Refusal(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
            rules = yield from acls.found(self._metadata.image, acls.Filter(
                request.resource_type_filter, request.resource_name_filter,
                request.pattern_type_filter, request.principal_filter, request.host_filter,
                request.operation, request.permission_type))
        except Refusal as refusal:
            yield new(error_code=refusal.error, error_message=refusal.message)
            return
        yield new(error_message=None)
        found = iter(rules)
        while part := list(itertools.islice(found, PART_RULES)):
            yield new(error_message=None, resources=[
                new.DescribeAclsResource(
                    resource_type=kind, resource_name=name, pattern_type=pattern,
                    acls=[new.AclDescription(
                        principal=rule.principal, host=rule.host, operation=rule.operation,
                        permission_type=rule.permission) for rule in own])
                for (kind, pattern, name), own in itertools.groupby(
                    part, lambda rule: rule[:3])])

    async def create_acls(self, context: RequestContext, request: Message) -> Message:
        """Add ACLs. Errors: SECURITY_DISABLED without an authorizer; INVALID_REQUEST for an invalid
        ACL.
        """
        from pylog.security.authorizer import Rule

        new = messages.CreateAclsResponse
        if not self._enforced:
            results = [(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)] * len(request.creations)
        else:
            results = await self._controller.create_acls([
                Rule(row.resource_type, row.resource_pattern_type, row.resource_name,
                     row.principal, row.host, row.operation, row.permission_type)
                for row in request.creations])
        return new(results=[new.AclCreationResult(error_code=error, error_message=text)
                            for error, text in results])

    async def delete_acls(self, context: RequestContext, request: Message) -> Message:
        """Remove the ACLs that filters match, and return them. Errors as for describe_acls."""
        from pylog.metadata.controller import acls

        new = messages.DeleteAclsResponse
        if not self._enforced:
            results = [acls.Deleted([], ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
                       for _ in request.filters]
        else:
            results = await self._controller.delete_acls([
                acls.Filter(
                    row.resource_type_filter, row.resource_name_filter, row.pattern_type_filter,
                    row.principal_filter, row.host_filter, row.operation, row.permission_type)
                for row in request.filters])
        return new(filter_results=[
            new.DeleteAclsFilterResult(
                error_code=result.error, error_message=result.message, matching_acls=[
                    new.DeleteAclsMatchingAcl(
                        error_code=ErrorCode.NONE, error_message=None,
                        resource_type=rule.resource_type, resource_name=rule.resource_name,
                        pattern_type=rule.pattern_type, principal=rule.principal, host=rule.host,
                        operation=rule.operation, permission_type=rule.permission)
                    for rule in result.rules])
            for result in results])

    # ---- credentials ----------------------------------------------------------------------------

    def describe_user_scram_credentials(
            self, context: RequestContext, request: Message) -> Message:
        """Return the mechanisms and iterations of users, by default of all users with credentials.

        Errors: RESOURCE_NOT_FOUND per user, DUPLICATE_RESOURCE for a repeated user (KIP-554).
        """
        response = messages.DescribeUserScramCredentialsResponse
        stored: dict[str, list] = {}
        for kind, key in self._metadata.image.security:
            if kind == SCRAM_CREDENTIAL:
                stored.setdefault(key[0], []).append(self._metadata.image.security[kind, key])
        named = Counter(user.name for user in request.users or ()) or dict.fromkeys(stored, 1)
        results = []
        for name, count in named.items():
            if count > 1:
                error, text = ErrorCode.DUPLICATE_RESOURCE, (
                    "Cannot describe SCRAM credentials for the same user twice in a single "
                    f"request: {name}")
            elif name not in stored:
                error, text = ErrorCode.RESOURCE_NOT_FOUND, \
                    f"Attempt to describe a user credential that does not exist: {name}"
            else:
                results.append(response.DescribeUserScramCredentialsResult(
                    user=name, error_message="", credential_infos=[
                        response.CredentialInfo(
                            mechanism=record.mechanism, iterations=record.iterations)
                        for record in sorted(stored[name], key=lambda record: record.mechanism)]))
                continue
            results.append(response.DescribeUserScramCredentialsResult(
                user=name, error_code=error, error_message=text))
        return response(error_message="", results=results)

    async def alter_user_scram_credentials(
            self, context: RequestContext, request: Message) -> Message:
        """Set and remove credentials, one result per user (KIP-554).

        Errors: UNACCEPTABLE_CREDENTIAL, UNSUPPORTED_SASL_MECHANISM, RESOURCE_NOT_FOUND,
        DUPLICATE_RESOURCE.
        """
        results = await self._controller.alter_scram_credentials(
            request.deletions, request.upsertions)
        response = messages.AlterUserScramCredentialsResponse
        return response(results=[
            response.AlterUserScramCredentialsResult(
                user=result.user, error_code=result.error, error_message=result.message)
            for result in results])
