"""The server side of SASL OAUTHBEARER: the client sends a token in one message.

Owns: nothing.
Invariants: a response never contains a part of a rejected token; after a rejection, the client's
  next message ends the login.
Source: RFC 7628, KIP-255; responses as in Kafka 4.4's OAuthBearerSaslServer.
"""

from __future__ import annotations

import re

from pylog.security.errors import AuthenticationFailed, TokenRefused

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog.security.oauth.jwt import Token

TOKEN_BYTES_MAX = 64 << 10
REFUSED = '{"status":"invalid_token"}'
_FIRST = re.compile(
    r"n,(?:a=(?P<authzid>(?:[\x02-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,"
    "\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01")
_BEARER = re.compile(r"bearer +(?P<token>[-\w.~+/]+=*)", re.ASCII | re.IGNORECASE)


class Exchange:
    """One login. check: returns the Token for a text, or raises TokenRefused. Sets `name` and
    `expires_ms` from the token when the login is complete.
    """

    def __init__(self, check: Callable[[str], Token]):
        self._check = check
        self.name = ""
        self.expires_ms = 0
        self.is_complete = False
        self._refused: str | None = None  # Reason of the rejection.

    def step(self, token: bytes) -> bytes:
        """Return the response to the client's message. Raises AuthenticationFailed."""
        if self._refused is not None:
            # Any message ends the login now (RFC 7628, 3.2.3).
            raise AuthenticationFailed(REFUSED, self._refused)
        acts_for, text = _parts(token)
        try:
            found = self._check(text)
        except TokenRefused as refused:
            self._refused = str(refused)
            return REFUSED.encode()
        if acts_for not in ("", found.name):
            raise AuthenticationFailed(
                f"Authentication failed: Client requested an authorization id ({acts_for}) that "
                f"is different from the token's principal name ({found.name})")
        self.name, self.expires_ms = found.name, found.expires_ms
        self.is_complete = True
        return b""


def _parts(message: bytes) -> tuple[str, str]:
    """Return (authorization id or "", token). Raises AuthenticationFailed."""
    if len(message) > TOKEN_BYTES_MAX:
        raise AuthenticationFailed()
    found = _FIRST.fullmatch(message.decode("latin-1"))
    if found is None:
        raise AuthenticationFailed()
    pairs = dict([pair.split("=", 1) for pair in found["pairs"].split("\x01") if pair])
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None:
        raise AuthenticationFailed()
    acts_for = (found["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
    return acts_for, bearer["token"]
