"""Sessions of the console: cookies, limits, CSRF tokens, and login throttling.

Owns: the sessions, which hold the connections of their users; the counters of failed logins.
Invariants: a session id and its CSRF token are random and independent; a login gets a new id; an
  expired or ended session closes its connections; the numbers of sessions, per user and in total,
  and of counters are bounded.
Source: OWASP Session Management Cheat Sheet; RFC 6265bis (the __Host- prefix).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from pylog.console.clusters import ClusterSession

COOKIE, LOGIN_COOKIE, OIDC_COOKIE = "pylog", "pylog-login", "pylog-oidc"
OIDC_S = 600
ID_BYTES = 32
SESSIONS_MAX, SESSIONS_PER_USER_MAX = 1000, 20
# Without a login: sessions whose cookie has not come back, for example those of scripts.
SESSIONS_WITHOUT_COOKIE_MAX = 20
FAILURES_MAX, FAILURE_WINDOW_S = 5, 60.0
COUNTERS_MAX = 10_000


class Session:
    """One login. clusters: by name. hash: names the session in audit lines without revealing it."""

    def __init__(self, id_: str, principal: str, address: str, now_s: float):
        self.id = id_
        self.principal = principal
        self.address = address
        self.csrf = secrets.token_urlsafe(ID_BYTES)
        self.hash = hashlib.sha256(id_.encode()).hexdigest()[:16]
        self.clusters: dict[str, ClusterSession] = {}
        self.opening = asyncio.Lock()
        self.created_s = self.used_s = now_s
        self.streams = 0
        self.tokens: Callable[[str], tuple[str, float]] | None = None  # Of a login by OIDC.
        self.is_used = True  # Its browser has sent the cookie, or it belongs to a login.

    def __repr__(self) -> str:
        return f"Session({self.hash!r}, {self.principal!r})"

    async def close(self) -> None:
        """Close the connections of all clusters."""
        clusters, self.clusters = list(self.clusters.values()), {}
        await asyncio.gather(*[one.close() for one in clusters], return_exceptions=True)


class Sessions:
    """All sessions. idle_s, absolute_s: after these, a session ends. seconds: a monotonic clock."""

    def __init__(self, idle_s: float, absolute_s: float, is_secure: bool,
                 seconds: Callable[[], float]):
        self._idle_s = idle_s
        self._absolute_s = absolute_s
        self._seconds = seconds
        self._is_secure = is_secure
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # Least recently used first.

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def cookie(self) -> str:
        """Return the cookie's name. Browsers accept the __Host- prefix only with TLS."""
        return f"__Host-{COOKIE}" if self._is_secure else COOKIE

    def find(self, request: Request) -> Session | None:
        """Return the request's session unless it has expired, and count it as used."""
        session = self._sessions.get(request.cookies.get(self.cookie, ""))
        if session is None or self._has_expired(session):
            return None
        session.used_s = self._seconds()
        session.is_used = True
        self._sessions.move_to_end(session.id)
        return session

    def _has_expired(self, session: Session) -> bool:
        now_s = self._seconds()
        return now_s - session.created_s > self._absolute_s or (
            now_s - session.used_s > self._idle_s and not session.streams)

    async def create(self, principal: str, address: str) -> Session:
        """Create a session. Ends the user's, or all users', least recently used one at a limit."""
        own = [one for one in self._sessions.values() if one.principal == principal]
        if len(own) >= SESSIONS_PER_USER_MAX:
            await self.end(own[0])
        elif len(self._sessions) >= SESSIONS_MAX:
            await self.end(next(iter(self._sessions.values())))
        return self._add(principal, address)

    async def create_without_login(self, principal: str, address: str) -> Session:
        """Create a session that counts as used once its cookie comes back. A client that keeps no
        cookies ends only sessions of such clients.
        """
        unused = [one for one in self._sessions.values() if not one.is_used and not one.streams]
        if len(unused) >= SESSIONS_WITHOUT_COOKIE_MAX:
            await self.end(unused[0])
        elif len(self._sessions) >= SESSIONS_MAX:
            await self.end((unused or list(self._sessions.values()))[0])
        session = self._add(principal, address)
        session.is_used = False
        return session

    def _add(self, principal: str, address: str) -> Session:
        session = Session(secrets.token_urlsafe(ID_BYTES), principal, address, self._seconds())
        self._sessions[session.id] = session
        return session

    async def end(self, session: Session) -> None:
        """Forget a session and close its connections."""
        self._sessions.pop(session.id, None)
        await session.close()

    async def end_expired(self) -> None:
        """End every session that has expired."""
        for session in [one for one in self._sessions.values() if self._has_expired(one)]:
            await self.end(session)

    async def close(self) -> None:
        for session in list(self._sessions.values()):
            await self.end(session)

    def set_cookie(self, response: Response, session: Session) -> None:
        response.set_cookie(self.cookie, session.id, path="/", secure=self._is_secure,
                            httponly=True, samesite="strict")

    def delete_cookie(self, response: Response) -> None:
        response.delete_cookie(self.cookie, path="/", secure=self._is_secure, httponly=True,
                               samesite="strict")

    def login_token(self, request: Request, response: Response) -> None:
        """Set the cookie that a login form's token must equal."""
        response.set_cookie(LOGIN_COOKIE, request.state.login_token, path="/login",
                            secure=self._is_secure, httponly=True, samesite="strict")

    def begin_oidc(self, response: Response, state: str) -> None:
        """Bind a login by OIDC to this browser. Lax: the issuer's page leads back here."""
        response.set_cookie(OIDC_COOKIE, state, max_age=OIDC_S, path="/oidc", httponly=True,
                            secure=self._is_secure, samesite="lax")

    def end_oidc(self, response: Response) -> None:
        response.delete_cookie(OIDC_COOKIE, path="/oidc", httponly=True, secure=self._is_secure,
                               samesite="lax")


def same(left: str, right: str) -> bool:
    """Compare secrets in constant time. Empty ones never match."""
    return bool(left) and hmac.compare_digest(left.encode(), right.encode())


def new_token() -> str:
    return secrets.token_urlsafe(ID_BYTES)


class Throttle:
    """Limits failed logins: FAILURES_MAX in FAILURE_WINDOW_S for each address and each user.

    An attempt counts as failed from its begin, so that simultaneous ones cannot exceed the limit.
    """

    def __init__(self, seconds: Callable[[], float]):
        self._seconds = seconds
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, *names: str) -> float:
        """Return the time until the next attempt is allowed for all of these names; 0: now."""
        now_s = self._seconds()
        waits = [0.0]
        for name in names:
            failures = self._failures.get(name, ())
            recent = [at for at in failures if now_s - at < FAILURE_WINDOW_S]
            if len(recent) >= FAILURES_MAX:
                waits.append(recent[-FAILURES_MAX] + FAILURE_WINDOW_S - now_s)
        return max(waits)

    def begin(self, *names: str) -> None:
        """Count a login that has not succeeded yet."""
        for name in names:
            self._failures.setdefault(name, deque(maxlen=FAILURES_MAX)).append(self._seconds())
            self._failures.move_to_end(name)
            while len(self._failures) > COUNTERS_MAX:
                self._failures.popitem(last=False)

    def forgive(self, *names: str) -> None:
        """Count the last login no more: it succeeded, or the cluster did not answer."""
        for name in names:
            failures = self._failures.get(name)
            if failures:
                failures.pop()
