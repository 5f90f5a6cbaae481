"""CreateTopics (19) and DeleteTopics (20).

Owns: nothing.
Invariants: one result per topic of the request; a change that would exceed the timeout is not
  started; a successful result is sent after the record is on disk and the topic's partitions are
  opened or closed.
Source: KIP-4, KIP-516 (ids), KIP-525 (settings in the response); error codes as in Kafka 4.4.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from pylog.config import catalogue
from pylog.config.entries import DEFAULT, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, TOPIC
from pylog.config.values import format_value
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.config import Settings
    from pylog.config.client_quotas import ClientQuotas
    from pylog.metadata.controller.active_controller import ActiveController

NO_ID = bytes(16)
# From this version on, an exceeded quota rejects the request instead of throttling the client
# (KIP-599).
CREATE_STRICT_QUOTA_VERSION = 6
DELETE_STRICT_QUOTA_VERSION = 5


class TopicsApi:
    """CreateTopics and DeleteTopics, decided by `controller`."""

    def __init__(self, controller: ActiveController, quotas: ClientQuotas, settings: Settings):
        self._controller = controller
        self._quotas = quotas
        self._settings = settings

    def handlers(self) -> dict[int, Handler]:
        return {api.CREATE_TOPICS: self.create_topics, api.DELETE_TOPICS: self.delete_topics}

    async def create_topics(self, context: RequestContext, request: Message) -> Message:
        """Create topics and return each topic's id and settings, or its error (KIP-4).

        Errors: REQUEST_TIMED_OUT without any change if timeout_ms <= 0; the controller's errors,
        e.g. TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR; THROTTLING_QUOTA_EXCEEDED from
        version 6 (KIP-599). Settings are returned from version 5 (KIP-525).
        """
        new = messages.CreateTopicsResponse.CreatableTopicResult
        if request.timeout_ms <= 0:
            names = dict.fromkeys(topic.name for topic in request.topics)
            return messages.CreateTopicsResponse(topics=[
                new(name=name, error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=None,
                    configs=[] if context.api_version >= 5 else None) for name in names])
        mutations = self._quotas.mutations(
            context.principal, context.client_id,
            context.api_version >= CREATE_STRICT_QUOTA_VERSION)
        results = await self._controller.create_topics(request, mutations=mutations)
        if mutations is not None:
            context.throttle_ms = max(context.throttle_ms, mutations.throttle_ms())
        entries = []
        for result in results:
            if result.error != ErrorCode.NONE:
                entries.append(new(name=result.name, error_code=result.error,
                                   error_message=result.message))
                continue
            entries.append(new(
                name=result.name, topic_id=result.topic_id, error_message=None,
                num_partitions=result.partition_count,
                replication_factor=result.replication_factor,
                configs=self._configs(result.configs) if context.api_version >= 5 else None))
        return messages.CreateTopicsResponse(topics=entries)

    def _configs(self, own: dict) -> list:
        """Return all settings of a new topic as text, each with its source."""
        new = messages.CreateTopicsResponse.CreatableTopicConfigs
        entries = dict(self._inherited())
        for name, text in own.items():
            entries[name] = new(name=name, value=text, config_source=TOPIC)
        return list(entries.values())

    def _inherited(self) -> dict:
        """Return the entries of a topic without overrides; responses share them."""
        settings = self._settings
        defaults = settings.topic_defaults()
        known, found = _inherited_of.get(settings, (None, None))
        if known is not defaults:
            new = messages.CreateTopicsResponse.CreatableTopicConfigs
            found = {}
            for name, value in sorted(defaults.items()):
                if not catalogue.is_shown(name):
                    continue
                found[name] = new(name=name, value=format_value(value),
                                  config_source=_source(settings, catalogue.topic(name).synonyms))
            _inherited_of[settings] = defaults, found
        return found

    async def delete_topics(self, context: RequestContext, request: Message) -> Message:
        """Delete topics by name or, from version 6, by id (KIP-516); one result per topic.

        Errors: REQUEST_TIMED_OUT without any change if timeout_ms <= 0; UNKNOWN_TOPIC_OR_PARTITION,
        UNKNOWN_TOPIC_ID, TOPIC_DELETION_DISABLED (INVALID_REQUEST before version 3),
        THROTTLING_QUOTA_EXCEEDED from version 5 (KIP-599).
        """
        if context.api_version >= 6:
            wanted = [(topic.name, bytes(topic.topic_id)) for topic in request.topics]
        else:
            wanted = [(name, NO_ID) for name in request.topic_names]
        new = messages.DeleteTopicsResponse.DeletableTopicResult
        if request.timeout_ms <= 0:
            return messages.DeleteTopicsResponse(responses=[
                new(name=name, topic_id=topic_id, error_code=ErrorCode.REQUEST_TIMED_OUT)
                for name, topic_id in dict.fromkeys(wanted)])
        mutations = self._quotas.mutations(
            context.principal, context.client_id,
            context.api_version >= DELETE_STRICT_QUOTA_VERSION)
        results = await self._controller.delete_topics(wanted, mutations)
        if mutations is not None:
            context.throttle_ms = max(context.throttle_ms, mutations.throttle_ms())
        entries = []
        for result in results:
            entries.append(new(
                name=result.name, topic_id=result.topic_id, error_message=result.message,
                error_code=_known_error(context, result.error)))
        return messages.DeleteTopicsResponse(responses=entries)


def _source(settings, synonyms) -> int:
    for texts, source in ((settings.dynamic_own, DYNAMIC_BROKER),
                          (settings.dynamic_cluster, DYNAMIC_DEFAULT),
                          (settings.texts, STATIC)):
        if any(synonym in texts for synonym in synonyms):
            return source
    return DEFAULT


_inherited_of: WeakKeyDictionary[Settings, tuple] = WeakKeyDictionary()


def _known_error(context, error: int) -> int:
    # TOPIC_DELETION_DISABLED exists since version 3.
    if error == ErrorCode.TOPIC_DELETION_DISABLED and context.api_version < 3:
        return ErrorCode.INVALID_REQUEST
    return error
