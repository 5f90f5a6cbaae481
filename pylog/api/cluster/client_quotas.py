"""Client quotas over the wire: DescribeClientQuotas (48), AlterClientQuotas (49).

Owns: the thread that runs the resolver.
Invariants: one result per entity of the request; a successful result is sent after the record is on
  disk, and the quota applies to the next request of a client; a resolver that does not respond
  delays one request by RESOLVE_SECONDS, but no other thread and no shutdown.
Source: KIP-546; responses as in Kafka 4.4.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue

from pylog import supervisor
from pylog.config import client_quotas
from pylog.protocol import api, messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Iterator

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.metadata.controller.active_controller import ActiveController
    from pylog.metadata.service import MetadataService

EXACT, DEFAULT, SPECIFIED = range(3)
KINDS = (client_quotas.USER, client_quotas.CLIENT_ID, client_quotas.IP)
HOST_CHARACTERS_MAX = 253
PART_ENTITIES = 500
RESOLVE_SECONDS = 5.0  # for all names of a request


class QuotasApi:
    """Client quotas, decided by `controller`."""

    def __init__(self, controller: ActiveController, metadata: MetadataService):
        self._controller = controller
        self._metadata = metadata

    def handlers(self) -> dict[int, Handler]:
        return {
            api.DESCRIBE_CLIENT_QUOTAS: self.describe_client_quotas,
            api.ALTER_CLIENT_QUOTAS: self.alter_client_quotas,
        }

    def describe_client_quotas(
            self, context: RequestContext, request: Message) -> Iterator[Message | None]:
        """Yield the quotas of the entities that a filter matches (KIP-546).

        Errors: INVALID_REQUEST for a contradictory filter; UNSUPPORTED_VERSION for an unknown match
        type.
        """
        response = messages.DescribeClientQuotasResponse
        try:
            wanted = _filter(request.components)
        except Refusal as refusal:
            yield response(error_code=refusal.error, error_message=refusal.message, entries=None)
            return
        found = iter(self._metadata.image.client_quotas.items())
        yield response(entries=[])
        while part := list(itertools.islice(found, PART_ENTITIES)):
            yield response(entries=[
                response.EntryData(
                    entity=[response.EntityData(entity_type=kind, entity_name=name)
                            for kind, name in entity],
                    values=[response.ValueData(key=key, value=value)
                            for key, value in values.items()])
                for entity, values in part if _matches(entity, wanted, request.strict)])

    async def alter_client_quotas(self, context: RequestContext, request: Message) -> Message:
        """Set and remove quotas, one result per entity; hosts' addresses are looked up first.

        Errors: INVALID_REQUEST for an invalid entity or value; KIP-546, KIP-612.
        """
        hosts = await _hosts(request.entries)
        results = await self._controller.alter_client_quotas(request, hosts)
        response = messages.AlterClientQuotasResponse
        return response(entries=[
            response.EntryData(
                error_code=result.error, error_message=result.message,
                entity=[response.EntityData(entity_type=kind, entity_name=name)
                        for kind, name in result.entity])
            for result in results])


def _filter(components) -> dict:
    """Return entity type -> (match type, name). Raises Refusal."""
    wanted = {}
    for component in components:
        kind, match = component.entity_type, component.match
        if not kind:
            raise _bad("Invalid empty entity type.")
        if kind in wanted:
            raise _bad(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in KINDS:
            raise Refusal(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if component.match_type == EXACT and match is None:
            raise _bad("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if component.match_type == DEFAULT and match is not None:
            raise _bad("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
        if component.match_type == SPECIFIED and match is not None:
            raise _bad("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.")
        if component.match_type not in (EXACT, DEFAULT, SPECIFIED):
            raise _bad(f"Unknown match type {component.match_type}")
        wanted[kind] = component.match_type, match
    if client_quotas.IP in wanted and len(wanted) > 1:
        raise _bad("Invalid entity filter component combination. IP filter component should not "
                   "be used with user or clientId filter component.")
    return wanted


def _matches(entity, wanted: dict, strict: bool) -> bool:
    # As in Kafka: a strict filter without components matches no entity.
    if strict and (not wanted or len(entity) != len(wanted)):
        return False
    parts = dict(entity)
    return all(kind in parts and (how == SPECIFIED or parts[kind] == match)
               for kind, (how, match) in wanted.items())


async def _hosts(entries, seconds: float = RESOLVE_SECONDS) -> dict:
    """Return name -> address of ip entities; names that are not resolved within `seconds` are
    missing.
    """
    names = {part.entity_name for entry in entries for part in entry.entity
             if part.entity_type == client_quotas.IP and part.entity_name
             and len(part.entity_name) <= HOST_CHARACTERS_MAX}
    found = {}
    try:
        async with asyncio.timeout(seconds):
            for name in sorted(names):
                address = _literal(name) or await asyncio.wrap_future(_resolver.submit(name))
                if address is not None:
                    found[name] = address
    except TimeoutError:
        # The remaining names are rejected as unresolvable.
        pass
    return found


def _literal(name: str) -> str | None:
    """Return the address if the name is a literal address, without a resolver query."""
    return _address(name, socket.AI_NUMERICHOST)


def _address(name: str, flags: int = 0) -> str | None:
    try:
        return str(socket.getaddrinfo(name, None, flags=flags)[0][4][0])
    except (OSError, UnicodeError, ValueError):
        return None


class _Resolver:
    """Resolves names on a daemon thread: the process can exit while a query is pending."""

    def __init__(self):
        self._queue: SimpleQueue[tuple[str, Future[str | None]]] = SimpleQueue()
        self._thread = None

    def submit(self, name: str) -> Future:
        """Return a future of a name's address, None if it has none. Call it on the event loop."""
        if self._thread is None:
            self._thread = supervisor.thread("resolver", self._run, threading.Event())
            self._thread.start()
        response: Future[str | None] = Future()
        self._queue.put((name, response))
        return response

    def _run(self) -> None:
        while True:
            name, response = self._queue.get()
            # The caller may have given up.
            if response.set_running_or_notify_cancel():
                response.set_result(_address(name))


_resolver = _Resolver()


def resolve_later(limits: client_quotas.ClientQuotas) -> None:
    """Look up the hosts of quotas on the resolver's thread; their limits apply when it responds."""
    for name in limits.unresolved():
        response = asyncio.wrap_future(_resolver.submit(name))
        response.add_done_callback(partial(_take_host, limits, name))


def _take_host(limits: client_quotas.ClientQuotas, name: str, response: asyncio.Future) -> None:
    if not response.cancelled():
        limits.take_hosts({name: response.result()})


def _bad(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
