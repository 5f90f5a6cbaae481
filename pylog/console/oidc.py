"""Login by OpenID Connect: authorization code with PKCE; the access token goes to the cluster.

Owns: the logins that have begun and not ended; the issuer's document.
Invariants: a login ends only in the browser that began it, once, and within PENDING_S; an id token
  is used only if the issuer signed it for this console and for this login; no message contains a
  token or a secret; addresses come from the settings and from the issuer's document only.
Source: OpenID Connect Core 1.0; RFC 7636 (PKCE); RFC 9700 (security of OAuth).
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections import OrderedDict
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, NamedTuple

from pylog.client.errors import AuthenticationError
from pylog.config.console_access import CALLBACK
from pylog.security.errors import AuthenticationFailed

TIMEOUT_S = 10.0
BYTES_MAX = 1 << 20
PENDING_S, PENDING_MAX = 600.0, 1000
DOCUMENT_S = 3600.0
EARLY_S = 30.0  # A token is refreshed this long before it expires.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512",
              "EdDSA"]


class Pending(NamedTuple):
    """A login that has begun. next: the page that the user wanted."""

    nonce: str
    verifier: str
    cluster: str
    next: str
    begun_s: float


class Login(NamedTuple):
    """A login that succeeded."""

    principal: str
    tokens: Tokens
    cluster: str
    next: str


class OidcError(AuthenticationError):
    """The login failed."""


class Provider:
    """The issuer of the settings. seconds: Unix time. Methods block: call them on a thread."""

    def __init__(self, settings: Any, seconds: Callable[[], float]):
        self._issuer = str(settings["console.oidc.issuer"]).rstrip("/")
        self.client_id = settings["console.oidc.client.id"]
        secret = settings["console.oidc.client.secret"]
        self._secret = str(secret) if secret else ""
        self._scopes = settings["console.oidc.scopes"]
        self._claim = settings["console.oidc.principal.claim"]
        self._callback = settings["console.url"].rstrip("/") + CALLBACK
        self._seconds = seconds
        self._lock = threading.Lock()
        self._pending: OrderedDict[str, Pending] = OrderedDict()
        self._document: dict[str, Any] = {}
        self._document_s = 0.0

    def begin(self, cluster: str, next_: str) -> tuple[str, str]:
        """Return (URL of the issuer, state of the login). Raises OidcError."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        endpoint = self._endpoint("authorization_endpoint")
        with self._lock:
            self._pending[state] = Pending(nonce, verifier, cluster, next_, self._seconds())
            while len(self._pending) > PENDING_MAX:
                self._pending.popitem(last=False)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        query = urllib.parse.urlencode({
            "response_type": "code", "client_id": self.client_id, "redirect_uri": self._callback,
            "scope": self._scopes, "state": state, "nonce": nonce,
            "code_challenge": challenge.decode().rstrip("="), "code_challenge_method": "S256"})
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}", state

    def finish(self, state: str, code: str) -> Login:
        """Exchange the code for tokens. Raises OidcError."""
        with self._lock:
            pending = self._pending.pop(state, None)
        if pending is None or self._seconds() - pending.begun_s > PENDING_S:
            raise OidcError("the login has expired or has ended already")
        answer = self._tokens({"grant_type": "authorization_code", "code": code,
                               "redirect_uri": self._callback,
                               "code_verifier": pending.verifier})
        claims = self._claims(str(answer.get("id_token", "")), pending.nonce)
        principal: Any = claims.get(self._claim)
        if not isinstance(principal, str) or not principal:
            raise OidcError(f"the id token has no text in the claim {self._claim}")
        return Login(principal, Tokens(self, answer, self._seconds), pending.cluster, pending.next)

    def refreshed(self, refresh_token: str) -> dict[str, Any]:
        """Return new tokens. Raises OidcError."""
        return self._tokens({"grant_type": "refresh_token", "refresh_token": refresh_token})

    def _claims(self, token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an id token. Raises OidcError."""
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        keys = self._read(self._endpoint("jwks_uri"))
        try:
            claims = jwt.decode(token, KeySet.import_key_set(keys),  # type: ignore[arg-type]
                                algorithms=ALGORITHMS).claims
        except (JoseError, ValueError, KeyError, TypeError) as failure:
            raise OidcError(f"the id token is not valid: {type(failure).__name__}") from None
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        expires_s = claims.get("exp")
        if str(claims.get("iss", "")).rstrip("/") != self._issuer:
            raise OidcError("the id token is of another issuer")
        if self.client_id not in audiences or len(audiences) > 1 \
                and claims.get("azp") != self.client_id:
            raise OidcError("the id token is for another client")
        if not isinstance(expires_s, int | float) or expires_s < self._seconds():
            raise OidcError("the id token has expired")
        if not secrets.compare_digest(str(claims.get("nonce", "")), nonce):
            raise OidcError("the id token belongs to another login")
        return claims

    def _tokens(self, form: dict[str, str]) -> dict[str, Any]:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if self._secret:
            user = urllib.parse.quote(self.client_id, safe="")
            password = urllib.parse.quote(self._secret, safe="")
            headers["Authorization"] = "Basic " + base64.b64encode(
                f"{user}:{password}".encode()).decode()
        else:
            form = {**form, "client_id": self.client_id}
        answer = self._read(self._endpoint("token_endpoint"),
                            urllib.parse.urlencode(form).encode(), headers)
        if not isinstance(answer.get("access_token"), str):
            raise OidcError("the issuer's answer has no access token")
        return answer

    def _endpoint(self, name: str) -> str:
        """Return an address of the issuer's document."""
        now_s = self._seconds()
        if not self._document or now_s - self._document_s > DOCUMENT_S:
            found = self._read(f"{self._issuer}/.well-known/openid-configuration")
            if str(found.get("issuer", "")).rstrip("/") != self._issuer:
                raise OidcError(f"{self._issuer}: its document is of another issuer")
            self._document, self._document_s = found, now_s
        url = self._document.get(name)
        if not isinstance(url, str) or not url.startswith(("https://", "http://")):
            raise OidcError(f"{self._issuer}: its document has no {name}")
        if self._issuer.startswith("https://") and not url.startswith("https://"):
            raise OidcError(f"{self._issuer}: {name} is not https")
        return url

    def _read(self, url: str, body: bytes | None = None, headers: dict[str, str] | None = None
              ) -> dict[str, Any]:
        """Return a JSON object. Raises OidcError, which names the address without its query."""
        shown = url.partition("?")[0]
        request = urllib.request.Request(url, body, {"Accept": "application/json",
                                                     **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                found = json.loads(response.read(BYTES_MAX + 1)[:BYTES_MAX])
        except urllib.error.HTTPError as failure:
            failure.close()
            raise OidcError(f"{shown} answered with status {failure.code}") from None
        except (OSError, HTTPException, ValueError) as failure:
            raise OidcError(f"{shown}: {type(failure).__name__}") from None
        if not isinstance(found, dict):
            raise OidcError(f"{shown} did not answer with a JSON object")
        return found


class Tokens:
    """The access token of one login, refreshed before it expires if the issuer allows it."""

    def __init__(self, provider: Provider, answer: dict[str, Any], seconds: Callable[[], float]):
        self._provider = provider
        self._seconds = seconds
        self._lock = threading.Lock()
        self._refresh = ""
        self._take(answer)

    def __repr__(self) -> str:
        return "Tokens()"

    def _take(self, answer: dict[str, Any]) -> None:
        self._access: str = answer["access_token"]
        self._refresh = str(answer.get("refresh_token") or self._refresh)
        lifetime_s = answer.get("expires_in")
        self._expires_s = self._seconds() + (
            float(lifetime_s) if isinstance(lifetime_s, int | float) else 300.0)

    def __call__(self, config: str) -> tuple[str, float]:
        """Return (token, its end in seconds since 1970), as `oauth_cb` does. Raises
        AuthenticationFailed.
        """
        with self._lock:
            if self._seconds() > self._expires_s - EARLY_S:
                if self._refresh:
                    self._take(self._provider.refreshed(self._refresh))
                elif self._seconds() > self._expires_s:
                    raise AuthenticationFailed("the login has expired: log in again")
            return self._access, self._expires_s
