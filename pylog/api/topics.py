"""CreateTopics (19) and DeleteTopics (20).

Owns: nothing.
Called by: dispatch through api.HANDLERS.
Invariants: (1) one result per topic of the request; (2) when a result says that a topic was made or removed,
  its record is on disk and its partitions are open or gone.
Source: KIP-4, KIP-516 (ids), KIP-525 (settings in the answer); error codes as Kafka 4.3's.
"""

from pylog.metadata.controller import METADATA_TOPIC  # noqa: F401
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

CREATE_TOPICS = 19
DELETE_TOPICS = 20
NO_ID = bytes(16)
SOURCE_TOPIC = 1
SOURCE_STATIC_BROKER = 4
SOURCE_DEFAULT = 5


async def create_topics(broker, context, request):
    results = await broker.controller.create_topics(request)
    new = messages.CreateTopicsResponse.CreatableTopicResult
    entries = []
    for result in results:
        if result.error != ErrorCode.NONE:
            entries.append(new(name=result.name, error_code=result.error,
                               error_message=result.message))
            continue
        entries.append(new(
            name=result.name, topic_id=result.topic_id, num_partitions=result.partition_count,
            replication_factor=result.replication_factor,
            configs=_configs(broker, result.configs) if context.api_version >= 5 else None))
    return messages.CreateTopicsResponse(topics=entries)


def _configs(broker, own: dict) -> list:
    """All settings that the new topic has, as text, each with where it comes from."""
    new = messages.CreateTopicsResponse.CreatableTopicConfigs
    entries = []
    for name, text, is_default in broker.settings.topic_texts(own):
        source = SOURCE_TOPIC if name in own else \
            SOURCE_DEFAULT if is_default else SOURCE_STATIC_BROKER
        entries.append(new(name=name, value=text, config_source=source))
    return entries


async def delete_topics(broker, context, request):
    if context.api_version >= 6:
        wanted = [(topic.name, bytes(topic.topic_id)) for topic in request.topics]
    else:
        wanted = [(name, NO_ID) for name in request.topic_names]
    results = await broker.controller.delete_topics(wanted)
    new = messages.DeleteTopicsResponse.DeletableTopicResult
    entries = []
    for result in results:
        if result.error == ErrorCode.NONE:
            broker.topic_changed(result.name)
        entries.append(new(
            name=result.name, topic_id=result.topic_id, error_message=result.message,
            error_code=_known_error(context, result.error)))
    return messages.DeleteTopicsResponse(responses=entries)


def _known_error(context, error: int) -> int:
    # TOPIC_DELETION_DISABLED came with version 3.
    if error == ErrorCode.TOPIC_DELETION_DISABLED and context.api_version < 3:
        return ErrorCode.INVALID_REQUEST
    return error


HANDLERS = {CREATE_TOPICS: create_topics, DELETE_TOPICS: delete_topics}
