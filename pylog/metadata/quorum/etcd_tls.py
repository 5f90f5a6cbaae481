"""TLS and logins of the quorum's etcd, from the settings of the controller listener.

Owns: the files for this host's etcd, in `etcd-tls` below the first log directory.
Invariants: the controllers' etcds trust the same certificates as the controller listener, and serve
  no client without one; only brokerd's user can read the key files.
Source: etcd's transport security model; etcd's auth.proto.
"""

import logging
import os
from collections import namedtuple

from pylog.config import clusters
from pylog.config.errors import ConfigError
from pylog.config.listeners import TLS_PROTOCOLS

DIRECTORY = "etcd-tls"
OWN, KEY, TRUSTED = "own.pem", "key.pem", "trusted.pem"
SETTING = "quorum.etcd.security.protocol"

log = logging.getLogger("pylog.etcd")

Files = namedtuple("Files", ("own", "key", "trusted"))
Files.__doc__ = "Paths of PEM files: the certificate with its chain, its key, the trusted CAs."


def is_secured(settings) -> bool:
    """Return True if connections to etcd use TLS."""
    protocol = settings[SETTING]
    if protocol is None and not clusters.has_outer_quorum(settings):
        protocol = settings.protocol_of(_listener(settings))
    return protocol in TLS_PROTOCOLS


def context(settings):
    """Return the ssl.SSLContext for connections to etcd, None for plain text. Raises ConfigError.
    """
    if not is_secured(settings):
        return None
    # Imported here: it loads Python's ssl.
    from pylog.security.tls import outgoing_tls

    return outgoing_tls.context(_getter(settings))


def write_files(settings) -> Files | None:
    """Write the files for this host's etcd, None for plain text. Raises ConfigError, OSError."""
    if not is_secured(settings):
        return None
    from pylog.security.tls import key_stores

    get = _getter(settings)
    own, trusted = key_stores.own(get), key_stores.trusted(get)
    prefix = f"listener.name.{_listener(settings).lower()}."
    if own is None or trusted is None:
        raise ConfigError(f"the etcd of a cluster whose controllers use TLS needs {prefix}ssl."
                          f"keystore.* and {prefix}ssl.truststore.*: or set {SETTING}=PLAINTEXT")
    if own.key_password is not None:
        raise ConfigError(f"etcd cannot read an encrypted private key: {prefix}ssl.keystore.* has "
                          f"one; a "
                          f"PKCS12 file may have one of its own")
    directory = os.path.join(settings.log_dirs[0], DIRECTORY)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    return Files(*(_written(os.path.join(directory, name), data) for name, data in (
        (OWN, own.chain), (KEY, own.key), (TRUSTED, trusted))))


class Renewal:
    """Reloads changed certificates: for new connections to etcd, and for this host's etcd, which
    reads its files at each handshake.

    keys: an Etcd. runs_here: True if brokerd runs an etcd.
    """

    def __init__(self, settings, keys, runs_here: bool):
        self._settings, self._keys, self._runs_here = settings, keys, runs_here
        self._stamp = self._now()

    def check(self) -> None:
        """Reload the certificates if they changed; log unusable ones once. Blocks."""
        stamp = self._now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            made = context(self._settings)
            if self._runs_here:
                write_files(self._settings)
        except (ConfigError, OSError) as error:
            log.error("the new certificates cannot be used for etcd", extra={"reason": str(error)})
            return
        self._keys.ssl_context = made
        log.info("etcd and connections to it get the new certificates")

    def _now(self) -> tuple:
        if not is_secured(self._settings):
            return ()
        from pylog.security.tls import key_stores

        return key_stores.stamp(key_stores.files(_getter(self._settings)))


def _listener(settings) -> str:
    return settings["controller.listener.names"][0].upper()


def _getter(settings):
    return lambda name: settings.of_listener(_listener(settings), name)


def _written(path: str, data: bytes) -> str:
    """Write a file that only brokerd's user can read; return its path."""
    descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
    os.replace(path + ".new", path)
    return path
