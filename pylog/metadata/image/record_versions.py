"""Selects the version of each metadata record from the cluster's metadata.version.

Owns: the table of versions.
Invariants: a record is written in the newest version that metadata.version has, so that the oldest
  permitted broker can read it; fields that an older version lacks are omitted.
Source: Kafka's MetadataVersion; KIP-584, KIP-778.
"""

NEWEST_VERSION = 33      # 4.4-IV2
OLDEST_VERSION = 7       # 3.3-IV3

# Record -> [(first metadata.version, its record version, fields it added)], newest first. Records
# not listed here have one version.
_OLDER = {
    "RegisterBrokerRecord": (
        (30, 4, ("cordoned_log_dirs",)), (17, 3, ("log_dirs",)),
        (8, 2, ("is_migrating_zk_broker",)), (7, 1, ())),
    "BrokerRegistrationChangeRecord": (
        (30, 3, ("cordoned_log_dirs",)), (17, 2, ("log_dirs",)), (7, 1, ())),
    "PartitionRecord": (
        (23, 2, ("eligible_leader_replicas", "last_known_elr")), (17, 1, ("directories",)),
        (7, 0, ())),
    "PartitionChangeRecord": (
        (23, 2, ("eligible_leader_replicas", "last_known_elr")), (17, 1, ("directories",)),
        (7, 0, ())),
}


def record_version(kind: str, metadata_version: int) -> int:
    """Return the version in which records of that name are written."""
    for first, version, _ in _OLDER.get(kind, ()):
        if metadata_version >= first:
            return version
    return 0


def fitted(record, metadata_version: int):
    """Return the record, or a copy without the fields that metadata.version lacks."""
    lost = [field for first, _, fields in _OLDER.get(type(record).__name__, ())
            if metadata_version < first for field in fields]
    if not lost:
        return record
    kind = type(record)
    default = kind()
    return kind(**{field: getattr(default if field in lost else record, field)
                   for field in kind.__slots__})
