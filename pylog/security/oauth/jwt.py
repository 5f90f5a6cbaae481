"""Validates bearer tokens, and returns their principal and expiry.

Owns: nothing but the validation rules of one listener.
Invariants: a token is valid only if a currently published key signed it with an asymmetric
  algorithm: `alg: none` and shared secrets are rejected; an unsigned token is valid only if a
  setting allows it; no exception contains a token.
Source: RFC 7519, RFC 8725 (attacks on tokens); KIP-768 and Kafka's BrokerJwtValidator for the
  claims; joserfc for signatures.
"""

from __future__ import annotations

import base64
import json
from collections import namedtuple

from pylog.security.errors import TokenRefused

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog.security.oauth.jwks import Keys

# Asymmetric algorithms only.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
TIME_MAX = 253402300800  # the year 10000

Token = namedtuple("Token", ("name", "expires_ms"))
Token.__doc__ = "The principal of a token, and its expiry in ms since 1970."

Rules = namedtuple("Rules", ("issuer", "audience", "scope", "scope_claim", "name_claim", "skew_s"))
Rules.__doc__ = """Required claims of tokens. issuer: None for any. audience: one of these, empty
for any. scope: all of these."""


class Tokens:
    """Validates tokens. keys: None if unsigned tokens are accepted. now_ms: the wall clock."""

    def __init__(self, rules: Rules, keys: Keys | None, now_ms: Callable[[], int]):
        self._rules = rules
        self._keys = keys
        self._now_ms = now_ms

    def check(self, text: str) -> Token:
        """Validate and parse a token. Raises TokenRefused."""
        claims = _unsigned(text) if self._keys is None else self._signed(text)
        return judged(claims, self._rules, self._now_ms() / 1000)

    def _signed(self, text: str) -> dict[str, Any]:
        """Return the claims of a token if a published key signed it. Raises TokenRefused."""
        from joserfc import jws

        assert self._keys is not None
        header = _decoded(text.partition(".")[0], "header")
        key = self._keys.find(header.get("kid"))
        if key is None:
            raise TokenRefused("no published key matches its kid")
        try:
            content = jws.deserialize_compact(text, key, algorithms=ALGORITHMS)
        except Exception as error:
            # The library can raise anything for malformed input.
            raise TokenRefused(f"its signature is not valid: {type(error).__name__}") from None
        return _claims(content.payload)


def _unsigned(text: str) -> dict[str, Any]:
    """Return the claims of an unsigned token. Raises TokenRefused if it is signed."""
    parts = text.split(".")
    if len(parts) != 3 or parts[2]:
        raise TokenRefused("it is signed, but this listener accepts only unsigned tokens")
    if _decoded(parts[0], "header").get("alg") != "none":
        raise TokenRefused("it names an algorithm but has no signature")
    return _claims(_bytes(parts[1], "claims"))


def _bytes(part: str, what: str) -> bytes:
    try:
        return base64.b64decode(part + "=" * (-len(part) % 4), b"-_", validate=True)
    except ValueError:
        raise TokenRefused(f"its {what} cannot be parsed") from None


def _decoded(part: str, what: str) -> dict[str, Any]:
    return _object(_bytes(part, what), what)


def _claims(data: bytes) -> dict[str, Any]:
    return _object(data, "claims")


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise TokenRefused(f"its {what} cannot be parsed") from None
    if not isinstance(found, dict):
        raise TokenRefused(f"its {what} cannot be parsed")
    return found


def judged(claims: dict[str, Any], rules: Rules, now_s: float) -> Token:
    """Validate the claims at the time now_s. Raises TokenRefused."""
    expires_s = _time(claims, "exp")
    issued_s = _time(claims, "iat")
    if expires_s is None or issued_s is None:
        raise TokenRefused(f"it has no {'exp' if expires_s is None else 'iat'}")
    if now_s - rules.skew_s >= expires_s or issued_s > expires_s:
        raise TokenRefused("it has expired")
    if (_time(claims, "nbf") or 0) > now_s + rules.skew_s:
        raise TokenRefused("it is not valid yet")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenRefused("it is from another issuer")
    if rules.audience and not set(rules.audience) & _texts(claims.get("aud")):
        raise TokenRefused("it is for another audience")
    if not set(rules.scope) <= _words(claims.get(rules.scope_claim)):
        raise TokenRefused("it lacks a scope")
    name = claims.get(rules.name_claim)
    if not isinstance(name, str) or not name.strip():
        raise TokenRefused(f"it has no {rules.name_claim}")
    return Token(name, int(expires_s * 1000))


def _time(claims: dict[str, Any], name: str) -> float | None:
    """Return a claim as Unix time in seconds, None if it is missing. Raises TokenRefused."""
    value = claims.get(name)
    if value is None:
        return None
    # A bool is an int; NaN and infinity are floats.
    if isinstance(value, bool) or not isinstance(value, (int, float)) \
            or not 0 <= value < TIME_MAX:
        raise TokenRefused(f"its {name} is not a time")
    return value


def _texts(value: Any) -> set[str]:
    found = value if isinstance(value, list) else [value]
    return {text for text in found if isinstance(text, str)}


def _words(value: Any) -> set[str]:
    """Return scopes from a list, or from text separated by spaces."""
    return {word for text in _texts(value) for word in text.split()}
