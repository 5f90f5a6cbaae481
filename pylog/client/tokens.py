"""Bearer tokens of the client: from a callback, or from an issuer's token endpoint.

Owns: the newest token of one client object.
Called by: client.login.
Invariants: (1) a token is used again until REUSED of its life is over; (2) neither a token nor a
  secret stands in an error; (3) the event loop waits for no callback and no issuer.
Source: RFC 6749 (client credentials); KIP-768's settings; librdkafka's oauth_cb.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request

from pylog.client.errors import AuthenticationError
from pylog.client.settings import Settings

ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
REUSED = 0.8
TIMEOUT_S = 10.0
BYTES_MAX = 1 << 20


class TokenSource:
    """What the settings of one client say. One for each event loop."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._token = ""
        self._until_s = 0.0
        self._asking = asyncio.Lock()

    async def token(self) -> str:
        """A token that counts. Raises AuthenticationError."""
        async with self._asking:
            now_s = time.time()
            if now_s >= self._until_s:
                # Keeps (3).
                self._token, expires_s = await asyncio.to_thread(self._asked)
                self._until_s = now_s + REUSED * (expires_s - now_s)   # Keeps (1).
            return self._token

    def _asked(self) -> tuple[str, float]:
        """(a new token, when it ends in seconds since 1970 or 0 when nobody says)."""
        callback = self._settings["oauth_cb"]
        if callback is None:
            return self._of_endpoint()
        try:
            found = callback("")
        except Exception as failure:
            raise AuthenticationError(
                f"oauth_cb raised {type(failure).__name__}: {failure}") from failure
        token, *more = found if isinstance(found, tuple) else (found,)
        if not isinstance(token, str) or not token:
            raise AuthenticationError("oauth_cb: expected a token, or (token, end in seconds since "
                                      f"1970), not {type(token).__name__}")
        return token, float(more[0]) if more else _end_of(token)

    def _of_endpoint(self) -> tuple[str, float]:
        value = self._settings.__getitem__
        name, secret = (value(f"sasl.oauthbearer.client.credentials.client.{part}")
                        for part in ("id", "secret"))
        form = {"grant_type": "client_credentials"}
        if value("sasl.oauthbearer.scope"):
            form["scope"] = value("sasl.oauthbearer.scope")
        asked_s = time.time()
        request = urllib.request.Request(
            value(ENDPOINT), urllib.parse.urlencode(form).encode(), {
                "Authorization": "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode(),
                "Accept": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                found = json.loads(answer.read(BYTES_MAX))
            token = found["access_token"]
            lasts_s = found.get("expires_in")
        except urllib.error.HTTPError as failure:
            raise AuthenticationError(f"{value(ENDPOINT)} gives no token: {failure.code} "
                                      f"{_reason(failure)}") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
            raise AuthenticationError(
                f"{value(ENDPOINT)} gives no token: {type(failure).__name__}: {failure}") from None
        return token, asked_s + lasts_s if lasts_s else _end_of(token)


def _reason(failure: urllib.error.HTTPError) -> str:
    """What the issuer says, by RFC 6749: `error` and `error_description`."""
    try:
        found = json.loads(failure.read(BYTES_MAX))
        return " ".join(str(found[name]) for name in ("error", "error_description")
                        if name in found)
    except (ValueError, TypeError, OSError):
        return str(failure.reason)


def _end_of(token: str) -> float:
    """What the token says of its end, in seconds since 1970; 0 when it says nothing."""
    try:
        part = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["exp"])
    except (ValueError, KeyError, IndexError, TypeError):
        return 0.0
