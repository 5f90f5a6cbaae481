"""Creates assertions: short-lived signed tokens with which a client authenticates to a token issuer
without a shared secret.

Owns: nothing.
Invariants: no key, passphrase or assertion appears in an exception; files are read again for each
  assertion, so that they can be replaced at any time.
Source: RFC 7521, RFC 7523; KIP-1139 (settings) and Kafka's AssertionSupplierFactory (layers).
"""

from __future__ import annotations

import json
import uuid

from pylog.security.errors import AuthenticationFailed
from pylog.security.oauth.token_source import text_of

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FILE = "sasl.oauthbearer.assertion.file"
KEY = "sasl.oauthbearer.assertion.private.key.file"
ISSUER = "sasl.oauthbearer.assertion.claim.iss"
CLAIMS = {"aud": "sasl.oauthbearer.assertion.claim.aud", "iss": ISSUER,
          "sub": "sasl.oauthbearer.assertion.claim.sub"}
MISSING = "assertions need joserfc: pip install 'pylog-broker[oauth]'"


def made(get: Callable[[str], Any], clock: Callable[[], float]) -> str:
    """Return a new assertion, or the one from the configured file. get: returns a setting. clock:
    returns Unix time in seconds. Raises AuthenticationFailed.
    """
    if get(FILE):
        return text_of(get(FILE), "assertion")
    header, claims = _layers(get, int(clock()))
    return _signed(header, claims, get)


def _layers(get: Callable[[str], Any], now_s: int) -> tuple[dict, dict]:
    """Return (header, claims). The template overrides settings; time-dependent claims override
    both.
    """
    algorithm = get("sasl.oauthbearer.assertion.algorithm").upper()
    header, claims = _template(get("sasl.oauthbearer.assertion.template.file"))
    claims = {name: get(setting) for name, setting in CLAIMS.items()
              if get(setting) is not None} | claims
    claims |= {"iat": now_s,
               "exp": now_s + get("sasl.oauthbearer.assertion.claim.exp.seconds"),
               "nbf": now_s - get("sasl.oauthbearer.assertion.claim.nbf.seconds")}
    if get("sasl.oauthbearer.assertion.claim.jti.include"):
        claims["jti"] = str(uuid.uuid4())
    return header | {"alg": algorithm, "typ": "JWT"}, claims


def _template(path: str | None) -> tuple[dict, dict]:
    if not path:
        return {}, {}
    text = text_of(path, "template of assertions")
    try:
        found = json.loads(text)
        header, claims = (found.get(name, {}) for name in ("header", "payload"))
        if isinstance(header, dict) and isinstance(claims, dict):
            return header, claims
    except (ValueError, AttributeError, RecursionError):
        pass
    raise AuthenticationFailed(
        f'no template of assertions in {path}: expected {{"header": {{…}}, "payload": {{…}}}}')


def _signed(header: dict, claims: dict, get: Callable[[str], Any]) -> str:
    try:
        from joserfc import errors, jwk, jws
    except ImportError:
        raise AuthenticationFailed(MISSING) from None

    path, algorithm = get(KEY), header["alg"]
    passphrase = get("sasl.oauthbearer.assertion.private.key.passphrase")
    text, kind = text_of(path, "private key"), jwk.RSAKey if algorithm[0] == "R" else jwk.ECKey
    if not text.startswith("-----"):
        # Java clients configure only the base64 body of the PEM text.
        text = f"-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n"
    try:
        key = kind.import_key(text, password=passphrase or None)
    except (ValueError, TypeError, errors.JoseError):
        # The library's error text may contain parts of the key.
        hint = "or its passphrase is wrong" if passphrase else "or needs a passphrase"
        raise AuthenticationFailed(
            f"the private key in {path} does not fit {algorithm}, {hint}") from None
    try:
        return jws.serialize_compact(
            header, json.dumps(claims), key,
            registry=jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False))
    except (ValueError, TypeError, errors.JoseError) as error:
        raise AuthenticationFailed(
            f"the private key in {path} cannot sign an assertion: {type(error).__name__}") from None
