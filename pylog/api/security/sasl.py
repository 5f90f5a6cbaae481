"""SASL over the wire: SaslHandshake (17), SaslAuthenticate (36), and tokens without a header.

Owns: the logins in progress, and each connection's mechanism.
Invariants: a connection has a principal only after a complete login; a failed login ends the
  connection; re-authentication must use the same principal and mechanism.
Source: KIP-43, KIP-152, KIP-368 (re-authentication); responses as in Kafka 4.4.
"""

from __future__ import annotations

import asyncio
import logging

from pylog import supervisor
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode, ProtocolError
from pylog.security.errors import AuthenticationFailed

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pylog._native.server.reactor import Reactors, RequestContext
    from pylog.api.handler import Message
    from pylog.config import Settings
    from pylog.security.principals import Identities, Principal
    from pylog.security.sasl.sasl import Login, Mechanisms

REAUTHENTICATION_NS_MIN = 1_000_000_000
SESSION_MS_MAX = 2**31 - 1
LINES_MAX = 10  # maximum number of logged failed logins
LINES_NS = 10_000_000_000  # in this interval

log = logging.getLogger("pylog.security")


class _Caller:
    """The state of a connection on a listener with SASL."""

    __slots__ = ("authenticated_ns", "is_busy", "listener", "login", "mechanism",
                 "principal", "stepping")

    def __init__(self, listener: str):
        self.listener = listener
        self.login: Login | None = None
        self.principal: Principal | None = None
        self.mechanism = ""
        self.authenticated_ns = 0
        self.is_busy = False  # a step runs on another thread,
        self.stepping: asyncio.Task | None = None  # and nothing else refers to its task


class AuthenticationApi:
    """Handles logins. now_ms: the wall clock."""

    def __init__(self, mechanisms: Mechanisms, identities: Identities, reactors: Reactors,
                 settings: Settings, listener_name: Callable[[int], str],
                 now_ms: Callable[[], int]):
        self._mechanisms = mechanisms
        self._identities = identities
        self._reactors = reactors
        self._settings = settings
        self._listener_name = listener_name
        self._now_ms = now_ms
        self._callers: dict[int, _Caller] = {}
        self._failures, self._lines_since_ns = 0, 0

    def forget(self, connection: int) -> None:
        """Remove a closed connection."""
        self._callers.pop(connection, None)

    def is_login_in_progress(self, context: RequestContext) -> bool:
        """Return True after SaslHandshake, until an unauthenticated client is authenticated."""
        caller = self._callers.get(context.connection)
        return caller is not None and caller.principal is None and (
            caller.login is not None or caller.is_busy)

    # ---- requests -------------------------------------------------------------------------------

    def sasl_handshake(self, context: RequestContext, request: Message) -> Message:
        """Start a login, or a re-authentication (KIP-368).

        Errors: UNSUPPORTED_SASL_MECHANISM with the supported ones; ILLEGAL_SASL_STATE during a
        login, and within a second after the previous one.
        """
        caller = self._caller(context)
        if not self._may_begin(caller):
            context.closes = caller.principal is None
            return messages.SaslHandshakeResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
        offered = self._mechanisms.offered(caller.listener)
        if request.mechanism not in offered:
            context.closes = True
            return messages.SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered)
        caller.login = self._mechanisms.begin(caller.listener, request.mechanism)
        return messages.SaslHandshakeResponse(mechanisms=offered)

    def sasl_authenticate(
            self, context: RequestContext, request: Message) -> Message | Coroutine:
        """Handle one message of a login. SASL_AUTHENTICATION_FAILED is sent after a delay, and ends
        the connection.

        Errors: ILLEGAL_SASL_STATE if no login was started.
        """
        new = messages.SaslAuthenticateResponse
        caller = self._caller(context)
        if caller.login is None:
            if caller.principal is None:
                raise ProtocolError("SaslAuthenticate before SaslHandshake")
            return new(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=(
                "SaslAuthenticate request received after successful authentication"))
        if caller.login.blocks:
            return self._authenticated_elsewhere(
                context, caller, caller.login, bytes(request.auth_bytes))
        try:
            token, session_ms = self._step(context, caller, bytes(request.auth_bytes))
        except AuthenticationFailed as failed:
            context.closes = True
            return self._refused(self._failure(failed))
        return new(error_message=None, auth_bytes=token, session_lifetime_ms=session_ms)

    async def _authenticated_elsewhere(self, context: RequestContext, caller: _Caller,
                                       login: Login, token: bytes) -> Message:
        """Handle a message of a login whose steps block."""
        try:
            response, session_ms = await self._step_elsewhere(context, caller, login, token)
        except AuthenticationFailed as failed:
            context.closes = True
            return await self._refused(self._failure(failed))
        return messages.SaslAuthenticateResponse(
            error_message=None, auth_bytes=response, session_lifetime_ms=session_ms)

    @staticmethod
    def _failure(failed: AuthenticationFailed) -> Message:
        return messages.SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=failed.text)

    def raw_token(self, context: RequestContext, token: bytes) -> None:
        """Handle a message without a header, for a client whose handshake had version 0."""
        caller = self._caller(context)
        if caller.login is None:
            raise ProtocolError("a token without a login")
        if caller.login.blocks:
            caller.stepping = asyncio.get_running_loop().create_task(supervisor.reporting(
                "authentication", self._raw_elsewhere(context, caller, caller.login, token)))
            return
        try:
            response, _ = self._step(context, caller, token)
        except AuthenticationFailed:
            self._end_later(context)
            return
        self._respond_raw(context, response)

    async def _raw_elsewhere(self, context: RequestContext, caller: _Caller, login: Login,
                             token: bytes) -> None:
        try:
            response, _ = await self._step_elsewhere(context, caller, login, token)
        except AuthenticationFailed:
            self._end_later(context)
            return
        except Exception:
            supervisor.report("authentication")
            self._end_later(context)
            return
        self._respond_raw(context, response)

    def _end_later(self, context: RequestContext) -> None:
        asyncio.get_running_loop().call_later(
            self._delay_s, self._reactors.reply, context.token, None, True)

    def _respond_raw(self, context: RequestContext, response: bytes) -> None:
        self._reactors.reply(context.token, len(response).to_bytes(4, "big") + response)

    # ---- login ----------------------------------------------------------------------------------

    def _caller(self, context: RequestContext) -> _Caller:
        caller = self._callers.get(context.connection)
        if caller is None:
            caller = self._callers[context.connection] = _Caller(
                self._listener_name(context.listener))
            self._reactors.set_interest(context.connection)
        return caller

    def _may_begin(self, caller: _Caller) -> bool:
        if caller.login is not None or caller.is_busy:
            return False
        return caller.principal is None or self._reactors.now_ns() - caller.authenticated_ns \
            >= REAUTHENTICATION_NS_MIN

    def _step(self, context: RequestContext, caller: _Caller,
              token: bytes) -> tuple[bytes, int]:
        """Return (the response token, the session's length in ms, 0 for no limit)."""
        login = caller.login
        assert login is not None
        try:
            response = login.step(token)
        except AuthenticationFailed as failed:
            self._log_failure(context, login, failed)
            raise
        return self._stepped(context, caller, login, response)

    async def _step_elsewhere(self, context: RequestContext, caller: _Caller, login: Login,
                              token: bytes) -> tuple[bytes, int]:
        """Like _step(), on a thread."""
        # Messages that arrive during this find no login to continue.
        caller.login, caller.is_busy = None, True
        try:
            response = await asyncio.to_thread(login.step, token)
        except AuthenticationFailed as failed:
            self._log_failure(context, login, failed)
            raise
        finally:
            caller.is_busy = False
        if self._callers.get(context.connection) is not caller:
            raise AuthenticationFailed(reason="the connection has ended")
        return self._stepped(context, caller, login, response)

    def _stepped(self, context: RequestContext, caller: _Caller, login: Login,
                 response: bytes) -> tuple[bytes, int]:
        """Finish _step(), after the login's own step."""
        if not login.is_complete:
            caller.login = login
            return response, 0
        try:
            self._check_same(caller, login)
        except AuthenticationFailed as failed:
            self._log_failure(context, login, failed)
            raise
        caller.principal, caller.mechanism = login.principal, login.mechanism
        caller.login, caller.authenticated_ns = None, self._reactors.now_ns()
        session_ms = self._session_ms(caller, login)
        # Requests after the response belong to this principal.
        number = self._identities.bind_connection(context.connection, login.principal,
                                                  context.peer_host)
        self._reactors.set_principal(context.connection, number, session_ms)
        return response, session_ms

    def _check_same(self, caller: _Caller, login: Login) -> None:
        # Re-authentication must not change the principal.
        before = caller.principal
        if before is None:
            return
        if before != login.principal:
            raise AuthenticationFailed(
                f"Cannot change principals during re-authentication from {before.kind}."
                f"{before.name}: {login.principal.kind}.{login.principal.name}")
        if caller.mechanism != login.mechanism:
            raise AuthenticationFailed(
                f"Cannot change the mechanism during re-authentication from {caller.mechanism}: "
                f"{login.mechanism}")

    def _session_ms(self, caller: _Caller, login: Login) -> int:
        limits = [limit for limit in (
            self._mechanisms.session_ms_max(caller.listener, login.mechanism),
            login.left_ms(self._now_ms())) if limit]
        return max(1, min(*limits, SESSION_MS_MAX)) if limits else 0

    @property
    def _delay_s(self) -> float:
        return self._settings["connection.failed.authentication.delay.ms"] / 1000

    async def _refused(self, response: Message) -> Message:
        await asyncio.sleep(self._delay_s)
        return response

    def _log_failure(self, context: RequestContext, login: Login,
                     failed: AuthenticationFailed) -> None:
        now_ns = self._reactors.now_ns()
        if now_ns - self._lines_since_ns >= LINES_NS:
            self._failures, self._lines_since_ns = 0, now_ns
        self._failures += 1
        if self._failures <= LINES_MAX:
            log.warning("authentication failed", extra={
                "peer": context.peer_host, "mechanism": login.mechanism, "user": login.name,
                "listener": self._listener_name(context.listener),
                "reason": failed.reason or failed.text})
