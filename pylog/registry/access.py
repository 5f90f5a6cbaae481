"""Who may do what: logins with the broker's users, rights by Kafka's ACLs.

Owns: the results of recent logins, and the ACLs as they were read last.
Invariants: a password is stored only as a keyed hash; a right that the ACLs do not give is denied;
  a subject that a user may not describe is answered like one that does not exist.
Source: Kafka's StandardAuthorizer; subjects are named after topics as serializers do.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pylog import supervisor
from pylog.client.admin import acl_decisions
from pylog.client.admin.admin import Admin
from pylog.client.admin.types import AclBinding
from pylog.client.errors import AuthenticationError, KafkaError
from pylog.registry import errors, subjects
from pylog.security import registry_access

log = logging.getLogger("pylog.registry")

ANONYMOUS = "ANONYMOUS"
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
VALID_S, INVALID_S = 60.0, 10.0
RESULTS_MAX = 10_000
LOGINS_MAX = 8
REQUEST_MS, CALL_MS = 10_000, 15_000
ACL_REFRESH_S = 5.0
SUFFIXES = ("-key", "-value")
READ, WRITE, DELETE, DESCRIBE = "READ", "WRITE", "DELETE", "DESCRIBE"
DESCRIBE_CONFIGS, ALTER_CONFIGS = "DESCRIBE_CONFIGS", "ALTER_CONFIGS"
CHALLENGE = (("WWW-Authenticate", 'Basic realm="schema registry"'),)


class User(NamedTuple):
    """name: of the broker's user. address: of the client."""

    name: str
    address: str


class Logins:
    """Checks Basic credentials by a login to the cluster.

    settings: of the client, without credentials. seconds: a monotonic clock.
    """

    def __init__(self, settings: Mapping[str, Any], seconds: Callable[[], float]):
        self._settings = {**settings, "client.id": "pylog-registry-login",
                          "request.timeout.ms": REQUEST_MS, "default.api.timeout.ms": CALL_MS}
        self._seconds = seconds
        self._secret = secrets.token_bytes(32)
        self._results: OrderedDict[bytes, tuple[bool, float]] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[bool]] = {}
        self._limit = asyncio.Semaphore(LOGINS_MAX)

    def user_of(self, authorization: str, address: str) -> User | Awaitable[User]:
        """Return the user of a header. Raises RegistryError."""
        name, password = _credentials(authorization)
        key = hmac.digest(self._secret, f"{name}\0{password}".encode(), hashlib.sha256)
        result = self._results.get(key)
        if result is not None and self._seconds() < result[1]:
            if not result[0]:
                raise _unauthenticated()
            return User(name, address)
        return self._check(key, name, password, address)

    async def _check(self, key: bytes, name: str, password: str, address: str) -> User:
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.get_running_loop().create_task(
                self._log_in(name, password))
            task.add_done_callback(lambda _: self._running.pop(key, None))
        try:
            is_valid = await asyncio.shield(task)
        except KafkaError as error:
            raise errors.RegistryError(
                errors.STORE_FAILED, f"Cannot check the login at the cluster: {error}") from None
        self._results[key] = is_valid, self._seconds() + (VALID_S if is_valid else INVALID_S)
        while len(self._results) > RESULTS_MAX:
            self._results.popitem(last=False)
        if not is_valid:
            raise _unauthenticated()
        return User(name, address)

    async def _log_in(self, name: str, password: str) -> bool:
        """Return True if the cluster accepts the credentials. Raises KafkaError if it does not
        answer.
        """
        async with self._limit:
            for mechanism in MECHANISMS:
                admin = Admin.from_settings({
                    **self._settings, "sasl.mechanism": mechanism, "sasl.username": name,
                    "sasl.password": password})
                try:
                    await admin.start()
                    await admin.cluster.refresh()
                    return True
                except AuthenticationError:
                    continue
                finally:
                    await admin.close()
            return False


def _credentials(authorization: str) -> tuple[str, str]:
    """Return (name, password) of a header. Raises RegistryError."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != registry_access.BASIC:
        raise _unauthenticated()
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise _unauthenticated() from None
    name, colon, password = text.partition(":")
    if not colon or not name:
        raise _unauthenticated()
    return name, password


def _unauthenticated() -> errors.RegistryError:
    return errors.RegistryError(errors.UNAUTHENTICATED, "Unauthorized", CHALLENGE)


class Rights:
    """The ACLs of the cluster. settings: those of the broker, for super users. changes: grows when
    the ACLs differ from those before.
    """

    def __init__(self, settings: Any, admin: Admin):
        self._settings = settings
        self._admin = admin
        self._rules: list[AclBinding] | None = None
        self._judge: Any = None
        self.changes = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the ACLs, and read them again at intervals. Raises KafkaError."""
        await self._refresh()
        self._task = asyncio.get_running_loop().create_task(
            supervisor.restarting("ACLs of the schema registry", self._follow))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _refresh(self) -> None:
        rules = sorted(await self._admin.describe_acls())
        if rules != self._rules:
            self._rules = rules
            self._judge = acl_decisions.judge(self._settings, rules)
            self.changes += 1

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(ACL_REFRESH_S)
            try:
                await self._refresh()
            except KafkaError as error:
                log.warning("cannot read the ACLs; the last ones stay in effect",
                            extra={"error": str(error)})

    def permits(self, user: User, operation: str, kind: str, name: str) -> bool:
        """Return True if an ACL, or the super users' list, allows the operation."""
        return acl_decisions.permits(self._judge, f"User:{user.name}", user.address, operation,
                                     kind, name)


class Access:
    """Decides for each request. rights: None allows everything."""

    def __init__(self, rights: Rights | None):
        self._rights = rights

    @property
    def changes(self) -> int:
        """Return a number that grows when decisions may differ."""
        return 0 if self._rights is None else self._rights.changes

    def may(self, user: User, operation: str, subject: str) -> bool:
        """Return True if the user may do the operation on a subject. Implied operations count."""
        return self._rights is None or self._rights.permits(
            user, operation, "TOPIC", topic_of(subject))

    def sees(self, user: User, subject: str) -> bool:
        return self.may(user, DESCRIBE, subject)

    def sees_context(self, user: User, context: str, names: Iterable[str]) -> bool:
        """Return True if the user sees one of the context's subjects. names: all subjects."""
        return self._rights is None or any(
            self.sees(user, name) for name in names if subjects.parse(name).context == context)

    def check(self, user: User, operation: str, subject: str) -> None:
        """Raise RegistryError unless the user may do the operation on a subject."""
        if self.may(user, operation, subject):
            return
        if not self.sees(user, subject):
            raise errors.subject_not_found(subject)
        raise forbidden(f"{operation} on the topic {topic_of(subject)}")

    def check_cluster(self, user: User, operation: str) -> None:
        """Raise RegistryError unless the user may do the operation on the cluster."""
        if self._rights is not None and not self._rights.permits(
                user, operation, "CLUSTER", acl_decisions.CLUSTER_NAME):
            raise forbidden(f"{operation} on the cluster")


def forbidden(what: str) -> errors.RegistryError:
    return errors.RegistryError(errors.FORBIDDEN, f"Forbidden. This needs {what}")


def topic_of(subject: str) -> str:
    """Return the topic whose ACLs decide about a subject."""
    name = subjects.parse(subject).name or subject
    for suffix in SUFFIXES:
        if name.endswith(suffix) and len(name) > len(suffix):
            return name.removesuffix(suffix)
    return name
