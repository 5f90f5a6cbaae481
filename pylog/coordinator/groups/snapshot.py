"""Groups and offsets in `state.lmdb`, so that a start replays only the tail of each partition.

Owns: the keys that start with `cg/`.
Invariants: a partition's entries contain every record up to its applied offset, and possibly later
  ones, because replaying those again changes nothing; the applied offset is written after all
  entries up to it, and after the log is flushed up to it; losing the entries loses no data.
Source: none. The log is the source of truth, LMDB is the cache.

Keys: `cg/a` + partition: topic id, applied offset and its epoch. `cg/g` + partition + digest of the
group id: the group. `cg/m` + the same: marks a group with members. `cg/o` + the same + digest of
the topic: the offsets committed for it. `cg/c` + the same + digest of the member id: a member of a
consumer or Streams group. The values of such groups and members are their records. `cg/s` +
partition + digest of the group id: the records of a share group.
"""

import struct
from collections.abc import Iterator
from typing import Any

from pylog.coordinator.groups.consumer import records as consumer_records
from pylog.coordinator.groups.state import classic_records
from pylog.coordinator.groups.consumer.group import ConsumerGroup
from pylog.coordinator.groups.state.classic_group import (
    CLASSIC, NO_TIME, STREAMS, Committed, Group, Offset,
)
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.share.group import records_of
from pylog.coordinator.runtime.journal import Record
from pylog.coordinator.groups.state.group_store import Changes, Name
from pylog.metadata.image.state_store import Store

DIGEST_BYTES = 16
NO_ID = bytes(16)
NOTHING = -1, -1
APPLIED, GROUP, MEMBERS, OFFSETS, MEMBER = b"cg/a", b"cg/g", b"cg/m", b"cg/o", b"cg/c"
SHARE = b"cg/s"
EVERY = APPLIED, GROUP, MEMBERS, OFFSETS, MEMBER, SHARE
KINDS = b"\xff\xff"  # Instead of a classic record's version; the group type and its records follow.
MEMBERS_STEP = 500
Row = tuple[bytes, bytes | None]
_PARTITION = struct.Struct(">I")
_APPLIED = struct.Struct(">16sqi")
_LENGTH = struct.Struct(">H")
_SIZE = struct.Struct(">I")
_ENTRY = struct.Struct(">iqiqq16sH")


def _digest(text: str) -> bytes:
    from hashlib import blake2b  # Takes 1 ms, which a start does not need.

    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


class ShardSnapshot:
    """The entries of one partition of the internal topic. store: a state_store.Store."""

    def __init__(self, store: Store, topic_id: bytes, partition: int):
        self._store = store
        self._topic_id = topic_id
        self._partition = _PARTITION.pack(partition)

    def applied(self) -> tuple[int, int]:
        """Return (offset, epoch) of the last record that the entries contain; (-1, -1) for none."""
        with self._store.transaction() as txn:
            value = txn.get(APPLIED + self._partition)
        if value is None:
            return NOTHING
        topic_id, offset, epoch = _APPLIED.unpack(value)
        return (offset, epoch) if topic_id == self._topic_id else NOTHING

    def clear(self) -> None:
        """Delete all entries: they belong to another log."""
        with self._store.transaction() as txn:
            if not any(True for prefix in EVERY
                       for _ in _walk(txn, prefix + self._partition)):
                return
        with self._store.transaction(write=True) as txn:
            txn.delete(APPLIED + self._partition)
            for prefix in EVERY[1:]:
                _delete_all(txn, prefix + self._partition)

    def find(self, group_id: str) -> Committed | None:
        """Return the group with its offsets, or None."""
        with self._store.transaction() as txn:
            return self._read(txn, _digest(group_id))

    def restore(self, store: GroupShard) -> None:
        """Load the groups with members into an empty state machine; find() loads the others on
        demand.
        """
        for group in self.with_members():
            store.groups[group.id] = group
        with self._store.transaction() as txn:
            for _, value in _walk(txn, SHARE + self._partition):
                for key, record in _unpacked_records(value):
                    store.replay(key, record)
        store.changed.clear()  # Loaded state is in the snapshot.

    def with_members(self) -> list[Any]:
        """Return the groups that had members."""
        with self._store.transaction() as txn:
            found = [key[len(MEMBERS + self._partition):]
                     for key, _ in _walk(txn, MEMBERS + self._partition)]
            return [group for digest in found
                    if (group := self._read(txn, digest)) is not None]

    def names(self) -> list[Name]:
        """Return the names of all groups."""
        found = []
        with self._store.transaction() as txn:
            for _, value in _walk(txn, GROUP + self._partition):
                group_id, rest = _text(value)
                protocol_type, rest = _text(rest)
                found.append(Name(group_id, protocol_type, _kind(rest)))
        return found

    def _read(self, txn: Any, digest: bytes) -> Committed | None:
        value = txn.get(GROUP + self._partition + digest)
        if value is None:
            return None
        group_id, rest = _text(value)
        _, rest = _text(rest)
        group: Committed
        if _kind(rest) != CLASSIC:
            group = self._read_members(txn, digest, group_id, rest)
        else:
            group = classic_records.group_from(group_id, rest) if rest else Group(group_id, NO_TIME)
        for _, entries in _walk(txn, OFFSETS + self._partition + digest):
            topic, rest = _text(entries)
            group.offsets.update(_unpacked(topic, rest))
        return group

    def _read_members(self, txn: Any, digest: bytes, group_id: str, data: bytes) -> Any:
        """Load a consumer or Streams group."""
        kind, data = _text(data[len(KINDS):])
        group: Any = ConsumerGroup(group_id)
        if kind == STREAMS:
            # Imported here: few brokers have Streams groups.
            from pylog.coordinator.groups.streams.group import StreamsGroup

            group = StreamsGroup(group_id)
        replay = _records_of(group).replay
        for value in (data, *(value for _, value in _walk(txn, MEMBER + self._partition + digest))):
            for key, record in _unpacked_records(value):
                replay(key, record, lambda _: group, lambda _: group)
        return group

    def rows(self, store: GroupShard, changed: Changes) -> Iterator[list[Row]]:
        """Yield [(key, value or None)] for write(), one changed group at a time.

        changed: see GroupStore.
        """
        topics_of: dict[str, set[str | None]] = {}
        members_of: dict[str, list[str]] = {}
        for group_id, part in changed:
            if isinstance(part, tuple):
                members_of.setdefault(group_id, []).append(part[0])
                topics_of.setdefault(group_id, set()).add(None)
            else:
                topics_of.setdefault(group_id, set()).add(part)
        for group_id, topics in topics_of.items():
            yield self._group_rows(store, group_id, topics)
            members = members_of.get(group_id, [])
            for first in range(0, len(members), MEMBERS_STEP):
                yield self._member_rows(store, group_id, members[first:first + MEMBERS_STEP])

    def _member_rows(self, store: GroupShard, group_id: str, member_ids: list[str]) -> list[Row]:
        """Return the rows of members of a consumer or Streams group, or of a former one."""
        prefix = MEMBER + self._partition + _digest(group_id)
        group = store.groups.get(group_id)
        rows: list[Row] = []
        for member_id in member_ids:
            found = _records_of(group).member_state(group, member_id) \
                if group is not None and group.kind != CLASSIC else []
            rows.append((prefix + _digest(member_id), _packed_records(found) if found else None))
        return rows

    def _group_rows(self, store: GroupShard, group_id: str,
                    topics: set[str | None]) -> list[Row]:
        """Return the rows that update one changed group.

        topics: the topics whose offsets changed; None in it means the group itself.
        """
        prefix = self._partition + _digest(group_id)
        group = store.groups.get(group_id)
        if group is None:
            share = store.shares.get(group_id)
            return [(GROUP + prefix, None), (MEMBERS + prefix, None), (OFFSETS + prefix, None),
                    (SHARE + prefix,
                     None if share is None else _packed_records(list(records_of(share))))]
        head = _packed(group_id) + _packed(group.protocol_type or "")
        if group.kind != CLASSIC:
            value = KINDS + _packed(group.kind) + _packed_records(
                _records_of(group).group_state(group))
        else:
            has_record = group.generation > 0 or group.protocol_type is not None
            value = classic_records.group_value(group) if has_record else b""
        rows: list[Row] = [(GROUP + prefix, head + value),
                           (MEMBERS + prefix, b"" if group.members else None)]
        entries: dict[str, list[bytes]] = {topic: [] for topic in topics if topic is not None}
        if entries:
            for (topic, partition), entry in group.offsets.items():
                if topic in entries:
                    entries[topic].append(_packed_offset(partition, entry))
        for topic, parts in entries.items():
            rows.append((OFFSETS + prefix + _digest(topic),
                         _packed(topic) + b"".join(parts) if parts else None))
        return rows

    def write(self, rows: list[Row], applied: tuple[int, int] | None) -> None:
        """Write rows, and the applied offset if these are the last rows."""
        assert applied is None or min(applied) >= 0, applied
        with self._store.transaction(write=True) as txn:
            for key, value in rows:
                if value is not None:
                    txn.put(key, value)
                elif key.startswith(OFFSETS):
                    _delete_all(txn, key)
                else:
                    txn.delete(key)
            if applied is not None:
                txn.put(APPLIED + self._partition, _APPLIED.pack(self._topic_id, *applied))


def _records_of(group: Any) -> Any:
    """Return the module that encodes and replays the group's records."""
    if group.kind != STREAMS:
        return consumer_records
    # Imported here: few brokers have Streams groups.
    from pylog.coordinator.groups.streams import records as streams_records

    return streams_records


def _walk(txn: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    cursor = txn.cursor()
    if cursor.set_range(prefix):
        for key, value in cursor:
            if not key.startswith(prefix):
                return
            yield key, value


def _delete_all(txn: Any, prefix: bytes) -> None:
    for key in [key for key, _ in _walk(txn, prefix)]:
        txn.delete(key)


def _packed(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(raw)) + raw


def _text(data: bytes) -> tuple[str, bytes]:
    """Return (the string at the start, the remaining bytes)."""
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    return data[_LENGTH.size:end].decode("utf-8", "surrogatepass"), data[end:]


def _kind(data: bytes) -> str:
    """Return the group type from the last part of a group's row."""
    return _text(data[len(KINDS):])[0] if data.startswith(KINDS) else CLASSIC


def _packed_records(found: list[Record]) -> bytes:
    return b"".join(_SIZE.pack(len(part)) + part for key, value in found
                    for part in (key, value or b""))


def _unpacked_records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    parts, at = [], 0
    while at < len(data):
        end = at + _SIZE.size + _SIZE.unpack_from(data, at)[0]
        parts.append(data[at + _SIZE.size:end])
        at = end
    return zip(parts[::2], parts[1::2], strict=True)


def _packed_offset(partition: int, entry: Offset) -> bytes:
    raw = entry.metadata.encode("utf-8", "surrogatepass")
    return _ENTRY.pack(partition, entry.offset, entry.leader_epoch, entry.commit_ms,
                       entry.expire_ms, entry.topic_id, len(raw)) + raw


def _unpacked(topic: str, data: bytes) -> Iterator[tuple[tuple[str, int], Offset]]:
    at = 0
    while at < len(data):
        partition, offset, epoch, commit_ms, expire_ms, topic_id, length = \
            _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        metadata = data[at:at + length].decode("utf-8", "surrogatepass") if length else ""
        at += length
        yield (topic, partition), Offset(offset, epoch, metadata, commit_ms, expire_ms, topic_id)
