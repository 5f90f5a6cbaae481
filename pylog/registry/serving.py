"""Runs a schema registry: connections to the cluster, address, TLS, and the HTTP server.

Owns: the listening socket and the lifetime of every part.
Invariants: the address accepts requests only after the topic was read to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from pylog import port_owner
from pylog.client.admin.admin import Admin
from pylog.config.errors import ConfigError
from pylog.registry.access import Access, Logins, Rights
from pylog.registry.application import Application
from pylog.registry.audit import Audit
from pylog.registry.http import HttpServer
from pylog.registry.registry import Limits, Registry
from pylog.registry.routes import Endpoints
from pylog.registry.store import Store
from pylog.registry.topic import SchemaTopic
from pylog.security import registry_access
from pylog.version import commit, version

log = logging.getLogger("pylog.registry")

BACKLOG = 1024
# A body is a schema as a JSON string, with its escapes and references.
BODY_BYTES_FACTOR = 4
CREDENTIALS = ("sasl.username", "sasl.password", "sasl.mechanism")


class About:
    """Answers about the registry itself."""

    def __init__(self, topic: SchemaTopic, cluster_id: str):
        self._topic = topic
        self._cluster_id = cluster_id

    def cluster(self) -> dict[str, Any]:
        return {"scope": {"path": [], "clusters": {
            "kafka-cluster": self._cluster_id, "schema-registry-cluster": "schema-registry"}}}

    def release(self) -> dict[str, str | None]:
        return {"version": version(), "commitId": commit()}

    def availability(self) -> dict[str, bool]:
        return {"master_available": self._topic.is_followed}

    def health(self) -> dict[str, Any]:
        self._topic.check_followed()
        return {"status": {"schema_registry_ready": True,
                           "schema_registry_records_skipped": self._topic.store.skipped}}


class RegistryServer:
    """A running registry. settings: of the broker, for names that begin with `schema.registry.`.
    client: settings of its connections to the cluster.
    """

    def __init__(self, settings: Any, client: Mapping[str, Any], now_ms: Callable[[], int],
                 seconds: Callable[[], float]):
        self._settings = settings
        self._client = dict(client)
        self._now_ms = now_ms
        self._seconds = seconds
        self._ends = contextlib.AsyncExitStack()
        self.store = Store()
        self.url = ""

    async def start(self) -> None:
        """Read the topic, then listen. Raises ConfigError, TopicError, KafkaError, OSError."""
        async with contextlib.AsyncExitStack() as ends:
            await self._start(ends)
            self._ends = ends.pop_all()

    async def close(self) -> None:
        await self._ends.aclose()

    async def _start(self, ends: contextlib.AsyncExitStack) -> None:
        settings = self._settings
        needs_login = settings["schema.registry.authentication"].lower() == registry_access.BASIC
        has_users = str(self._client.get("security.protocol", "")).upper().startswith("SASL")
        warning = registry_access.check(settings, has_users)
        if warning:
            log.warning(warning)
        sock = bind(settings[registry_access.LISTENER])
        ends.callback(sock.close)
        context = _tls(settings["schema.registry.ssl.keystore.location"])
        audit = Audit(settings["schema.registry.audit.file"], self._now_ms)
        ends.callback(audit.close)
        topic = SchemaTopic(settings["schema.registry.topic"], self._client, self.store,
                            settings["schema.registry.write.timeout.ms"] / 1000, self._seconds)
        ends.push_async_callback(topic.close)
        await topic.start()
        admin = await ends.enter_async_context(Admin.from_settings(
            {"client.id": "pylog-registry", **self._client}))
        rights = None
        if settings["schema.registry.authorization"].lower() == registry_access.ACL:
            rights = Rights(settings, admin)
            ends.push_async_callback(rights.close)
            await rights.start()
        logins = Logins({key: value for key, value in self._client.items()
                         if key not in CREDENTIALS}, self._seconds) if needs_login else None
        schema_bytes = settings["schema.registry.schema.bytes.max"]
        registry = Registry(self.store, topic, Limits(
            schema_bytes, settings["schema.registry.compatibility.level"].upper(),
            settings["schema.registry.mode.mutability"]))
        about = About(topic, (await admin.describe_cluster()).cluster_id)
        server = HttpServer(Application(Endpoints(registry, Access(rights), about), logins, audit),
                            BODY_BYTES_FACTOR * schema_bytes)
        ends.push_async_callback(server.close)
        sock.listen(BACKLOG)
        await server.start(sock, context)
        self.url = _url(sock, context is not None)


def bind(listener: str) -> socket.socket:
    """Return a bound socket. Raises ConfigError."""
    host, port = registry_access.address(listener)
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        with contextlib.ExitStack() as stack:
            stack.callback(made.close)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.setblocking(False)
            stack.pop_all()
        return made
    except OSError as error:
        remedy = port_owner.remedy(port, f"{registry_access.LISTENER}=HOST:PORT")
        raise ConfigError(f"Cannot listen on {listener}: {error.strerror or error}. {remedy}"
                          ) from None


def _tls(keystore: str) -> ssl.SSLContext | None:
    """Return the TLS settings for a PEM file with certificate and key. Raises ConfigError."""
    if not keystore:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(keystore)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"schema.registry.ssl.keystore.location={keystore}: {error}. Give a PEM "
                          "file with the certificate chain and the key") from None
    return context


def _url(sock: socket.socket, is_secure: bool) -> str:
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if is_secure else 'http'}://{shown}:{port}"


async def serve(server: RegistryServer, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. ready: called with the URL. Raises as start() does."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await server.start()
    try:
        ready(server.url)
        await ended.wait()
    finally:
        await server.close()
