"""TLS and SASL of connections to other nodes, in both directions of authentication.

Owns: the TLS contexts and the account built from the settings, until those change.
Invariants: unusable settings are rejected at construction, before any connection; exception texts
  never contain a password; at most ASKING_MAX threads wait for a KDC or a token issuer, and a
  further login fails immediately.
Source: KIP-103, KIP-684; Kafka's ChannelBuilders (which settings, and that brokers log in with the
  listener's own sasl.jaas.config).
"""

from __future__ import annotations

import ssl
import threading

from pylog.config.errors import ConfigError
from pylog.config.listeners import SASL_PROTOCOLS, TLS_PROTOCOLS
from pylog.peer import accounts
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.security.sasl import client_exchange
from pylog.security.tls import key_stores, outgoing_tls
from pylog.security.errors import AuthenticationFailed

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from pylog._native.server.tls import TlsClient
    from pylog.config import Settings

    Account = accounts.Password | accounts.Ticket | accounts.Bearer
    Login = Generator[tuple[Any, int], Any, int]

AUTHENTICATE_VERSION = 1  # The first version with session lifetimes.
ASKING_MAX = 4


class Credentials:
    """listener: its name, the same as on the other node. mechanism_setting: name of the setting
    with the SASL mechanism. now_ms: the wall clock. Raises ConfigError for unusable settings.
    """

    def __init__(self, settings: Settings, listener: str, protocol: str, mechanism_setting: str,
                 now_ms: Callable[[], int]):
        self._settings = settings
        self._listener = listener
        self.has_tls = protocol in TLS_PROTOCOLS
        self.has_login = protocol in SASL_PROTOCOLS
        self._mechanism_setting = mechanism_setting
        self._now_ms = now_ms
        self._account: tuple[tuple, Account] | None = None
        self._logins = threading.BoundedSemaphore(ASKING_MAX)
        self._context: tuple[tuple, ssl.SSLContext] | None = None
        self._client: tuple[tuple, TlsClient] | None = None
        if self.has_tls:
            self.context()
        if self.has_login:
            self.account()

    def _get(self, name: str) -> Any:
        return self._settings.of_listener(self._listener, name)

    # ---- TLS ------------------------------------------------------------------------------------

    @property
    def checks_names(self) -> bool:
        """Return True if the other node's certificate must match the host name."""
        return self._get("ssl.endpoint.identification.algorithm") != ""

    def own_chain(self) -> bytes:
        """Return this node's certificates as PEM, empty without any."""
        return key_stores.own_chain(self._get)

    def context(self) -> ssl.SSLContext:
        """Return the context for Python's sockets, from the current settings and files. Raises
        ConfigError.
        """
        made_of = key_stores.state(self._get), self.checks_names
        if self._context is None or self._context[0] != made_of:
            self._context = made_of, outgoing_tls.context(self._get)
        return self._context[1]

    def client(self) -> TlsClient:
        """Return the TLS client for native threads, from the current settings and files. Raises
        ConfigError.
        """
        # Imported here: it loads a second copy of OpenSSL, which only brokers with replicas need.
        from pylog._native.server.tls import TlsClient, TlsError

        made_of = key_stores.state(self._get)
        if self._client is None or self._client[0] != made_of:
            own = key_stores.own(self._get)
            chain, key, key_password = (None, None, None) if own is None else own
            try:
                made = TlsClient(chain=chain, key=key, key_password=key_password,
                                 trusted=key_stores.trusted(self._get))
            except TlsError as error:
                raise ConfigError(f"listener {self._listener}: {error}") from None
            self._client = made_of, made
        return self._client[1]

    # ---- SASL -----------------------------------------------------------------------------------

    @property
    def blocks(self) -> bool:
        """Return True if a login step may wait for a third machine, such as a KDC."""
        assert self._account is not None, self._listener
        return self._account[1].blocks

    def login(self, host: str) -> Login:
        """Yield (request, version), receive the responses through send(), and return the login's
        lifetime in ms, 0 without a limit. host: of the connection. Raises PeerError.
        """
        try:
            mechanism, account = self._settings[self._mechanism_setting], self.account()
        except ConfigError as error:
            raise PeerError(str(error)) from None
        hello = yield (messages.SaslHandshakeRequest(mechanism=mechanism),
                       client_exchange.HANDSHAKE_VERSION)
        if hello.error_code:
            raise PeerError(f"it does not offer {mechanism}, only {', '.join(hello.mechanisms)}")
        steps, response = account.tokens(host), None
        while True:
            try:
                token = self._next(account, steps,
                                   None if response is None else response.auth_bytes)
            except StopIteration:
                assert response is not None, mechanism  # Every login has at least one response.
                return response.session_lifetime_ms
            except (AuthenticationFailed, ConfigError) as failed:
                raise PeerError(f"the login of {account.name}: {failed}") from None
            request = messages.SaslAuthenticateRequest(auth_bytes=token)
            response = yield request, AUTHENTICATE_VERSION
            if response.error_code:
                raise PeerError(f"it rejected the login of {account.name}: "
                                f"{response.error_message or 'the credentials were not accepted'}")

    def _next(self, account: Account, steps: Generator[bytes, Any, None],
              response: bytes | None) -> bytes:
        if not account.blocks:
            return steps.send(response)
        # Fail immediately instead of adding one more waiting thread.
        if not self._logins.acquire(blocking=False):
            raise AuthenticationFailed("another request for the same token is already waiting")
        try:
            return steps.send(response)
        finally:
            self._logins.release()

    def account(self) -> Account:
        """Return the account of the current settings. Raises ConfigError."""
        mechanism = self._settings[self._mechanism_setting]
        if mechanism not in accounts.MECHANISMS:
            raise ConfigError(f"{self._mechanism_setting}={mechanism}: expected one of "
                              f"{', '.join(accounts.MECHANISMS)}")

        def get(name: str) -> Any:
            return self._settings.of_listener(self._listener, name, mechanism)

        made_of = mechanism, get(accounts.JAAS)
        if self._account is None or self._account[0] != made_of:
            try:
                made = accounts.of(mechanism, get, self._now_ms)
            except ConfigError as error:
                raise ConfigError(
                    f"listener.name.{self._listener.lower()}.{mechanism.lower()}."
                    f"sasl.jaas.config: {error}") from None
            self._account = made_of, made
        return self._account[1]


def advance(login: Login, response: Any) -> tuple[tuple[Any, int] | None, int]:
    """Return ((request, version), 0) of the next login step, or (None, lifetime) at the end. A
    return value, because StopIteration cannot cross a thread. Raises PeerError.
    """
    try:
        return login.send(response), 0
    except StopIteration as end:
        return None, end.value
