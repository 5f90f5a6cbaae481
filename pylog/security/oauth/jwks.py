"""The current signing keys that a token issuer publishes (JWKS).

Owns: the keys, and a thread while they are reloaded.
Invariants: a login never waits for the issuer: it uses the last loaded keys; the issuer is
  contacted at most once per `refresh_ms`, or for an unknown key id at most once per `retry_ms` and
  once per UNKNOWN_S, whatever clients send; a response has a maximum size.
Source: RFC 7517; Kafka's RefreshingHttpsJwks (KIP-768).
"""

from __future__ import annotations

import json
import logging
import os
import threading
import urllib.request
from http.client import HTTPException
from urllib.parse import urlsplit

from pylog import supervisor
from pylog.config.errors import ConfigError

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from typing import Any

BYTES_MAX = 1 << 20
TIMEOUT_S = 10.0
UNKNOWN_S = 1.0
SCHEMES = ("file", "https", "http")
# Asymmetric keys only: a shared secret does not prove that the issuer signed the token.
KINDS = ("RSA", "EC")
MISSING = "OAUTHBEARER needs joserfc: pip install 'pylog-broker[oauth]'"

log = logging.getLogger("pylog.security")


class Keys:
    """url: file, https or http. tls: for https; None: the system's trust store. seconds: a clock.
    """

    def __init__(self, url: str, refresh_ms: int, retry_ms: int, tls: ssl.SSLContext | None,
                 seconds: Callable[[], float]):
        if urlsplit(url).scheme not in SCHEMES:
            raise ConfigError(f"sasl.oauthbearer.jwks.endpoint.url={url}: expected "
                              "file:///path, https://… or http://…")
        self._url = url
        self._refresh_s, self._retry_s = refresh_ms / 1000, max(retry_ms / 1000, UNKNOWN_S)
        self._tls = tls
        self._seconds = seconds
        self._loading = threading.Lock()  # Held during a reload.
        self._keys: dict[str | None, Any] = {}
        self._tried_s = 0.0
        self._stamp: tuple[int, int] | None = None

    def load(self) -> None:
        """Load the keys. Blocks. Raises ConfigError."""
        try:
            from joserfc import errors, jwk
        except ImportError:
            raise ConfigError(MISSING) from None
        self._tried_s = self._seconds()
        stamp = self._stamp_now()
        try:
            rows = [row for row in json.loads(self._read())["keys"]
                    if row.get("kty") in KINDS and row.get("use", "sig") == "sig"]
        except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError,
                RecursionError) as error:
            raise ConfigError(f"no keys from {self._url}: {error}") from None
        found: list[Any] = []
        reasons: list[str] = []
        for row in rows:
            try:
                found.append(jwk.import_key(row))
            except (errors.JoseError, ValueError, KeyError, TypeError) as error:
                # RFC 7517: skip keys that are not supported.
                reasons.append(f"{type(error).__name__}: {error}")
        if not found:
            why = ", ".join(reasons) or "it has no signing keys"
            raise ConfigError(f"no keys from {self._url}: {why}")
        keys = {key.kid: key for key in found}
        if len(found) == 1:
            # With a single key, a token may omit the key id.
            keys[None] = found[0]
        self._keys, self._stamp = keys, stamp

    def _read(self) -> bytes:
        """Return the published document, of at most BYTES_MAX. Raises OSError, ValueError."""
        with urllib.request.urlopen(self._url, timeout=TIMEOUT_S, context=self._tls) as response:
            data = response.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise ValueError(f"it is longer than {BYTES_MAX} bytes")
        return data

    def _stamp_now(self) -> tuple[int, int] | None:
        """Return a value that changes when the file changes, None for other URLs and missing files.
        """
        parts = urlsplit(self._url)
        if parts.scheme != "file":
            return None
        try:
            found = os.stat(parts.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def find(self, kid: object) -> Any | None:
        """Return the key with this id, or the only key for None. Return None if it is unknown.
        Never blocks: starts a reload if one is due.
        """
        since_s = self._seconds() - self._tried_s
        key = self._keys.get(kid) if kid is None or isinstance(kid, str) else None
        # Limit reloads: clients can send any key id.
        if since_s >= (self._refresh_s if key is not None else self._retry_s) \
                or self._stamp_now() != self._stamp and since_s >= self._retry_s:
            self._load_again()
        return key

    def _load_again(self) -> None:
        if self._loading.acquire(blocking=False):
            self._tried_s = self._seconds()
            try:
                supervisor.thread_once("jwks", self._loaded).start()
            except RuntimeError as error:
                # The system cannot start a thread now. The next call tries again.
                self._loading.release()
                log.warning("the token signing keys could not be reloaded",
                            extra={"reason": str(error)})

    def _loaded(self) -> None:
        try:
            self.load()
        except ConfigError as error:
            log.warning("the token signing keys could not be reloaded",
                        extra={"reason": str(error)})
        except Exception:
            supervisor.report("token keys")
        finally:
            self._loading.release()
