"""SASL on listeners: their mechanisms, and one login at a time per connection.

Owns: the secret that generates salts for unknown users, for the lifetime of this process; the keys
  of each listener's token issuer.
Invariants: a login completes once and then has a principal; credentials and settings are read when
  a login begins; no login waits for a token issuer.
Source: KIP-43, KIP-48, KIP-84, KIP-86, KIP-152, KIP-768; settings have Kafka's names.
"""

from __future__ import annotations

import functools
import secrets

from pylog.config.errors import ConfigError
from pylog.config.listeners import SASL_PROTOCOLS
from pylog.security import principals
from pylog.security.sasl import (
    delegation_token, jaas, kerberos, oauthbearer, plain, scram,
)
from pylog.security.errors import AuthenticationFailed

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from typing import Any

    from pylog.config import Settings
    from pylog.security.sasl.delegation_token import Found
    from pylog.security.principals import Principal
    from pylog.security.oauth.jwks import Keys
    from pylog.security.oauth.jwt import Tokens

PLAIN, BEARER = "PLAIN", "OAUTHBEARER"
SERVED = (PLAIN, *scram.MECHANISMS, BEARER, kerberos.MECHANISM)
KEYS_URL = "sasl.oauthbearer.jwks.endpoint.url"
UNSECURED = "sasl.oauthbearer.unsecured.enable"
SECRET_BYTES = 32


def check(settings: Settings) -> None:
    """Raise ConfigError if no client could log in to a listener with these settings, as far as that
    is visible without contacting a token issuer. Reads files.
    """
    Mechanisms(settings, dict, lambda: 0, lambda: 0).check(contacts_issuer=False)


class Login:
    """One login, and its result when it is complete."""

    def __init__(self, mechanism: str, exchange: Any):
        self.mechanism = mechanism
        self.token: Found | None = None  # Set if the client logs in with a delegation token.
        self._exchange = exchange

    def step(self, token: bytes) -> bytes:
        """Return the response to a client's message. Raises AuthenticationFailed with a text."""
        try:
            return self._exchange.step(token)
        except AuthenticationFailed as failed:
            raise AuthenticationFailed(failed.text or (
                "Authentication failed during authentication due to invalid credentials with SASL "
                f"mechanism {self.mechanism}"), failed.reason) from None

    @property
    def is_complete(self) -> bool:
        return self._exchange.is_complete

    @property
    def blocks(self) -> bool:
        """Return True if a step may block on a disk or the network."""
        return getattr(self._exchange, "blocks", False)

    @property
    def name(self) -> str:
        """Return the client's user name, "" if it has not sent it yet."""
        return self._exchange.name

    @property
    def principal(self) -> Principal:
        assert self.is_complete
        return principals.user(self.name) if self.token is None else self.token.owner

    def left_ms(self, now_ms: int) -> int:
        """Return the remaining lifetime of the credentials, at least 1; 0: unlimited."""
        expires_ms = getattr(self._exchange, "expires_ms", 0) if self.token is None \
            else self.token.expires_ms
        return max(1, expires_ms - now_ms) if expires_ms else 0


class Mechanisms:
    """The mechanisms of all listeners. scram_records: returns the current credentials by the keys
    of metadata.image's `security`. now_ms: wall clock. now_ns: monotonic clock.
    """

    def __init__(self, settings: Settings, scram_records: Callable[[], dict],
                 now_ms: Callable[[], int], now_ns: Callable[[], int]):
        self._settings = settings
        self._scram_records = scram_records
        self._now_ms, self._now_ns = now_ms, now_ns
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._passwords: dict[str, dict[str, str]] = {}
        self._keys: dict[str, tuple[tuple, Keys]] = {}  # Listener -> (settings, keys).
        self._acceptors: dict[tuple, kerberos.Acceptor] = {}  # Settings -> acceptor.
        self._delegation: delegation_token.Delegation | None = None

    def check(self, contacts_issuer: bool = True) -> None:
        """Raise ConfigError for a listener that no client could log in to. asks: as in check_login.
        """
        for listener in self._settings.all_listeners:
            if listener.protocol in SASL_PROTOCOLS:
                for mechanism in self.offered(listener.name):
                    self.check_login(listener.name, mechanism, contacts_issuer)

    def check_login(self, listener: str, mechanism: str, contacts_issuer: bool = True) -> None:
        """Raise ConfigError if no client could log in with the mechanism. asks: also load the keys
        from the token issuer; blocks.
        """
        self.begin(listener, mechanism)
        if mechanism == BEARER and contacts_issuer:
            keys = self._keys_of(listener)
            if keys is not None:
                keys.load()

    def offered(self, listener: str) -> tuple[str, ...]:
        """Return the mechanisms of a listener. Raises ConfigError."""
        names = self._settings.of_listener(listener, "sasl.enabled.mechanisms")
        unknown = [name for name in names if name not in SERVED]
        if unknown or not names:
            raise ConfigError(
                f"sasl.enabled.mechanisms={','.join(names)} of listener {listener}: expected some "
                f"of {', '.join(SERVED)}")
        return names

    def session_ms_max(self, listener: str, mechanism: str) -> int:
        """Return connections.max.reauth.ms; 0: unlimited."""
        return self._settings.of_listener(
            listener, "connections.max.reauth.ms", mechanism)

    def begin(self, listener: str, mechanism: str) -> Login:
        """Start a login with a mechanism of the listener. Raises ConfigError."""
        if mechanism == PLAIN:
            return Login(mechanism, plain.Exchange(self._known_passwords(listener)))
        if mechanism == BEARER:
            return Login(mechanism, oauthbearer.Exchange(self._tokens_of(listener).check))
        if mechanism == kerberos.MECHANISM:
            return Login(mechanism, self._acceptor_of(listener).begin())
        number = scram.MECHANISMS[mechanism]

        def find(name: str, extensions: dict) -> scram.Credential | None:
            if extensions.get(delegation_token.EXTENSION) != "true":
                return self._credential(name, number)
            login.token = self._delegated(name, number)
            return None if login.token is None else login.token.credential

        login = Login(mechanism, scram.Exchange(
            number, find, secrets.token_bytes, self._secret))
        return login

    def _known_passwords(self, listener: str) -> dict[str, str]:
        text = self._settings.of_listener(listener, "sasl.jaas.config", PLAIN)
        if text is None:
            raise ConfigError(f"listener {listener} offers PLAIN, whose users are configured in "
                              f"listener."
                              f"name.{listener.lower()}.plain.sasl.jaas.config: it is not set")
        if text not in self._passwords:
            self._passwords.clear()
            self._passwords[text] = plain.passwords(jaas.options(text))
        return self._passwords[text]

    def _delegated(self, token_id: str, mechanism: int) -> Found | None:
        secret = self._settings["delegation.token.secret.key"]
        if secret is None:
            return None
        if self._delegation is None:
            self._delegation = delegation_token.Delegation(
                self._scram_records, secret, self._secret, self._now_ms)
        return self._delegation.find(token_id, mechanism)

    def _credential(self, name: str, mechanism: int) -> scram.Credential | None:
        record = self._scram_records().get(("UserScramCredentialRecord", (name, mechanism)))
        if record is None:
            return None
        return scram.Credential(bytes(record.salt), bytes(record.stored_key),
                                bytes(record.server_key), record.iterations)

    # ---- Kerberos -------------------------------------------------------------------------------

    def _acceptor_of(self, listener: str) -> kerberos.Acceptor:
        """Return the listener's Acceptor. Blocks while it is created. Raises ConfigError."""
        text = self._settings.of_listener(listener, "sasl.jaas.config", kerberos.MECHANISM)
        rules = self._settings.of_listener(
            listener, "sasl.kerberos.principal.to.local.rules", kerberos.MECHANISM)
        if text is None:
            raise ConfigError(f"listener {listener} offers GSSAPI, whose keytab is configured in "
                              f"listener."
                              f"name.{listener.lower()}.gssapi.sasl.jaas.config: it is not set")
        found = self._acceptors.get((text, rules))
        if found is None:
            self._acceptors.clear()
            found = self._acceptors[text, rules] = kerberos.Acceptor(
                jaas.options(text), kerberos.ShortNames(rules, kerberos.default_realm))
        return found

    # ---- tokens ---------------------------------------------------------------------------------

    def _tokens_of(self, listener: str) -> Tokens:
        """Return the token validation rules of the listener. Raises ConfigError."""
        from pylog.security.oauth.jwt import Rules, Tokens

        value = functools.partial(self._of_bearer, listener)
        self._check_verified(listener)
        return Tokens(Rules(
            issuer=value("sasl.oauthbearer.expected.issuer"),
            audience=value("sasl.oauthbearer.expected.audience"),
            scope=value("sasl.oauthbearer.expected.scope"),
            scope_claim=value("sasl.oauthbearer.scope.claim.name"),
            name_claim=value("sasl.oauthbearer.sub.claim.name"),
            skew_s=value("sasl.oauthbearer.clock.skew.seconds"),
        ), self._keys_of(listener), self._now_ms)

    def _check_verified(self, listener: str) -> None:
        """Raise ConfigError if signed tokens for any audience or from any issuer would pass.

        An issuer signs tokens for other services with the same keys.
        """
        if self._of_bearer(listener, KEYS_URL) is None or self._of_bearer(listener, UNSECURED):
            return
        for expected, allowed, gap in (
                ("sasl.oauthbearer.expected.audience",
                 "sasl.oauthbearer.allow.unverified.audience", "tokens for every audience"),
                ("sasl.oauthbearer.expected.issuer",
                 "sasl.oauthbearer.allow.unverified.issuer", "tokens from every issuer")):
            if not self._of_bearer(listener, expected) and not self._of_bearer(listener, allowed):
                raise ConfigError(f"listener {listener} offers OAUTHBEARER: {expected} is not set, "
                                  f"so {gap} would be accepted. Set it, or set {allowed}=true")

    def _of_bearer(self, listener: str, name: str) -> Any:
        return self._settings.of_listener(listener, name, BEARER)

    def _keys_url(self, listener: str) -> str | None:
        """Return the URL of the issuer's keys, None if unsigned tokens are accepted. Raises
        ConfigError.
        """
        url: str | None = self._of_bearer(listener, KEYS_URL)
        is_open = self._of_bearer(listener, UNSECURED)
        if url is None and is_open:
            return None
        if url is None:
            raise ConfigError(
                f"listener {listener} offers OAUTHBEARER: {KEYS_URL} is not set: it is the URL of "
                f"the signing keys. For tests, {UNSECURED}=true accepts every token")
        if is_open:
            raise ConfigError(f"listener {listener}: {UNSECURED}=true and {KEYS_URL} exclude each "
                              "other")
        return url

    def _keys_of(self, listener: str) -> Keys | None:
        """Return the keys for the current settings, None if unsigned tokens are accepted. Raises
        ConfigError.
        """
        url = self._keys_url(listener)
        if url is None:
            return None
        refresh_ms, retry_ms, text = (self._of_bearer(listener, name) for name in (
            "sasl.oauthbearer.jwks.endpoint.refresh.ms",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "sasl.jaas.config"))
        made_of = url, refresh_ms, retry_ms, text
        found = self._keys.get(listener)
        if found is None or found[0] != made_of:
            from pylog.security.oauth.jwks import Keys

            # Not loaded here, because a login must not wait. After startup, the first token
            # triggers the load.
            found = self._keys[listener] = made_of, Keys(
                url, refresh_ms, retry_ms, self._tls_of(text), lambda: self._now_ns() / 1e9)
        return found[1]

    @staticmethod
    def _tls_of(text: str | None) -> ssl.SSLContext | None:
        """Return the TLS context for the issuer. Kafka configures its stores in the login module's
        options.
        """
        if text is None:
            return None
        from pylog.security.tls import outgoing_tls

        return outgoing_tls.towards_issuer(jaas.options(text))
