"""Parses the branch options of a CreateTopics request, and completes the records of branches.

Owns: nothing; no clock, no disk.
Invariants: creation options are not configs and are in no ConfigRecord; a branch has the
  partitions, the replication factor and the configs of its source, overridden by the request's
  configs; its leader epochs continue those of the source, because its batches contain them.
Source: none. CreateTopics options instead of a new API key: every client and tool can create a
  branch, and a broker without branches rejects the config by name.
"""

from pylog.protocol.counts import counted
from pylog.log.topic_branches import Cut
from pylog.metadata.image.image import Image, is_internal
from pylog.metadata.controller.partitions.topics import TopicResult
from pylog.protocol.api_error import Refusal
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

SOURCE = "pylog.branch.source"
AT_OFFSET = "pylog.branch.at.offset"
AT_TIME = "pylog.branch.at.time"
OPTIONS = (SOURCE, AT_OFFSET, AT_TIME)


def source_name(topic) -> str | None:
    """Return the source topic that a CreatableTopic names for a branch, None if it names none.

    An empty name counts as a name: it is rejected later, with the reason.
    """
    options = _options(topic)
    return options.get(SOURCE) or "" if options else None


def _options(topic) -> dict[str, str | None]:
    """Return the creation options of a CreatableTopic. If a name occurs twice, the last value
    counts, for authorization and for the branch.
    """
    return {config.name: config.value for config in topic.configs if config.name in OPTIONS}


def split_branches(image: Image, request) -> tuple:
    """Return (the request without creation options, {branch: (source, Cut)}, rejected topics)."""
    new = messages.CreateTopicsRequest
    branches, refused, topics = {}, [], []
    for topic in request.topics:
        options = _options(topic)
        if not options:
            topics.append(topic)
            continue
        try:
            source = _source(image, topic, options)
            branches[topic.name] = (source.name, _cut(options))
        except Refusal as refusal:
            refused.append(TopicResult(topic.name, refusal.error, refusal.message))
            continue
        given = {config.name: config.value for config in topic.configs
                 if config.name not in OPTIONS}
        configs = {**image.topic_config(source.name), **given}  # The branch inherits.
        topics.append(new.CreatableTopic(
            name=topic.name, num_partitions=len(source.partitions),
            replication_factor=len(source.partitions[0].replicas), assignments=[],
            configs=[new.CreatableTopicConfig(name=name, value=value)
                     for name, value in configs.items()]))
    if not branches and not refused:
        return request, {}, []
    return new(topics=topics, timeout_ms=request.timeout_ms,
               validate_only=request.validate_only), branches, refused


def _source(image: Image, topic, options: dict):
    name = options.get(SOURCE)
    if not name:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"{SOURCE} must name a topic")
    if is_internal(name):
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"'{name}' is an internal topic")
    if len(image.brokers) > 1:
        raise Refusal(ErrorCode.INVALID_REQUEST,
                      "branches are hard links on one broker's disk; clusters cannot create them")
    source = image.topics.get(name)
    if source is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                      f"there is no topic '{name}' to make a branch of")
    count, factor = len(source.partitions), len(source.partitions[0].replicas)
    if topic.assignments:
        raise Refusal(ErrorCode.INVALID_REQUEST,
                      "a branch's partitions are placed like its source's")
    if topic.num_partitions not in (-1, count):
        raise Refusal(ErrorCode.INVALID_PARTITIONS,
                      f"'{name}' has {counted(count, 'partition')}, and so has a branch of it")
    if topic.replication_factor not in (-1, factor):
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR,
                      f"'{name}' has {counted(factor, 'replica')}, and so has a branch of it")
    return source


def _cut(options: dict) -> Cut:
    given = [name for name in (AT_OFFSET, AT_TIME) if name in options]
    if len(given) > 1:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"either {AT_OFFSET} or {AT_TIME}")
    for name in given:
        value = options[name] or ""
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise Refusal(ErrorCode.INVALID_CONFIG,
                          f"{name}={value}: expected a number from 0 on"
                          + (", milliseconds since 1970" if name == AT_TIME else ""))
    return Cut(*(int(options[name]) if name in options else None for name in (AT_OFFSET, AT_TIME)))


def with_epochs(image: Image, records: list, results: list, branches: dict) -> None:
    """Set the records of new branches to the source's leader epochs, which their batches contain.
    """
    sources = {result.topic_id: image.topics[branches[result.name][0]] for result in results
               if result.error == ErrorCode.NONE and result.name in branches}
    for record in records:
        if type(record).__name__ == "PartitionRecord" and bytes(record.topic_id) in sources:
            state = sources[bytes(record.topic_id)].partitions[record.partition_id]
            record.leader_epoch = state.leader_epoch


def without(records: list, gone: list) -> list:
    """Return the records without those of failed topics. gone: [TopicResult]."""
    names, ids = {result.name for result in gone}, {result.topic_id for result in gone}
    return [record for record in records
            if bytes(getattr(record, "topic_id", b"") or b"") not in ids
            and getattr(record, "resource_name", None) not in names
            and getattr(record, "topic_name", None) not in names]
