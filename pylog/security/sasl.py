"""SASL of the listeners: which mechanisms they offer, and one login after the other.

Owns: the secret by which unknown users get their salts, for as long as this process lives; the keys
  of those who issue each listener's tokens.
Invariants: (1) a login is complete once, and says then who it was; (2) credentials and settings are
  looked up when a login begins, as they are in force; (3) no login waits for an issuer of tokens.
Source: KIP-43, KIP-48, KIP-84, KIP-86, KIP-152, KIP-768; the settings by Kafka's names.
"""

from __future__ import annotations

import functools
import secrets

from pylog.config.errors import ConfigError
from pylog.config.listeners import SASL_PROTOCOLS
from pylog.security import bearer, delegation, identities, jaas, kerberos, plain, scram
from pylog.security.errors import AuthenticationFailed

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from typing import Any

    from pylog.config import Settings
    from pylog.security.delegation import Found
    from pylog.security.identities import Principal
    from pylog.security.jwks import Keys
    from pylog.security.tokens import Tokens

PLAIN, BEARER = "PLAIN", "OAUTHBEARER"
SERVED = (PLAIN, *scram.MECHANISMS, BEARER, kerberos.MECHANISM)
KEYS_URL = "sasl.oauthbearer.jwks.endpoint.url"
UNSECURED = "sasl.oauthbearer.unsecured.enable"
SECRET_BYTES = 32


def check(settings: Settings) -> None:
    """Raises ConfigError when nobody could log in to a listener by these settings, as far as that
    can be told without an issuer of tokens. Reads files."""
    Mechanisms(settings, dict, lambda: 0, lambda: 0).check(asks=False)


class Login:
    """One login by a mechanism, and what is known when it is complete."""

    def __init__(self, mechanism: str, exchange: Any):
        self.mechanism = mechanism
        self.token: Found | None = None      # A delegation token's, when the client logs in by one.
        self._exchange = exchange

    def step(self, token: bytes) -> bytes:
        """The answer to a client's message. Raises AuthenticationFailed with a text."""
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
        """Whether a step waits for a disk or another machine."""
        return getattr(self._exchange, "blocks", False)

    @property
    def name(self) -> str:
        """The name that the client gave, "" before it did."""
        return self._exchange.name

    @property
    def principal(self) -> Principal:
        assert self.is_complete
        return identities.user(self.name) if self.token is None else self.token.owner

    def left_ms(self, now_ms: int) -> int:
        """How long the credentials are good for, at least 1; 0: for ever."""
        expires_ms = getattr(self._exchange, "expires_ms", 0) if self.token is None \
            else self.token.expires_ms
        return max(1, expires_ms - now_ms) if expires_ms else 0


class Mechanisms:
    """The mechanisms of the listeners. scram_records: the credentials in force, by the keys of
    metadata.image's `security`. now_ms: the wall clock; now_ns: one that only rises."""

    def __init__(self, settings: Settings, scram_records: Callable[[], dict],
                 now_ms: Callable[[], int], now_ns: Callable[[], int]):
        self._settings = settings
        self._scram_records = scram_records
        self._now_ms, self._now_ns = now_ms, now_ns
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._passwords: dict[str, dict[str, str]] = {}
        self._keys: dict[str, tuple[tuple, Keys]] = {}     # By listener: what made of, the keys.
        self._acceptors: dict[tuple, kerberos.Acceptor] = {}     # By what they were made of.
        self._delegation: delegation.Delegation | None = None

    def check(self, asks: bool = True) -> None:
        """Raises ConfigError for a listener that nobody could log in to. asks: as check_login."""
        for listener in self._settings.all_listeners:
            if listener.protocol in SASL_PROTOCOLS:
                for mechanism in self.offered(listener.name):
                    self.check_login(listener.name, mechanism, asks)

    def check_login(self, listener: str, mechanism: str, asks: bool = True) -> None:
        """Raises ConfigError when nobody could log in by a mechanism. asks: an issuer of tokens,
        too, for its keys; blocks."""
        self.begin(listener, mechanism)
        if mechanism == BEARER and asks:
            keys = self._keys_of(listener)
            if keys is not None:
                keys.load()

    def offered(self, listener: str) -> tuple[str, ...]:
        """Mechanisms of a listener. Raises ConfigError."""
        names = self._settings.of_listener(listener, "sasl.enabled.mechanisms")
        unknown = [name for name in names if name not in SERVED]
        if unknown or not names:
            raise ConfigError(
                f"sasl.enabled.mechanisms={','.join(names)} of listener {listener}: served are "
                f"{', '.join(SERVED)}")
        return names

    def session_ms_max(self, listener: str, mechanism: str) -> int:
        """connections.max.reauth.ms, 0 without a limit."""
        return self._settings.of_listener(
            listener, "connections.max.reauth.ms", mechanism)

    def begin(self, listener: str, mechanism: str) -> Login:
        """A new login by a mechanism that the listener offers. Raises ConfigError."""
        if mechanism == PLAIN:
            return Login(mechanism, plain.Exchange(self._known_passwords(listener)))
        if mechanism == BEARER:
            return Login(mechanism, bearer.Exchange(self._tokens_of(listener).check))
        if mechanism == kerberos.MECHANISM:
            return Login(mechanism, self._acceptor_of(listener).begin())
        number = scram.MECHANISMS[mechanism]

        def find(name: str, extensions: dict) -> scram.Credential | None:
            if extensions.get(delegation.EXTENSION) != "true":
                return self._kept(name, number)
            login.token = self._delegated(name, number)
            return None if login.token is None else login.token.credential

        login = Login(mechanism, scram.Exchange(
            number, find, secrets.token_bytes, self._secret))
        return login

    def _known_passwords(self, listener: str) -> dict[str, str]:
        text = self._settings.of_listener(listener, "sasl.jaas.config", PLAIN)
        if text is None:
            raise ConfigError(f"listener {listener} offers PLAIN, whose users stand in listener."
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
            self._delegation = delegation.Delegation(
                self._scram_records, secret, self._secret, self._now_ms)
        return self._delegation.find(token_id, mechanism)

    def _kept(self, name: str, mechanism: int) -> scram.Credential | None:
        record = self._scram_records().get(("UserScramCredentialRecord", (name, mechanism)))
        if record is None:
            return None
        return scram.Credential(bytes(record.salt), bytes(record.stored_key),
                                bytes(record.server_key), record.iterations)

    # ---- Kerberos -------------------------------------------------------------------------------

    def _acceptor_of(self, listener: str) -> kerberos.Acceptor:
        """Blocks when it is made. Raises ConfigError."""
        text = self._settings.of_listener(listener, "sasl.jaas.config", kerberos.MECHANISM)
        rules = self._settings.of_listener(
            listener, "sasl.kerberos.principal.to.local.rules", kerberos.MECHANISM)
        if text is None:
            raise ConfigError(f"listener {listener} offers GSSAPI, whose keytab stands in listener."
                              f"name.{listener.lower()}.gssapi.sasl.jaas.config: it is not set")
        found = self._acceptors.get((text, rules))
        if found is None:
            self._acceptors.clear()
            found = self._acceptors[text, rules] = kerberos.Acceptor(
                jaas.options(text), kerberos.ShortNames(rules, kerberos.default_realm))
        return found

    # ---- tokens ---------------------------------------------------------------------------------

    def _tokens_of(self, listener: str) -> Tokens:
        """What the listener takes as a token. Raises ConfigError."""
        from pylog.security.tokens import Rules, Tokens

        value = functools.partial(self._of_bearer, listener)
        return Tokens(Rules(
            issuer=value("sasl.oauthbearer.expected.issuer"),
            audience=value("sasl.oauthbearer.expected.audience"),
            scope=value("sasl.oauthbearer.expected.scope"),
            scope_claim=value("sasl.oauthbearer.scope.claim.name"),
            name_claim=value("sasl.oauthbearer.sub.claim.name"),
            skew_s=value("sasl.oauthbearer.clock.skew.seconds"),
        ), self._keys_of(listener), self._now_ms)

    def _of_bearer(self, listener: str, name: str) -> Any:
        return self._settings.of_listener(listener, name, BEARER)

    def _keys_url(self, listener: str) -> str | None:
        """Where the keys are, None where unsigned tokens count. Raises ConfigError."""
        url: str | None = self._of_bearer(listener, KEYS_URL)
        is_open = self._of_bearer(listener, UNSECURED)
        if url is None and is_open:
            return None
        if url is None:
            raise ConfigError(
                f"listener {listener} offers OAUTHBEARER: {KEYS_URL} is not set, where the keys "
                f"are that sign tokens; {UNSECURED}=true takes tokens of anybody, for tests")
        if is_open:
            raise ConfigError(f"listener {listener}: {UNSECURED}=true and {KEYS_URL} exclude each "
                              "other")
        return url

    def _keys_of(self, listener: str) -> Keys | None:
        """The keys by the settings of now, None where unsigned tokens count. Raises ConfigError."""
        url = self._keys_url(listener)
        if url is None:
            return None
        refresh_ms, retry_ms, text = (self._of_bearer(listener, name) for name in (
            "sasl.oauthbearer.jwks.endpoint.refresh.ms",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "sasl.jaas.config"))
        made_of = url, refresh_ms, retry_ms, text
        found = self._keys.get(listener)
        if found is None or found[0] != made_of:
            from pylog.security.jwks import Keys

            # Keeps (3): after the start they are loaded once a token asks for one.
            found = self._keys[listener] = made_of, Keys(
                url, refresh_ms, retry_ms, self._tls_of(text), lambda: self._now_ns() / 1e9)
        return found[1]

    @staticmethod
    def _tls_of(text: str | None) -> ssl.SSLContext | None:
        """Towards the issuer: Kafka has the stores in the login module's options."""
        if text is None:
            return None
        from pylog.security import outgoing

        return outgoing.towards_issuer(jaas.options(text))
