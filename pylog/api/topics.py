"""CreateTopics (19) and DeleteTopics (20).

Owns: nothing.
Called by: dispatch through api.HANDLERS.
Invariants: (1) one result per topic of the request; what had no time to be done is not begun;
  (2) when a result says that a topic was made or removed, its record is on disk and its
  partitions are open or gone.
Source: KIP-4, KIP-516 (ids), KIP-525 (settings in the answer); error codes as Kafka 4.3's.
"""

from weakref import WeakKeyDictionary

from pylog.config import catalogue
from pylog.config.entries import DEFAULT, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, TOPIC
from pylog.config.values import format_value
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

NO_ID = bytes(16)
# Since when a used up quota refuses instead of only delaying what follows (KIP-599).
CREATE_STRICT_QUOTA_VERSION = 6
DELETE_STRICT_QUOTA_VERSION = 5


async def create_topics(broker, context, request):
    new = messages.CreateTopicsResponse.CreatableTopicResult
    if request.timeout_ms <= 0:
        names = dict.fromkeys(topic.name for topic in request.topics)
        return messages.CreateTopicsResponse(topics=[
            new(name=name, error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=None,
                configs=[] if context.api_version >= 5 else None) for name in names])
    mutations = broker.quotas.mutations(
        context.principal, context.client_id, context.api_version >= CREATE_STRICT_QUOTA_VERSION)
    results = await broker.controller.create_topics(request, mutations=mutations)
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
            configs=_configs(broker, result.configs) if context.api_version >= 5 else None))
    return messages.CreateTopicsResponse(topics=entries)


def _configs(broker, own: dict) -> list:
    """All settings of a new topic as text, each with where it comes from."""
    new = messages.CreateTopicsResponse.CreatableTopicConfigs
    entries = dict(_inherited(broker))
    for name, text in own.items():
        entries[name] = new(name=name, value=text, config_source=TOPIC)
    return list(entries.values())


def _inherited(broker) -> dict:
    """The entries of a topic without settings of its own; shared by answers until they change."""
    settings = broker.settings
    defaults = settings.topic_defaults()
    known, found = _inherited_of.get(settings, (None, None))
    if known is not defaults:
        new = messages.CreateTopicsResponse.CreatableTopicConfigs
        found = {}
        for name, value in sorted(defaults.items()):
            # Kafka does not show the settings that it keeps for its own tests.
            if name.startswith("internal."):
                continue
            found[name] = new(name=name, value=format_value(value),
                              config_source=_source(settings, catalogue.topic(name).synonyms))
        _inherited_of[settings] = defaults, found
    return found


def _source(settings, synonyms) -> int:
    for texts, source in ((settings.dynamic_own, DYNAMIC_BROKER),
                          (settings.dynamic_cluster, DYNAMIC_DEFAULT),
                          (settings.texts, STATIC)):
        if any(synonym in texts for synonym in synonyms):
            return source
    return DEFAULT


_inherited_of = WeakKeyDictionary()


async def delete_topics(broker, context, request):
    if context.api_version >= 6:
        wanted = [(topic.name, bytes(topic.topic_id)) for topic in request.topics]
    else:
        wanted = [(name, NO_ID) for name in request.topic_names]
    new = messages.DeleteTopicsResponse.DeletableTopicResult
    if request.timeout_ms <= 0:
        return messages.DeleteTopicsResponse(responses=[
            new(name=name, topic_id=topic_id, error_code=ErrorCode.REQUEST_TIMED_OUT)
            for name, topic_id in dict.fromkeys(wanted)])
    mutations = broker.quotas.mutations(
        context.principal, context.client_id, context.api_version >= DELETE_STRICT_QUOTA_VERSION)
    results = await broker.controller.delete_topics(wanted, mutations)
    if mutations is not None:
        context.throttle_ms = max(context.throttle_ms, mutations.throttle_ms())
    entries = []
    for result in results:
        entries.append(new(
            name=result.name, topic_id=result.topic_id, error_message=result.message,
            error_code=_known_error(context, result.error)))
    return messages.DeleteTopicsResponse(responses=entries)


def _known_error(context, error: int) -> int:
    # TOPIC_DELETION_DISABLED came with version 3.
    if error == ErrorCode.TOPIC_DELETION_DISABLED and context.api_version < 3:
        return ErrorCode.INVALID_REQUEST
    return error


HANDLERS = {api.CREATE_TOPICS: create_topics, api.DELETE_TOPICS: delete_topics}
