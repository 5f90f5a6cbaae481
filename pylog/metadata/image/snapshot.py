"""Snapshots of the metadata log: an image as records, in files next to the log.

Owns: `<end offset>-<epoch>.checkpoint` files.
Invariants: a snapshot is complete or absent: it is renamed into place after it is on disk; applying
  an image's records to an empty image gives the same image.
Source: KIP-630: batches between a header and a footer, which are control records.
"""

import os
import re

from pylog._native.records import batch
from pylog.log.checkpoint_files import whole_file
from pylog.metadata.image import record_versions
from pylog.metadata.image.image import Image
from pylog.metadata.image.record_versions import NEWEST_VERSION
from pylog.protocol import codec, messages, records

RECORDS_PER_BATCH = 1000
HEADER = b"\0\0\0\x03"  # key of a control record: version 0, then its type
FOOTER = b"\0\0\0\x04"

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


def encoded(record, metadata_version: int = NEWEST_VERSION) -> bytes:
    """Return a record's value for the log or a snapshot of a cluster with that metadata.version."""
    version = record_versions.record_version(type(record).__name__, metadata_version)
    return records.encode_record(version, record_versions.fitted(record, metadata_version))


def decoded(data, header) -> list:
    """Return the metadata records of the batch at the start of `data`, none for a control batch.
    Raises BatchError, ProtocolError.
    """
    found = []
    for _, _, _, value, _ in () if header.attributes & batch.CONTROL else batch.records(data):
        if value is None:
            raise records.ProtocolError(f"the batch at {header.base_offset} has an empty record")
        found.append(records.decode_record(value)[1])
    return found


def records_of(image: Image) -> list:
    """Return the smallest list of records that creates the image."""
    new = messages
    found = [new.FeatureLevelRecord(name=name, feature_level=level)
             for name, level in image.features.items()]
    found += [_broker_record(broker) for broker in image.brokers.values()]
    for topic in image.topics.values():
        found.append(new.TopicRecord(name=topic.name, topic_id=topic.id))
        found += [_partition_record(topic.id, index, state)
                  for index, state in enumerate(topic.partitions)]
    found += [new.ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)
              for (kind, resource), values in image.configs.items()
              for name, value in values.items()]
    found += [new.ClientQuotaRecord(
        entity=[new.ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name)
                for kind, name in entity], key=key, value=value)
        for entity, values in image.client_quotas.items() for key, value in values.items()]
    found += image.security.values()
    if image.next_producer_id:
        found.append(new.ProducerIdsRecord(broker_id=-1, next_producer_id=image.next_producer_id))
    return found


def _broker_record(broker):
    new = messages.RegisterBrokerRecord
    return new(
        broker_id=broker.id, incarnation_id=broker.incarnation_id, broker_epoch=broker.epoch,
        end_points=[new.BrokerEndpoint(**endpoint._asdict()) for endpoint in broker.endpoints],
        features=[new.BrokerFeature(
            name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in broker.features],
        rack=broker.rack, fenced=broker.fenced, log_dirs=list(broker.directories),
        in_controlled_shutdown=broker.in_controlled_shutdown,
        cordoned_log_dirs=None if broker.cordoned is None else list(broker.cordoned))


def _partition_record(topic_id: bytes, index: int, state):
    fields = {name: list(value) if isinstance(value, tuple) else value
              for name, value in state._asdict().items()}
    # Like Kafka, omit the two ELR lists (KIP-966) if they are empty.
    for name in ("eligible_leader_replicas", "last_known_elr"):
        fields[name] = fields[name] or None
    return messages.PartitionRecord(partition_id=index, topic_id=topic_id, **fields)


def write(folder: str, found: list, end_offset: int, epoch: int, now_ms: int) -> None:
    """Write a snapshot of all records below `end_offset`, then delete older snapshots."""
    older = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]
    name = f"{end_offset:020d}-{epoch:010d}.checkpoint"
    with whole_file(os.path.join(folder, name)) as file:
        offset = 0
        for chunk, attributes in _chunks(found, now_ms):
            file.write(batch.build(chunk, base_offset=offset, leader_epoch=epoch,
                                   attributes=attributes))
            offset += len(chunk)
    for other in older:
        if other != name:
            os.unlink(os.path.join(folder, other))


def _chunks(found: list, now_ms: int):
    """Yield (records of one batch, its attributes)."""
    header = messages.SnapshotHeaderRecord(version=0, last_contained_log_timestamp=now_ms)
    footer = messages.SnapshotFooterRecord(version=0)
    level = next((record.feature_level for record in found
                  if type(record).__name__ == "FeatureLevelRecord"
                  and record.name == "metadata.version"), NEWEST_VERSION)
    yield [(HEADER, codec.program("SnapshotHeaderRecord", 0).encode(header), now_ms, ())], \
        batch.CONTROL
    for first in range(0, len(found), RECORDS_PER_BATCH):
        chunk = found[first:first + RECORDS_PER_BATCH]
        yield [(None, encoded(record, level), now_ms, ()) for record in chunk], 0
    yield [(FOOTER, codec.program("SnapshotFooterRecord", 0).encode(footer), now_ms, ())], \
        batch.CONTROL


def newest(folder: str):
    """Return (path, end offset, epoch) of the newest snapshot, or None."""
    found = max((match for match in map(_NAME.fullmatch, _names(folder)) if match), default=None,
                key=lambda match: match.group())
    if found is None:
        return None
    return os.path.join(folder, found.group()), int(found[1]), int(found[2])


def _names(folder: str) -> list:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def read(path: str) -> list:
    """Return the records of a snapshot. Raises BatchError, ProtocolError if it is damaged."""
    with open(path, "rb") as file:
        data = memoryview(file.read())
    found, ended = [], False
    for position, header in batch.walk(data):
        if not batch.crc_ok(data[position:]):
            raise records.ProtocolError(f"{path}: a batch at {position} fails its checksum")
        found += decoded(data[position:], header)
        ended = bool(header.attributes & batch.CONTROL) and any(
            key == FOOTER for _, _, key, _, _ in batch.records(data[position:]))
    # A truncated snapshot also lacks topics, which would then be deleted.
    if not ended:
        raise records.ProtocolError(f"{path}: its footer is missing")
    return found
