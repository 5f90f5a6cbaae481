"""TLS and logins of the quorum's etcd, as the settings of the controllers' listener say.

Owns: the files that an etcd of this host reads, in `etcd-tls` below the first log directory.
Invariants: (1) the controllers' etcds trust whom the controllers' listener trusts, and nobody
  without such a certificate is served; (2) a key lies in files that only brokerd's user reads.
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
Files.__doc__ = "Paths of PEM files: the certificate with its chain, its key, whom to trust."


def is_secured(settings) -> bool:
    """Whether etcd is reached by TLS."""
    protocol = settings[SETTING]
    if protocol is None and not clusters.has_outer_quorum(settings):
        protocol = settings.protocol_of(_listener(settings))
    return protocol in TLS_PROTOCOLS


def context(settings):
    """The ssl.SSLContext of connections to etcd, None for plain ones. Raises ConfigError."""
    if not is_secured(settings):
        return None
    # Imported here: it loads Python's ssl.
    from pylog.security import outgoing

    return outgoing.context(_getter(settings))


def write_files(settings) -> Files | None:
    """What an etcd of this host is to use, None for plain text. Raises ConfigError, OSError."""
    if not is_secured(settings):
        return None
    from pylog.security import stores

    get = _getter(settings)
    own, trusted = stores.own(get), stores.trusted(get)
    prefix = f"listener.name.{_listener(settings).lower()}."
    if own is None or trusted is None:
        raise ConfigError(f"the etcd of a cluster whose controllers use TLS needs {prefix}ssl."
                          f"keystore.* and {prefix}ssl.truststore.*: or set {SETTING}=PLAINTEXT")
    if own.key_password is not None:
        raise ConfigError(f"etcd reads no key with a password: {prefix}ssl.keystore.* has one; a "
                          f"PKCS12 file may have one of its own")
    directory = os.path.join(settings.log_dirs[0], DIRECTORY)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    return Files(*(_written(os.path.join(directory, name), data) for name, data in (
        (OWN, own.chain), (KEY, own.key), (TRUSTED, trusted))))


class Renewal:
    """Certificates that change while the cluster runs: taken by the next connections to etcd, and
    given to the etcd of this host, which reads its files with each handshake.

    keys: an Etcd. runs_here: whether brokerd runs one.
    """

    def __init__(self, settings, keys, runs_here: bool):
        self._settings, self._keys, self._runs_here = settings, keys, runs_here
        self._stamp = self._now()

    def look(self) -> None:
        """Takes what has changed, if anything has; what cannot be used is logged once. Blocks."""
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
        from pylog.security import stores

        return stores.stamp(stores.files(_getter(self._settings)))


def _listener(settings) -> str:
    return settings["controller.listener.names"][0].upper()


def _getter(settings):
    return lambda name: settings.of_listener(_listener(settings), name)


def _written(path: str, data: bytes) -> str:
    """Keeps (2)."""
    descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
    os.replace(path + ".new", path)
    return path
