"""The TLS configuration of one listener, reloaded when its settings or files change.

Owns: the listener's native TlsServer.
Invariants: an invalid configuration is rejected and the listener keeps its current one; a new
  certificate applies to new connections and closes none.
Source: KIP-226 and KIP-650 (key stores that change), KIP-684 (client certificates with SASL).
"""

from __future__ import annotations

import logging
import threading

from pylog._native.server.tls import VERSIONS, TlsError, TlsServer, library
from pylog.config import ConfigError
from pylog.config.listeners import TLS_PROTOCOLS
from pylog.security.tls import key_stores, principal_mapping

log = logging.getLogger("pylog.tls")

NAMES = ("ssl.crl.location", "ssl.client.auth", "ssl.cipher.suites", "ssl.enabled.protocols")


class ListenerTls:
    """listener: a config.listeners.Listener with protocol SSL or SASL_SSL."""

    def __init__(self, settings, listener):
        self._settings = settings
        self._listener = listener
        self._server = TlsServer()
        self._loading = threading.Lock()  # The last read must also be applied last.
        self._stamp: tuple | None = None

    @property
    def maker(self) -> object:
        """Return the argument for Reactors.listen()."""
        return self._server.maker()

    def load(self) -> None:
        """Load everything. Blocks. Raises ConfigError with the listener's name."""
        where = f"{self._listener!r}"
        try:
            with self._loading:
                stamp = self._now()
                own = use(self._server, self._settings, self._listener)
                self._stamp = stamp
        except ConfigError as error:
            text = str(error)
            raise ConfigError(text if text.startswith(where) else f"{where}: {text}") from None
        log.info("the listener speaks TLS", extra={
            "listener": self._listener.name, "library": library(),
            "expires": key_stores.chain_expiry(own.chain)})

    def refresh(self) -> bool:
        """Reload if settings or files have changed, and return True if new ones apply. Logs each
        error once. Blocks.
        """
        try:
            with self._loading:
                stamp = self._now()
                if stamp == self._stamp:
                    return False
                self._stamp = stamp
                own = use(self._server, self._settings, self._listener)
        except ConfigError as error:
            log.error("the new certificates cannot be used", extra={
                "listener": self._listener.name, "reason": str(error)})
            return False
        log.info("new connections get the new certificates", extra={
            "listener": self._listener.name, "expires": key_stores.chain_expiry(own.chain)})
        return True

    def _now(self) -> tuple:
        get = getter(self._settings, self._listener)
        revoked = get("ssl.crl.location")
        return (tuple(get(name) for name in NAMES), key_stores.state(get),
                key_stores.stamp([revoked] if revoked else []))


def getter(settings, listener):
    """Return a function that returns the listener's settings by name."""

    def get(name: str):
        if name == "ssl.client.auth" and listener.protocol == "SASL_SSL" \
                and settings.value(f"listener.name.{listener.name.lower()}.{name}") is None:
            # KIP-684: the general setting applies to listeners without SASL only.
            return "none"
        return settings.of_listener(listener.name, name)

    return get


def use(server: TlsServer, settings, listener) -> key_stores.Own:
    """Apply the settings to new connections. Blocks. Raises ConfigError."""
    get = getter(settings, listener)
    if listener.protocol == "SSL":
        principal_mapping.Rules(get(principal_mapping.NAME))
    own = key_stores.own(get)
    if own is None:
        raise ConfigError(f"{listener!r} speaks TLS and has no certificate: set "
                          f"listener.name.{listener.name.lower()}.ssl.keystore.location, or "
                          "ssl.keystore.location for all")
    client_auth = get("ssl.client.auth")
    revoked = get("ssl.crl.location")
    low, high = _versions(get("ssl.enabled.protocols"))
    try:
        server.use(
            chain=own.chain, key=own.key, key_password=own.key_password,
            trusted=key_stores.trusted(get) if client_auth != "none" else None,
            revoked=key_stores.pem_file(revoked) if revoked else None,
            ciphers=":".join(get("ssl.cipher.suites")).encode() or None,
            version_min=low, version_max=high, client_auth=client_auth)
    except TlsError as error:
        raise ConfigError(f"{listener!r}: {error}") from None
    return own


def check(settings) -> None:
    """Raise ConfigError if a listener could not use these settings. Reads their files."""
    for listener in settings.all_listeners:
        if listener.protocol in TLS_PROTOCOLS:
            use(TlsServer(), settings, listener)


def _versions(names: tuple) -> tuple[str, str]:
    """Return (lowest, highest) of ssl.enabled.protocols. Raises ConfigError if the list has gaps.
    """
    known = list(VERSIONS)
    for name in names:
        if name not in known:
            raise ConfigError(f"ssl.enabled.protocols: {name} is not one of {', '.join(known)}")
    if not names:
        raise ConfigError("ssl.enabled.protocols: at least one is needed")
    positions = sorted(known.index(name) for name in set(names))
    if positions[-1] - positions[0] + 1 != len(positions):
        raise ConfigError("ssl.enabled.protocols: "
                          f"{', '.join(names)} must not leave a gap")
    return known[positions[0]], known[positions[-1]]
