"""SASL of the listeners: which mechanisms they offer, and one login after the other.

Owns: the secret by which unknown users get their salts, for as long as this process lives.
Called by: server.guard (Mechanisms), api.authentication.
Invariants: (1) a login is complete once, and says then who it was; (2) credentials are looked up
  when a login begins, as they are in force.
Source: KIP-43, KIP-84, KIP-86, KIP-152; the settings by Kafka's names.
"""

from __future__ import annotations

import secrets

from pylog.config.errors import ConfigError
from pylog.config.listeners import SASL_PROTOCOLS
from pylog.security import identities, jaas, plain, scram
from pylog.security.errors import AuthenticationFailed

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog.config import Settings
    from pylog.security.identities import Principal

PLAIN = "PLAIN"
SERVED = (PLAIN, *scram.MECHANISMS)
SECRET_BYTES = 32


class Login:
    """One login by a mechanism, and what is known when it is complete."""

    def __init__(self, mechanism: str, exchange: Any):
        self.mechanism = mechanism
        self._exchange = exchange

    def step(self, token: bytes) -> bytes:
        """The answer to a client's message. Raises AuthenticationFailed with a text."""
        try:
            return self._exchange.step(token)
        except AuthenticationFailed as failed:
            raise AuthenticationFailed(failed.text or (
                "Authentication failed during authentication due to invalid credentials with SASL "
                f"mechanism {self.mechanism}")) from None

    @property
    def is_complete(self) -> bool:
        return self._exchange.is_complete

    @property
    def name(self) -> str:
        """The name that the client gave, "" before it did."""
        return self._exchange.name

    @property
    def principal(self) -> Principal:
        assert self.is_complete
        return identities.user(self.name)

    def left_ms(self, now_ms: int) -> int:
        """How long the credentials are good for, at least 1; 0: for ever."""
        return 0


class Mechanisms:
    """The mechanisms of the listeners. scram_records: the credentials in force, by the keys of
    metadata.image's `security`."""

    def __init__(self, settings: Settings, scram_records: Callable[[], dict]):
        self._settings = settings
        self._scram_records = scram_records
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._passwords: dict[str, dict[str, str]] = {}

    def check(self) -> None:
        """Raises ConfigError for a listener that nobody could log in to."""
        for listener in self._settings.all_listeners:
            if listener.protocol in SASL_PROTOCOLS:
                for mechanism in self.offered(listener.name):
                    self.begin(listener.name, mechanism)

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
        number = scram.MECHANISMS[mechanism]
        return Login(mechanism, scram.Exchange(
            number, lambda name, extensions: self._kept(name, number), secrets.token_bytes,
            self._secret))

    def _known_passwords(self, listener: str) -> dict[str, str]:
        text = self._settings.of_listener(listener, "sasl.jaas.config", PLAIN)
        if text is None:
            raise ConfigError(f"listener {listener} offers PLAIN, whose users stand in listener."
                              f"name.{listener.lower()}.plain.sasl.jaas.config: it is not set")
        if text not in self._passwords:
            self._passwords.clear()
            self._passwords[text] = plain.passwords(jaas.options(text))
        return self._passwords[text]

    def _kept(self, name: str, mechanism: int) -> scram.Credential | None:
        record = self._scram_records().get(("UserScramCredentialRecord", (name, mechanism)))
        if record is None:
            return None
        return scram.Credential(bytes(record.salt), bytes(record.stored_key),
                                bytes(record.server_key), record.iterations)
