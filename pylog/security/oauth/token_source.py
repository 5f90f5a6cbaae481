"""Obtains OAuth tokens for our own connections: from an issuer's endpoint, from a file that another
program refreshes, or unsigned.

Owns: the newest token of one account.
Invariants: a token is reused until REUSED of its lifetime has passed, and until it expires if no
  new one is available; no exception contains a token or a secret; after a failure the issuer is
  contacted again only after a backoff, and only by one thread at a time; a response has a maximum
  size.
Source: RFC 6749 (client credentials), RFC 7523 (assertions); KIP-768, KIP-1139 (settings); Kafka's
  OAuthBearerUnsecuredLoginCallbackHandler (options of unsigned tokens).
"""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections import namedtuple
from http.client import HTTPException
from math import inf

from pylog.security.errors import AuthenticationFailed

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable

REUSED = 0.8
TIMEOUT_S = 10.0
BYTES_MAX = 1 << 20
UNSECURED = "unsecuredLogin"  # Prefix of the options of unsigned tokens.
UNSECURED_S = 3600

Issued = namedtuple("Issued", ("token", "expires_s"))
Issued.__doc__ = "A token, and its expiry in seconds since 1970, 0 if unknown."

ASSERTED = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
GRANTED = "urn:ietf:params:oauth:grant-type:jwt-bearer"

Endpoint = namedtuple(
    "Endpoint", ("url", "client_id", "secret", "scope", "tls", "proof", "is_grant"),
    defaults=(None, None, None, False))
Endpoint.__doc__ = """A token endpoint. tls: for https, None for the machine's trusted CAs. proof:
creates an assertion instead of the secret. is_grant: the assertion names the token's subject."""


class Source:
    """The tokens of one account. get: returns a new token; may block; raises AuthenticationFailed.
    clock: returns Unix time in seconds. pause_s, pause_s_max: first and longest backoff.
    """

    def __init__(self, get: Callable[[], Issued], clock: Callable[[], float],
                 pause_s: float = 0.1, pause_s_max: float = 10.0):
        self._get, self._clock = get, clock
        self._pauses = pause_s, pause_s_max
        self._pause_s = pause_s
        self._refreshing = threading.Lock()
        self._issued = Issued("", 0.0)
        self._until_s = 0.0
        self._failed: tuple[float, str] | None = None  # (end of the backoff, reason)

    @property
    def current(self) -> str | None:
        """Return the token if it can be reused, otherwise None."""
        return self._issued.token if self._clock() < self._until_s else None

    def token(self) -> str:
        """Return a valid token. Blocks. Raises AuthenticationFailed."""
        if not self._refreshing.acquire(timeout=TIMEOUT_S):
            raise AuthenticationFailed("the token endpoint does not respond")
        try:
            # Another thread may have fetched a token while this one waited for the lock.
            return self.current or self._new()
        except AuthenticationFailed:
            if self._clock() < self._issued.expires_s:
                return self._issued.token  # Reuse the old token until it expires.
            raise
        finally:
            self._refreshing.release()

    def _new(self) -> str:
        now_s = self._clock()
        if self._failed is not None and now_s < self._failed[0]:
            raise AuthenticationFailed(self._failed[1])
        try:
            issued = self._get()
        except AuthenticationFailed as failed:
            # Start or extend the backoff.
            self._failed = now_s + self._pause_s, str(failed)
            self._pause_s = min(2 * self._pause_s, self._pauses[1])
            raise
        self._failed, self._pause_s = None, self._pauses[0]
        self._issued = issued
        self._until_s = now_s + REUSED * (issued.expires_s - now_s)
        return issued.token


def request_token(endpoint: Endpoint, clock: Callable[[], float]) -> Issued:
    """Request a new token. clock: as in Source. Blocks. Raises AuthenticationFailed."""
    requested_s = clock()
    form, headers = _token_request(endpoint)
    request = urllib.request.Request(
        endpoint.url, urllib.parse.urlencode(form).encode(),
        {"Accept": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=endpoint.tls) as response:
            found = json.loads(response.read(BYTES_MAX))  # A response has a maximum size.
        token, lasts_s = found["access_token"], found.get("expires_in")
        # A token's own expiry is in whole seconds, so it can be up to a second earlier than the
        # issuer's.
        expiries = [requested_s + float(lasts_s)] if lasts_s else []
        expires_s = min([*expiries, end_of(token) or inf])
    except urllib.error.HTTPError as failure:
        raise AuthenticationFailed(
            f"{endpoint.url} returned no token: {failure.code} {_reason(failure)}") from None
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError,
            RecursionError) as failure:
        raise AuthenticationFailed(
            f"{endpoint.url} returned no token: {type(failure).__name__}: {failure}") from None
    return Issued(token, expires_s if expires_s < inf else 0.0)


def _token_request(endpoint: Endpoint) -> tuple[dict[str, str], dict[str, str]]:
    """Return (form, headers) of a request. Raises AuthenticationFailed."""
    scope = {"scope": endpoint.scope} if endpoint.scope else {}
    if endpoint.is_grant:
        return {"grant_type": GRANTED, "assertion": endpoint.proof(), **scope}, {}
    form = {"grant_type": "client_credentials", **scope}
    if endpoint.proof is not None:
        form |= {"client_assertion_type": ASSERTED, "client_assertion": endpoint.proof()}
        if endpoint.client_id:
            form["client_id"] = endpoint.client_id
        return form, {}
    account = f"{endpoint.client_id}:{endpoint.secret}".encode()
    return form, {"Authorization": "Basic " + base64.b64encode(account).decode()}


def _reason(failure: urllib.error.HTTPError) -> str:
    """Return the issuer's reason: `error` and `error_description` (RFC 6749)."""
    try:
        found = json.loads(failure.read(BYTES_MAX))
        return " ".join(str(found[name]) for name in ("error", "error_description")
                        if name in found)
    except (OSError, HTTPException, ValueError, TypeError, RecursionError):
        return str(failure.reason)


def read(path: str) -> Issued:
    """Return the token in a file. Read for each login, so that the file can be replaced at any
    time. Raises AuthenticationFailed.
    """
    return Issued(text_of(path, "token", "ascii"), 0.0)


def text_of(path: str, what: str, encoding: str = "utf-8") -> str:
    """Return the content of a file. Raises AuthenticationFailed if the file is empty or not
    readable. The error contains nothing of the content.
    """
    try:
        with open(path, encoding=encoding) as file:
            found = file.read(BYTES_MAX).strip()
    except (OSError, ValueError) as failure:
        raise AuthenticationFailed(f"no {what} in {path}: {type(failure).__name__}") from None
    if not found:
        raise AuthenticationFailed(f"no {what} in {path}: it is empty")
    return found


def end_of(token: str) -> float:
    """Return the expiry in a token as Unix time in seconds, 0 if it has none."""
    try:
        part = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["exp"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return 0.0


def unsigned(options: dict[str, str], clock: Callable[[], float]) -> Issued:
    """Return an unsigned token from the login module's options (`unsecuredLoginStringClaim_sub` …);
    for tests. clock: as in Source. Raises AuthenticationFailed.
    """
    now_s = clock()
    try:
        lasts_s = int(options.get(f"{UNSECURED}LifetimeSeconds", UNSECURED_S))
        claims = {"iat": now_s, "exp": now_s + lasts_s, **_claims(options)}
    except ValueError as error:
        raise AuthenticationFailed(f"{UNSECURED}…: {error}") from None
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
             for part in ({"alg": "none"}, claims)]
    return Issued(".".join([*parts, ""]), claims["exp"])


def _claims(options: dict[str, str]) -> dict:
    found: dict = {}
    for kind, made in (("String", str), ("Number", float), ("List", _list)):
        prefix = f"{UNSECURED}{kind}Claim_"
        found |= {name.removeprefix(prefix): made(value) for name, value in options.items()
                  if name.startswith(prefix)}
    return found


def _list(text: str) -> list[str]:
    """Split a list as Kafka does: its first character is the separator."""
    return text[1:].split(text[0]) if text else []
