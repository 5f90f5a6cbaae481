"""Metadata (3): brokers, topics and partitions, with auto-creation.

Owns: nothing.
Invariants: one entry per requested topic, in the request's order; one request creates at most
  AUTO_CREATE_TOPICS_MAX topics, and the client requests the rest again; a response is created in
  parts of about PART_PARTITIONS partitions, all from one image.
Source: KIP-4, KIP-516 (topic ids), KIP-430 (authorized operations), KIP-1102 (top-level error).
"""

from __future__ import annotations

import types

from pylog.api.cluster import cluster
from pylog.config import internal_topics
from pylog.metadata.controller.partitions.topics import topic_name_fault
from pylog.metadata.image.image import NO_LEADER, is_internal
from pylog.protocol import api, codec, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message, Parts
    from pylog.api.cluster.cluster import Addresses
    from pylog.config import Settings
    from pylog.config.client_quotas import ClientQuotas
    from pylog.metadata.controller.active_controller import ActiveController
    from pylog.metadata.service import MetadataService
    from pylog.security.authorization.access import Access

IDS_SINCE = 12  # Version 10 returns topic ids, version 12 accepts them.
AUTO_CREATE_TOPICS_MAX = 1000
AUTO_CREATE_TIMEOUT_MS = 30_000
# Encoded entries cached for the next request: about 30 bytes per partition.
ENTRIES_MAX = 20_000
ENTRY_PARTITIONS_MAX = 100
PART_PARTITIONS = 1000
OPERATIONS_SINCE = 8
NO_ID = bytes(16)
# From pylog.security.authorizer, which few brokers import.
DESCRIBE, TOPIC = 8, 2


class MetadataApi:
    """Metadata. metadata: has the current image."""

    def __init__(self, addresses: Addresses, metadata: MetadataService, controller:
                 ActiveController, quotas: ClientQuotas, settings: Settings, node_id: int,
                 access: Access | None = None):
        self._addresses = addresses
        self._metadata = metadata
        self._controller = controller
        self._quotas = quotas
        self._settings = settings
        self._node_id = node_id
        self._access = access

    def handlers(self) -> dict[int, Handler]:
        return {api.METADATA: self.metadata}

    def metadata(self, context: RequestContext, request: Message) -> Message | Parts:
        """Return the brokers, and the requested topics with their partitions, in parts.

        Creates missing topics first if auto.create.topics.enable and the request allow it. Errors
        of topics: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_TOPIC_EXCEPTION; of
        partitions: LEADER_NOT_AVAILABLE. INVALID_REQUEST for ids before version 12. KIP-4, KIP-516.
        """
        if context.api_version < IDS_SINCE and any(
                topic.name is None or topic.topic_id != NO_ID for topic in request.topics or ()):
            return messages.MetadataResponse(topics=[
                _fault(ErrorCode.INVALID_REQUEST, topic.name or "", topic.topic_id)
                for topic in request.topics])
        departures = self._metadata.departures
        if departures is not None and self._is_led_by(departures.suspects, context, request):
            return self._once_settled(departures, context, request)
        return self._parts_of(context, request)

    def _is_led_by(self, brokers, context, request) -> bool:
        """Return True if one of these brokers leads a requested partition; for all topics, return
        True without a check.

        The next request on the connection, for example a Fetch, would wait too.
        """
        if not brokers or _wants_all(context, request):
            return bool(brokers)
        image = self._metadata.image
        topics = (image.topics.get(topic.name) or image.topics_by_id.get(bytes(topic.topic_id))
                  for topic in request.topics)
        return any(state.leader in brokers
                   for topic in topics if topic is not None for state in topic.partitions)

    async def _once_settled(self, departures, context, request):
        """Wait briefly for a new leader: a leader may just have failed."""
        await departures.settled()
        parts = self._parts_of(context, request)
        if type(parts) is types.AsyncGeneratorType:
            async for part in parts:
                yield part
        else:
            for part in parts:
                yield part

    def _parts_of(self, context, request):
        image = self._metadata.image
        if _wants_all(context, request):
            context.cacheable = True
            return self._parts(context, request, (
                (topic, None) for topic in image.topics.values()
                if self._access is None or self._access.may_besides(
                    context, DESCRIBE, TOPIC, topic.name)))
        wanted = {(topic.name, bytes(topic.topic_id)): None for topic in request.topics}
        missing = [name for name, id_ in wanted
                   if name is not None and id_ == NO_ID and name not in image.topics]
        if missing and self._may_create(context, request):
            return self._after_creation(context, request, wanted, missing)
        # An unknown topic may be created at any time, by another request or by a change of
        # settings.
        context.cacheable = not missing
        return self._parts(context, request, (
            self._found(image, context, request, name, id_, {}) for name, id_ in wanted))

    async def _after_creation(self, context, request, wanted, missing):
        refused = await self._create(context, missing)
        image = self._metadata.image
        for part in self._parts(context, request, (
                self._found(image, context, request, name, id_, refused) for name, id_ in wanted)):
            yield part

    def _parts(self, context, request, found):
        """found: (topic, None), or (None, the entry with the error). All parts come from one image.
        """
        image = self._metadata.image
        rows, room = [], PART_PARTITIONS
        for topic, fault in found:
            room -= 1
            if fault is not None:
                rows.append(fault)
            elif len(topic.partitions) <= PART_PARTITIONS:
                rows.append(self._known(image, topic, context, request))
                room -= len(topic.partitions)
            else:
                for first in range(0, len(topic.partitions), PART_PARTITIONS):
                    rows.append(self._new(
                        image, topic, context, request, first, first + PART_PARTITIONS))
                    yield self._response(context, request, rows)
                    rows, room = [], PART_PARTITIONS
            if room <= 0:
                yield self._response(context, request, rows)
                rows, room = [], PART_PARTITIONS
        yield self._response(context, request, rows)

    def _response(self, context, request, topics):
        response = messages.MetadataResponse(
            brokers=self._brokers(context), cluster_id=self._metadata.cluster_id,
            controller_id=self._node_id, topics=topics)
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = cluster.CLUSTER_OPERATIONS
        return response

    def _found(self, image, context, request, name, id_, refused):
        """Return (topic, None) for each requested topic in order, or (None, the entry with the
        error).
        """
        if id_ != NO_ID or name is None:
            topic = image.topics_by_id.get(id_)
            return (topic, None) if topic is not None \
                else (None, _fault(ErrorCode.UNKNOWN_TOPIC_ID, None, id_))
        topic = image.topics.get(name)
        if topic is not None:
            return topic, None
        error = refused.get(name)
        if error is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic_name_fault(name) is None \
                else ErrorCode.INVALID_TOPIC_EXCEPTION
        entry = _fault(error, name, NO_ID)
        if _includes_operations(context, request):
            entry.topic_authorized_operations = self._operations(context, name)
        return None, entry

    def _operations(self, context, name: str) -> int:
        """Return the client's permitted operations on a topic, as bits (KIP-430)."""
        return cluster.TOPIC_OPERATIONS if self._access is None \
            else self._access.operations(context, TOPIC, name)

    def _known(self, image, topic, context, request):
        """Return a topic's entry with all of its partitions, encoded unless the topic is large."""
        version = context.api_version
        includes_operations = _includes_operations(context, request)
        if includes_operations and self._access is not None:
            return self._new(image, topic, context, request, 0, len(topic.partitions))
        key = topic.id, version, includes_operations
        known = _entries.get(key)
        # Topics and the dictionary of brokers are never changed in place: same objects, same entry.
        if known is not None and known[0] is topic and known[1] is image.brokers:
            return known[2]
        entry = self._new(image, topic, context, request, 0, len(topic.partitions))
        if len(topic.partitions) <= ENTRY_PARTITIONS_MAX:
            entry = codec.encoded_part(api.METADATA, version, "topics", entry)
            if len(_entries) >= ENTRIES_MAX:
                _entries.clear()
            _entries[key] = topic, image.brokers, entry
        return entry

    def _new(self, image, topic, context, request, first: int, end: int):
        """Return a topic's entry with the partitions from `first` to `end`."""
        entry = messages.MetadataResponse.MetadataResponseTopic(
            name=topic.name, topic_id=topic.id, is_internal=is_internal(topic.name),
            partitions=_partitions(image, topic, first, end))
        if _includes_operations(context, request):
            entry.topic_authorized_operations = self._operations(context, topic.name)
        return entry

    def _brokers(self, context) -> list:
        departures = self._metadata.departures
        new = messages.MetadataResponse.MetadataResponseBroker
        return [new(node_id=id_, host=host, port=port, rack=rack)
                for id_, host, port, rack, fenced in self._addresses.of(context)
                if not fenced or departures is not None and departures.is_listed(id_)]

    def _may_create(self, context, request) -> bool:
        # Before version 4 a request could not disable creation.
        return bool(self._settings["auto.create.topics.enable"]) and (
            context.api_version < 4 or request.allow_auto_topic_creation)

    async def _create(self, context, names) -> dict:
        """Create permitted topics with the defaults that this broker sets, otherwise with the
        controller's. Returns the errors by name.
        """
        partitions, factor = (
            -1 if self._settings.origin(name) == "default" else self._settings[name]
            for name in ("num.partitions", "default.replication.factor"))
        request = messages.CreateTopicsRequest(timeout_ms=AUTO_CREATE_TIMEOUT_MS)
        new = messages.CreateTopicsRequest.CreatableTopic
        request.topics = [
            new(name=name, num_partitions=partitions, replication_factor=factor)
            for name in names
            if topic_name_fault(name) is None and name not in internal_topics.NAMES
        ][:max(0, _creatable(self._settings) - context.created_count)]
        if not request.topics:
            return {}
        # Count over all parts of a request, to keep the limit.
        context.created_count += len(request.topics)
        results = await self._controller.create_topics(
            request, mutations=self._quotas.mutations(context.principal, context.client_id, True))
        # Another request may have created it first. A topic that the client's quota delays is
        # unknown until the client requests it again.
        done = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        return {result.name: result.error for result in results if result.error not in done}


def _wants_all(context, request) -> bool:
    # Version 0 had no null: there an empty list means all topics.
    return request.topics is None or context.api_version == 0 and not request.topics


def _includes_operations(context, request) -> bool:
    return request.include_topic_authorized_operations and context.api_version >= OPERATIONS_SINCE


def _fault(error, name, id_):
    return messages.MetadataResponse.MetadataResponseTopic(
        error_code=error, name=name, topic_id=id_,
        is_internal=name is not None and is_internal(name))


def _creatable(settings) -> int:
    return max(1, AUTO_CREATE_TOPICS_MAX // settings["num.partitions"])


_entries: dict = {}


def _partitions(image, topic, first: int, end: int) -> list:
    new = messages.MetadataResponse.MetadataResponsePartition
    entries = []
    for index, state in enumerate(topic.partitions[first:end], first):
        leader = state.leader
        reachable = leader != NO_LEADER and leader in image.brokers
        entries.append(new(
            error_code=ErrorCode.NONE if reachable else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index, leader_id=leader if reachable else NO_LEADER,
            leader_epoch=state.leader_epoch, replica_nodes=state.replicas, isr_nodes=state.isr,
            offline_replicas=cluster.offline_replicas(image, state)))
    return entries
