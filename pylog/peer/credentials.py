"""How this node shows other nodes who it is, and finds out who they are: TLS and SASL.

Owns: the TLS contexts made of the settings, until their files change.
Called by: peer.securing (makes them); peer.connection and peer.dial use what they are given.
Invariants: (1) settings that cannot be used are refused when it is made, before anybody is dialled;
  (2) no password stands in the text of an exception.
Source: KIP-103, KIP-684; Kafka's ChannelBuilders (which settings, and that brokers log in by the
  listener's own sasl.jaas.config).
"""

from __future__ import annotations

import ssl

from pylog.config.errors import ConfigError
from pylog.config.listeners import SASL_PROTOCOLS, TLS_PROTOCOLS
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.security import jaas, outgoing, proofs, stores
from pylog.security.errors import AuthenticationFailed

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from pylog._native.tls import TlsClient
    from pylog.config import Settings

AUTHENTICATE_VERSION = 1         # The first that says how long the login is good for.


class Credentials:
    """listener: a name, as the other side has it too. mechanism_setting: which names the SASL
    mechanism. Raises ConfigError (1)."""

    def __init__(self, settings: Settings, listener: str, protocol: str, mechanism_setting: str):
        self._settings = settings
        self._listener = listener
        self.has_tls = protocol in TLS_PROTOCOLS
        self.has_login = protocol in SASL_PROTOCOLS
        self._mechanism_setting = mechanism_setting
        self._context: tuple[tuple, ssl.SSLContext] | None = None
        self._client: tuple[tuple, TlsClient] | None = None
        if self.has_tls:
            self.context()
        if self.has_login:
            self._account()

    def _get(self, name: str) -> Any:
        return self._settings.of_listener(self._listener, name)

    # ---- TLS ------------------------------------------------------------------------------------

    @property
    def checks_names(self) -> bool:
        """Whether the other side's certificate has to be for the host that was dialled."""
        return self._get("ssl.endpoint.identification.algorithm") != ""

    def context(self) -> ssl.SSLContext:
        """For Python's sockets, of the files as they are now. Raises ConfigError."""
        stamp = stores.stamp(stores.files(self._get))
        if self._context is None or self._context[0] != stamp:
            self._context = stamp, outgoing.context(self._get)
        return self._context[1]

    def client(self) -> TlsClient:
        """For native threads, of the files as they are now. Raises ConfigError."""
        # Imported here: it loads OpenSSL a second time over, where brokers follow each other.
        from pylog._native.tls import TlsClient, TlsError

        stamp = stores.stamp(stores.files(self._get))
        if self._client is None or self._client[0] != stamp:
            own = stores.own(self._get)
            chain, key, key_password = (None, None, None) if own is None else own
            try:
                made = TlsClient(chain=chain, key=key, key_password=key_password,
                                 trusted=stores.trusted(self._get))
            except TlsError as error:
                raise ConfigError(f"listener {self._listener}: {error}") from None
            self._client = stamp, made
        return self._client[1]

    # ---- SASL -----------------------------------------------------------------------------------

    def login(self) -> Generator[tuple[Any, int], Any, int]:
        """Yields (request, version), is sent the answers, and returns for how many ms the login is
        good, 0 for ever. Raises PeerError."""
        mechanism, name, password = self._account()
        hello = yield messages.SaslHandshakeRequest(mechanism=mechanism), proofs.HANDSHAKE_VERSION
        if hello.error_code:
            raise PeerError(f"it does not offer {mechanism}, only {', '.join(hello.mechanisms)}")
        steps = proofs.tokens(mechanism, name, password)
        token = next(steps)
        while True:
            answer = yield messages.SaslAuthenticateRequest(auth_bytes=token), AUTHENTICATE_VERSION
            if answer.error_code:
                raise PeerError(f"it refuses the login of {name}: "
                                f"{answer.error_message or 'the credentials were not accepted'}")
            try:
                token = steps.send(answer.auth_bytes)
            except StopIteration:
                return answer.session_lifetime_ms
            except AuthenticationFailed as failed:
                raise PeerError(f"the login of {name}: {failed}") from None

    def _account(self) -> tuple[str, str, str]:
        """(mechanism, name, password). Raises ConfigError."""
        mechanism = self._settings[self._mechanism_setting]
        if mechanism not in proofs.MECHANISMS:
            raise ConfigError(f"{self._mechanism_setting}={mechanism}: expected one of "
                              f"{', '.join(proofs.MECHANISMS)}")
        text = self._settings.of_listener(self._listener, "sasl.jaas.config", mechanism)
        options = {} if text is None else jaas.options(text)
        if not options.get("username") or not options.get("password"):
            raise ConfigError(
                f"listener.name.{self._listener.lower()}.{mechanism.lower()}.sasl.jaas.config: "
                "a node that logs in to others needs a username and a password in it")
        return mechanism, options["username"], options["password"]
