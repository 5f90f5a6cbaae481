"""The keys that an issuer of tokens publishes, as they are now.

Owns: the keys, a thread while they are loaded again.
Invariants: (1) nobody who logs in waits for an issuer: what was loaded last counts until there is
  something newer; (2) an issuer is asked once in `refresh_ms`, and out of turn, for a key that is
  not known, at most once in `retry_ms` and in UNKNOWN_S, whatever strangers send; (3) an answer is
  of bounded size.
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

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from typing import Any

BYTES_MAX = 1 << 20
TIMEOUT_S = 10.0
UNKNOWN_S = 1.0
SCHEMES = ("file", "https", "http")
# What signs tokens; a secret that both sides know does not.
KINDS = ("RSA", "EC")
MISSING = "OAUTHBEARER needs joserfc: pip install 'pylog-broker[oauth]'"

log = logging.getLogger("pylog.security")


class Keys:
    """url: file, https or http. tls: for https, None for the machine's. seconds: a clock."""

    def __init__(self, url: str, refresh_ms: int, retry_ms: int, tls: ssl.SSLContext | None,
                 seconds: Callable[[], float]):
        if urlsplit(url).scheme not in SCHEMES:
            raise ConfigError(f"sasl.oauthbearer.jwks.endpoint.url={url}: expected "
                              "file:///path, https://… or http://…")
        self._url = url
        self._refresh_s, self._retry_s = refresh_ms / 1000, max(retry_ms / 1000, UNKNOWN_S)
        self._tls = tls
        self._seconds = seconds
        self._loading = threading.Lock()     # Held while they are loaded.
        self._keys: dict[str | None, Any] = {}
        self._tried_s = 0.0
        self._stamp: tuple[int, int] | None = None

    def load(self) -> None:
        """Loads the keys. Blocks. Raises ConfigError."""
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
                # RFC 7517: one that is not understood leaves the others.
                reasons.append(f"{type(error).__name__}: {error}")
        if not found:
            why = ", ".join(reasons) or "it lists none that sign tokens"
            raise ConfigError(f"no keys from {self._url}: {why}")
        keys = {key.kid: key for key in found}
        if len(found) == 1:
            # A token need not say which, where there is one.
            keys[None] = found[0]
        self._keys, self._stamp = keys, stamp

    def _read(self) -> bytes:
        """Keeps (3). Raises OSError, ValueError."""
        with urllib.request.urlopen(self._url, timeout=TIMEOUT_S, context=self._tls) as answer:
            data = answer.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise ValueError(f"it is longer than {BYTES_MAX} bytes")
        return data

    def _stamp_now(self) -> tuple[int, int] | None:
        """What changes with a file, None for others and for one that is gone."""
        parts = urlsplit(self._url)
        if parts.scheme != "file":
            return None
        try:
            found = os.stat(parts.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def find(self, kid: object) -> Any | None:
        """The key of that id, or the only one for None; None when it is not known (1)."""
        since_s = self._seconds() - self._tried_s
        key = self._keys.get(kid) if kid is None or isinstance(kid, str) else None
        # Keeps (2).
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
                # The system has no thread just now: it is tried again.
                self._loading.release()
                log.warning("the keys of tokens were not loaded again",
                            extra={"reason": str(error)})

    def _loaded(self) -> None:
        try:
            self.load()
        except ConfigError as error:
            log.warning("the keys of tokens were not loaded again", extra={"reason": str(error)})
        except Exception:
            supervisor.report("token keys")
        finally:
            self._loading.release()
