"""Topic settings for the native log, with Kafka's names.

Owns: Kafka's defaults, for settings that a caller omits.
Invariants: native_settings returns every name of DEFAULTS.
Source: Kafka 4.4's topic configuration.
"""

TYPE_CHECKING = False  # typing.TYPE_CHECKING would import typing: 6 ms of startup time.
if TYPE_CHECKING:
    from typing import Any

LONG_MAX = 2**63 - 1

DEFAULTS = {
    "cleanup.policy": ("delete",),
    "compression.gzip.level": -1,
    "compression.lz4.level": 9,
    "compression.type": "producer",
    "compression.zstd.level": 3,
    "consume.flushed.records.only": False,
    "decompressed.batch.bytes.max": 104857600,
    "file.delete.delay.ms": 60000,
    "flush.messages": LONG_MAX,
    "flush.ms": LONG_MAX,
    "index.interval.bytes": 4096,
    "internal.segment.bytes": None,
    "log.flush.acks.all.enable": True,
    "max.compaction.lag.ms": LONG_MAX,
    "max.message.bytes": 1048588,
    "message.timestamp.after.max.ms": 3600000,
    "message.timestamp.before.max.ms": LONG_MAX,
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": 1,
    "preallocate": False,
    "producer.id.expiration.ms": 86400000,
    "records.validate.enable": True,
    "replica.flush.before.fetch.enable": False,
    "replica.lag.time.max.ms": 30000,
    "retention.bytes": -1,
    "retention.ms": 604800000,
    "segment.bytes": 1073741824,
    "segment.index.bytes": 10485760,
    "segment.jitter.ms": 0,
    "segment.ms": 604800000,
}

CODECS = {"producer": -1, "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def native_settings(settings: "dict[str, Any]") -> "dict[str, Any]":
    """Return the given settings with DEFAULTS for the others, and the derived `codec` (-1 for the
    producer's) and `level` (None for the codec's default).
    """
    values: dict[str, Any] = dict(DEFAULTS)
    values.update((name, value) for name, value in settings.items() if name in DEFAULTS)
    if isinstance(values["cleanup.policy"], str):
        values["cleanup.policy"] = values["cleanup.policy"].split(",")
    values["segment.bytes"] = values["internal.segment.bytes"] or values["segment.bytes"]
    if "compact" in values["cleanup.policy"]:
        # KIP-354: the active segment is never compacted, so it must roll in time.
        values["segment.ms"] = min(values["segment.ms"], values["max.compaction.lag.ms"])
    kind = values["compression.type"]
    level = values.get(f"compression.{kind}.level")
    values["codec"] = CODECS[kind]
    values["level"] = None if kind == "gzip" and level == -1 else level
    return values
