"""Clusters of the console, and one user's connections to one of them.

Owns: the connections of each ClusterSession.
Invariants: credentials stay in memory and never reach a log line or a page; a ClusterSession
  belongs to one session; an operation that the cluster denied is not requested again in the
  session.
Source: Kafka's SaslHandshake (mechanisms); KIP-43.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from pylog.client.admin.admin import Admin
from pylog.client.admin.types import ResourceType
from pylog.client.errors import AuthenticationError, AuthorizationError, KafkaError
from pylog.protocol import messages

ANONYMOUS = "anonymous"
SASL_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
REQUEST_MS_MAX = 15_000
CALL_MS_MAX = 20_000
DENIED_MAX = 1000
# Words of pages in the place of a name: /topics/new. Links to these pages spell them out.
PAGE_WORDS = ("new", "check", "register")
# A setting that only brokerd has.
BROKERD_SETTING = "records.validate.enable"


@dataclass(frozen=True)
class ClusterConfig:
    """A cluster and how to reach it. settings: of pylog.client, by Kafka's names."""

    name: str
    settings: Mapping[str, Any] = field(repr=False)

    @property
    def needs_login(self) -> bool:
        """Return True if the cluster requires SASL and the settings do not log in."""
        protocol = str(self.settings.get("security.protocol", ""))
        return protocol.startswith("SASL") and self.settings.get("sasl.mechanism") not in (
            "OAUTHBEARER", "GSSAPI") and not self.settings.get("sasl.username")


class Part(NamedTuple):
    """The result of a part of a page. value: None unless it succeeded. denied: the user may not
    read it, so the page omits it. error: why it failed otherwise, else "". read_ms: when it was
    read.
    """

    value: Any
    denied: bool
    error: str
    read_ms: int


def path_of(prefix: str, /, *segments: object, **query: object) -> str:
    """Return a quoted path below a cluster's prefix, for names: see PAGE_WORDS. A name of the query
    may end in `_`, such as `from_`.
    """
    path = "".join(f"/{_quoted(str(segment))}" for segment in segments)
    given = {key.rstrip("_"): value for key, value in query.items() if value is not None}
    whole = f"{prefix}{path}" or "/"
    return whole + (f"?{urlencode(given, True)}" if given else "")


def _quoted(segment: str) -> str:
    """Return a segment in quoted form. The first letter of a name that is also a page's word is
    quoted, so that no route takes it for that word.
    """
    if segment in PAGE_WORDS:
        return f"%{ord(segment[0]):02X}{segment[1:]}"
    return quote(segment, safe="")


class ClusterSession:
    """One user's access to one cluster. `admin` is ready after start()."""

    def __init__(self, config: ClusterConfig, principal: str, client_settings: dict[str, Any],
                 prefix: str, now_ms: Callable[[], int]):
        self.name = config.name
        self.principal = principal
        self.client_settings = client_settings
        self.admin: Admin = Admin.from_settings(client_settings)
        self.is_brokerd = False
        self.cluster_id = ""
        self._prefix = prefix
        self._now_ms = now_ms
        self._denied: set[str] = set()

    def __repr__(self) -> str:
        return f"ClusterSession({self.name!r}, {self.principal!r})"

    async def start(self) -> None:
        """Connect and log in. Raises KafkaError."""
        try:
            await self.admin.start()
            metadata = await self.admin.cluster.refresh()
            self.cluster_id = metadata.cluster_id or ""
            self.is_brokerd = await _is_brokerd(self.admin)
        except BaseException:
            await self.admin.close()
            raise

    async def close(self) -> None:
        await self.admin.close()

    def url(self, *segments: object, **query: object) -> str:
        """Return a path of this cluster: url("topics", name, partition=3). Omits None."""
        return path_of(self._prefix, *segments, **query)

    async def attempt(self, operation: str, call: Callable[[], Awaitable[Any]]) -> Part:
        """Run one part of a page. operation: what the user needs, "DESCRIBE CLUSTER".

        A denied operation is remembered, and later pages of the session skip it.
        """
        if operation in self._denied:
            return Part(None, True, "", self._now_ms())
        try:
            return Part(await call(), False, "", self._now_ms())
        except AuthorizationError:
            if len(self._denied) < DENIED_MAX:
                self._denied.add(operation)
            return Part(None, True, "", self._now_ms())
        except KafkaError as failure:
            return Part(None, False, str(failure) or type(failure).__name__, self._now_ms())


async def _is_brokerd(admin: Admin) -> bool:
    """Return True if the cluster runs brokerd, whose extra functions the pages then show. False
    for users who may not read the settings of brokers.
    """
    node = next(iter(admin.cluster.metadata.nodes), None)
    if node is None:
        return False
    request = messages.DescribeConfigsRequest
    try:
        answer = await admin.cluster.send(node, request(resources=[
            request.DescribeConfigsResource(
                resource_type=ResourceType.BROKER, resource_name=str(node),
                configuration_keys=[BROKERD_SETTING])]))
    except KafkaError:
        return False
    return any(row.name == BROKERD_SETTING for result in answer.results for row in result.configs)


async def log_in(config: ClusterConfig, user: str, password: str, prefix: str,
                 now_ms: Callable[[], int], mechanisms: Sequence[str] = SASL_MECHANISMS
                 ) -> ClusterSession:
    """Open connections as this user, with the first mechanism that the cluster accepts.

    A user may have a password for one mechanism only. Raises AuthenticationError, and KafkaError if
    the cluster is unreachable.
    """
    named = config.settings.get("sasl.mechanism")
    failure: AuthenticationError | None = None
    for mechanism in (str(named),) if named else mechanisms:
        session = ClusterSession(config, user, {
            **_limited(config.settings), "sasl.mechanism": mechanism, "sasl.username": user,
            "sasl.password": password}, prefix, now_ms)
        try:
            await session.start()
            return session
        except AuthenticationError as error:
            failure = error
    assert failure is not None
    raise failure


async def log_in_by_token(config: ClusterConfig, user: str,
                          tokens: Callable[[str], tuple[str, float]], prefix: str,
                          now_ms: Callable[[], int]) -> ClusterSession:
    """Open connections with a user's access token. Raises AuthenticationError, KafkaError."""
    session = ClusterSession(config, user, {
        **_limited(config.settings), "sasl.mechanism": "OAUTHBEARER", "oauth_cb": tokens},
        prefix, now_ms)
    await session.start()
    return session


async def open_session(config: ClusterConfig, prefix: str, now_ms: Callable[[], int],
                       user: str = "") -> ClusterSession:
    """Open connections with the cluster's own settings, for a console whose users do not log in to
    the cluster. user: the name that a proxy reports, "" for none. Raises KafkaError.
    """
    principal = user or str(config.settings.get("sasl.username") or ANONYMOUS)
    session = ClusterSession(config, principal, dict(_limited(config.settings)), prefix, now_ms)
    await session.start()
    return session


def _limited(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with timeouts that are short enough for a page."""
    return {"client.id": "pylog-console", "request.timeout.ms": REQUEST_MS_MAX,
            "default.api.timeout.ms": CALL_MS_MAX, **settings}
