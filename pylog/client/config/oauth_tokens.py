"""Bearer tokens from a callback, a file, or an issuer's token endpoint.

Owns: the latest token of one client object.
Invariants: the event loop never waits for a callback or an issuer; errors contain neither tokens
  nor secrets.
Source: the settings of KIP-768 and KIP-1139; librdkafka's oauth_cb and https.ca.location.
"""

from __future__ import annotations

import time
from functools import partial

from pylog.client import blocking
from pylog.client.errors import AuthenticationError, ConfigError
from pylog.config import errors as config_errors
from pylog.security.oauth import token_retriever, token_source
from pylog.security.tls import outgoing_tls
from pylog.security.errors import AuthenticationFailed

TYPE_CHECKING = False  # Importing typing costs 6 ms of startup.
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from typing import Any


class TokenSource:
    """The token source that a client's settings define."""

    def __init__(self, setting: Callable[[str], Any]):
        """setting: returns the value of a setting. Raises ConfigError."""
        # The client backs off by itself before it reconnects.
        self._source = token_source.Source(_way(setting), time.time, 0, 0)

    async def token(self) -> str:
        """Return a valid token. Raises AuthenticationError."""
        found = self._source.current
        if found is None:
            # On a thread: the event loop must not wait.
            try:
                found = await blocking.run(self._source.token)
            except AuthenticationFailed as failed:
                raise AuthenticationError(str(failed)) from failed.__cause__
        return found


def _way(setting: Callable[[str], Any]) -> Callable[[], token_source.Issued]:
    """Return a function that fetches a new token. Raises ConfigError."""
    callback = setting("oauth_cb")
    if callback is not None:
        return partial(_called, callback)
    try:
        return token_retriever.of(
            setting, {}, time.time, _towards_issuer(setting("https.ca.location"))).get
    except config_errors.ConfigError as failure:
        raise ConfigError(str(failure)) from None


def _towards_issuer(path: str | None) -> ssl.SSLContext | None:
    return outgoing_tls.towards_issuer(
        {"ssl.truststore.location": path, "ssl.truststore.type": "PEM"} if path else {})


def _called(callback) -> token_source.Issued:
    try:
        found = callback("")
    except BaseException as failure:
        raise AuthenticationFailed(
            f"oauth_cb raised {type(failure).__name__}: {failure}") from failure
    token, *more = found if isinstance(found, tuple) and found else (found,)
    wanted = "oauth_cb: expected a token, or (token, end in seconds since 1970), not"
    if not isinstance(token, str) or not token:
        raise AuthenticationFailed(f"{wanted} {type(token).__name__}")
    if not more:
        return token_source.Issued(token, token_source.end_of(token))
    try:
        return token_source.Issued(token, float(more[0]))
    except (TypeError, ValueError):
        raise AuthenticationFailed(f"{wanted} an end of {more[0]!r}") from None
