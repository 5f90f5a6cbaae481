"""The server side of SASL PLAIN: user name and password in one message.

Owns: nothing.
Invariants: an unknown user, a wrong password and an empty password get the same response after the
  same time.
Source: RFC 4616, KIP-43.
"""

from __future__ import annotations

import hashlib
import hmac

from pylog.security.errors import AuthenticationFailed

PARTS = 3
REFUSED = "Authentication failed: Invalid username or password"
USER_PREFIX = "user_"


def passwords(options: dict[str, str]) -> dict[str, str]:
    """Return user name -> password from a login module's options."""
    return {name.removeprefix(USER_PREFIX): password for name, password in options.items()
            if name.startswith(USER_PREFIX)}


class Exchange:
    """One login. known: user name -> password. Sets `name` when the login is complete."""

    def __init__(self, known: dict[str, str]):
        self._known = known
        self.name = ""
        self.is_complete = False

    def step(self, token: bytes) -> bytes:
        """Return the response to the client's message. Raises AuthenticationFailed."""
        parts = token.split(b"\0")
        if len(parts) != PARTS:
            raise AuthenticationFailed(
                f"Invalid SASL/PLAIN response: expected {PARTS} tokens, got {len(parts)}")
        try:
            acts_for, name, password = [part.decode() for part in parts]
        except UnicodeDecodeError:
            raise AuthenticationFailed(REFUSED) from None
        known = self._known.get(name)
        is_right = hmac.compare_digest(_digest(password), _digest(known or ""))
        # The digests are compared first, even for unknown users, so that all failures take the same
        # time.
        if not is_right or not known or not name:
            raise AuthenticationFailed(REFUSED)
        if acts_for not in ("", name):
            # CVE-2017-12610: a user must not log in as another.
            raise AuthenticationFailed("Authentication failed: Client requested an authorization "
                                       "id that is different from username")
        self.name = name
        self.is_complete = True
        return b""


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()
