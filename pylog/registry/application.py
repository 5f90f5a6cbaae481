"""From an HTTP request to its answer: media types, login, rights, endpoint, errors.

Owns: the stored answers of reads.
Invariants: a stored answer is used only while the store, the ACLs and the user are the same; an
  unexpected error is logged and answered with 500 without its details.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Awaitable
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

from pylog.registry import access, errors, negotiation, routes, subjects
from pylog.registry.access import Logins, User
from pylog.registry.audit import Audit
from pylog.registry.http import Answer, Head, Request, response
from pylog.registry.routes import Call, Endpoints

log = logging.getLogger("pylog.registry")

STORED_MAX, STORED_BYTES_MAX = 20_000, 64 * 1024 * 1024
CONTEXTS = "contexts"
UNKNOWN_PROPERTIES = "confluent-accept-unknown-properties"


class Meaning(NamedTuple):
    """What a header means. type: None if no type of answers is accepted."""

    type: str | None
    extended: bool
    user: User | None


class Application:
    """logins: None if clients need no login."""

    def __init__(self, endpoints: Endpoints, logins: Logins | None, audit: Audit):
        self._endpoints = endpoints
        self._logins = logins
        self._audit = audit
        self._stored: dict[tuple, bytes] = {}
        self._stored_bytes = 0
        self._stamp: tuple[int, int] | None = None

    def __call__(self, request: Request) -> Answer:
        meaning = request.head.memo
        if meaning is None:
            meaning = request.head.memo = self._meaning(request.head)
        if meaning.user is not None:
            return self._answered(request, meaning, meaning.user)
        assert self._logins is not None
        try:
            user = self._logins.user_of(request.head.fields.get("authorization", ""),
                                        request.head.address)
        except errors.RegistryError as error:
            return self._failed(error, meaning)
        if isinstance(user, User):
            return self._answered(request, meaning, user)
        return self._after_login(request, meaning, user)

    def _meaning(self, head: Head) -> Meaning:
        user = User(access.ANONYMOUS, head.address) if self._logins is None else None
        return Meaning(
            negotiation.answer_type(head.fields.get("accept", "")),
            head.fields.get(UNKNOWN_PROPERTIES, "").lower() == "true", user)

    async def _after_login(self, request: Request, meaning: Meaning, login: Awaitable[User]
                           ) -> bytes:
        try:
            user = await login
        except errors.RegistryError as error:
            return self._failed(error, meaning)
        answer = self._answered(request, meaning, user)
        return answer if isinstance(answer, bytes) else await answer

    def _answered(self, request: Request, meaning: Meaning, user: User) -> Answer:
        if request.method != "GET":
            return self._fresh(request, meaning, user)
        stamp = (self._endpoints.registry.store.changes, self._endpoints.access.changes)
        if stamp != self._stamp:
            self._stored.clear()
            self._stamp, self._stored_bytes = stamp, 0
        key = (request.target, meaning.type, meaning.extended, user)
        found = self._stored.get(key)
        if found is not None:
            return found
        answer = self._fresh(request, meaning, user)
        if isinstance(answer, bytes) and answer.startswith(b"HTTP/1.1 200") and (
                len(self._stored) < STORED_MAX
                and self._stored_bytes + len(answer) <= STORED_BYTES_MAX
                and not request.target.startswith(VOLATILE)):
            self._stored[key] = answer
            self._stored_bytes += len(answer)
        return answer

    def _fresh(self, request: Request, meaning: Meaning, user: User) -> Answer:
        """Run the endpoint."""
        try:
            if meaning.type is None:
                raise errors.RegistryError(406, "HTTP 406 Not Acceptable")
            if request.method in ("POST", "PUT") and not negotiation.is_body_type(
                    request.head.fields.get("content-type", "")):
                raise errors.RegistryError(415, "HTTP 415 Unsupported Media Type")
            path, _, query = request.target.partition("?")
            segments = [unquote(one) for one in path.split("/") if one]
            context = subjects.DEFAULT
            if segments[:1] == [CONTEXTS] and len(segments) > 2:
                context = subjects.context_of_path(segments[1])
                segments = segments[2:]
            route = routes.find(request.method, segments)
            call = Call(self._endpoints, user, parse_qs(query, keep_blank_values=True) if query
                        else {}, request.body, context, meaning.extended)
            found = route.handler(call, *route.parameters)
        except errors.RegistryError as error:
            self._record(request, user, error)
            return self._failed(error, meaning)
        except Exception:
            return self._broken(request, meaning)
        if not inspect.isawaitable(found):
            return _success(found, meaning)
        return self._awaited(request, meaning, user, found, route.is_recorded)

    async def _awaited(self, request: Request, meaning: Meaning, user: User,
                       found: Awaitable[Any], is_recorded: bool) -> bytes:
        try:
            value = await found
        except errors.RegistryError as error:
            self._record(request, user, error)
            return self._failed(error, meaning)
        except Exception:
            return self._broken(request, meaning)
        if is_recorded:
            self._audit.write(request.method, request.target, user, True)
        return _success(value, meaning)

    def _record(self, request: Request, user: User, error: errors.RegistryError) -> None:
        if error.code == errors.FORBIDDEN:
            self._audit.write(request.method, request.target, user, False)

    def _failed(self, error: errors.RegistryError, meaning: Meaning) -> bytes:
        code = error.code
        if code == errors.INCOMPATIBLE and meaning.extended:
            code = errors.INCOMPATIBLE_LONG
        return response(error.status, json.dumps(
            {"error_code": code, "message": error.message}, separators=(",", ":"),
            ensure_ascii=False).encode(), meaning.type or negotiation.TYPES[0], error.headers)

    def _broken(self, request: Request, meaning: Meaning) -> bytes:
        log.exception("a request failed unexpectedly",
                      extra={"method": request.method, "target": request.target[:200]})
        return self._failed(errors.RegistryError(errors.STORE_FAILED, "Internal server error"),
                            meaning)


# Answers that depend on more than the store.
VOLATILE = ("/_health", "/master_available")


def _success(value: Any, meaning: Meaning) -> bytes:
    if value is None:
        return response(204, b"")
    body = value if isinstance(value, routes.Raw) else json.dumps(
        value, separators=(",", ":"), ensure_ascii=False)
    return response(200, body.encode(), meaning.type or negotiation.TYPES[0])
