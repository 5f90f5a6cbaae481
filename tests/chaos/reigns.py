"""Reads from disk which broker led a partition when, and what each batch contains.

Owns: nothing; the files belong to brokers.
Invariants: evidence comes from disks only, never from a broker's response; leaderships of a
  partition are ordered by epoch, appends by offset.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pylog._native.records import batch
from pylog.metadata.image import image as images
from pylog.metadata.image.snapshot import decoded
from tests.chaos.history import Partition

METADATA = Partition("__cluster_metadata", 0)
KINDS = {"TopicRecord", "PartitionRecord", "PartitionChangeRecord", "RemoveTopicRecord"}
SEQUENCES = 1 << 31
LENGTH_AT, LENGTH_END = 8, 12  # Byte positions in a batch header.


class Leadership(NamedTuple):
    """A leader epoch. leader: -1 if none. began_s: wall clock."""

    epoch: int
    leader: int
    began_s: float


class Append(NamedTuple):
    """A batch. epoch: of the leader that appended it. is_control: a control batch."""

    first: int
    last: int
    epoch: int
    producer: int
    producer_epoch: int
    sequence: int
    last_sequence: int
    is_control: bool


def batches_of(data: Path, place: Partition) -> Iterator[tuple[batch.Header, bytes]]:
    """Yield the batches of one replica, up to its preallocated space."""
    for path in sorted((data / f"{place.topic}-{place.partition}").glob("*.log")):
        whole, at = path.read_bytes(), 0
        while len(whole) - at >= batch.HEADER_BYTES and any(whole[at + LENGTH_AT:at + LENGTH_END]):
            header = batch.header(whole[at:at + batch.HEADER_BYTES])
            end = at + LENGTH_END + header.batch_length
            if end > len(whole):
                break
            yield header, whole[at:end]
            at = end


def leaderships_of(data: Path) -> dict[Partition, list[Leadership]]:
    """Return the leaderships of each existing partition. data: the controller's directory."""
    image = images.Image()
    found: dict[Partition, list[Leadership]] = {}
    for header, bytes_ in batches_of(data, METADATA):
        last = header.base_offset + header.last_offset_delta
        for record in decoded(bytes_, header):
            if type(record).__name__ not in KINDS:
                continue
            delta = images.advance(image, [record], last, header.leader_epoch)
            image = delta.after
            for topic_id in delta.topic_ids:
                _follow(found, image.topics_by_id.get(topic_id), header.max_timestamp / 1000)
    return found


def _follow(found: dict, topic, now_s: float) -> None:
    for index, state in enumerate(topic.partitions if topic is not None else ()):
        if state is None:
            continue
        reigns = found.setdefault(Partition(topic.name, index), [])
        if not reigns or reigns[-1].epoch != state.leader_epoch:
            reigns.append(Leadership(state.leader_epoch, state.leader, now_s))


def appends_of(data: Path, place: Partition) -> list[Append]:
    """Return the appends of a partition. data: directory of a broker with a replica."""
    return [Append(
        header.base_offset, header.base_offset + header.last_offset_delta, header.leader_epoch,
        header.producer_id, header.producer_epoch, header.base_sequence,
        (header.base_sequence + header.last_offset_delta) % SEQUENCES,
        bool(header.attributes & batch.CONTROL)) for header, _ in batches_of(data, place)]
