"""Bearer tokens of the client: from a callback, or from an issuer's token endpoint.

Owns: the newest token of one client object.
Called by: client.login.
Invariants: (1) the event loop waits for no callback and no issuer; (2) neither a token nor a secret
  stands in an error.
Source: KIP-768's settings; librdkafka's oauth_cb.
"""

from __future__ import annotations

import asyncio
import time

from pylog.client.errors import AuthenticationError
from pylog.client.settings import Settings
from pylog.security import issued
from pylog.security.errors import AuthenticationFailed

ENDPOINT = "sasl.oauthbearer.token.endpoint.url"


class TokenSource:
    """What the settings of one client say."""

    def __init__(self, settings: Settings):
        self._settings = settings
        # The client pauses by itself before it connects again.
        self._source = issued.Source(self._asked, time.time, 0, 0)

    async def token(self) -> str:
        """A token that counts. Raises AuthenticationError."""
        found = self._source.current
        if found is None:
            # Keeps (1).
            try:
                found = await asyncio.to_thread(self._source.token)
            except AuthenticationFailed as failed:
                raise AuthenticationError(str(failed)) from failed.__cause__
        return found

    def _asked(self) -> issued.Issued:
        value = self._settings.__getitem__
        if value("oauth_cb") is not None:
            return _called(value("oauth_cb"))
        name, secret = (value(f"sasl.oauthbearer.client.credentials.client.{part}")
                        for part in ("id", "secret"))
        return issued.ask(issued.Endpoint(
            value(ENDPOINT), name, secret, value("sasl.oauthbearer.scope")), time.time)


def _called(callback) -> issued.Issued:
    try:
        found = callback("")
    except Exception as failure:
        raise AuthenticationFailed(
            f"oauth_cb raised {type(failure).__name__}: {failure}") from failure
    token, *more = found if isinstance(found, tuple) else (found,)
    if not isinstance(token, str) or not token:
        raise AuthenticationFailed("oauth_cb: expected a token, or (token, end in seconds since "
                                   f"1970), not {type(token).__name__}")
    return issued.Issued(token, float(more[0]) if more else issued.end_of(token))
