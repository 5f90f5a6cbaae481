"""Every setting of a Kafka 4.4 broker and of its topics, and pylog's own settings: one row each.

Owns: the rows of topic settings, Kafka's defaults and units, and the lookup by name; the rows of
  broker settings are in kafka_settings and own_settings.
Invariants: names are unique and sorted within a table; every default is within its own limits;
  effect `live`: pylog uses the value; effect `inert`: a Kafka setting that pylog ignores so far; a
  topic setting without its own row has the type, default and limits of its broker setting.
Source: the ConfigDef tables inside Kafka 4.4.0's jars.

A row: name, type, default, limits, importance, dynamic mode, effect, documentation.
  type: boolean, string, class, password, short, int, long, double, list (comma-separated words).
  default: None means unset.
  limits: "" for none; or alternatives separated by `|`, each a word, `low..high` with optional
    ends, or non-empty. Prefix `~`: words are case insensitive. Prefix `+`: a list with at least one
    word.
  dynamic mode: "" if read at startup only, "broker" if dynamic per broker, "cluster" if dynamic per
    broker or for all brokers.
"""

from .errors import ConfigError
from .kafka_settings import BROKER, LONG_MAX
from .own_settings import FORMER_NAMES, OWN

REQUIRED = "<required>"

# Kafka's defaults where pylog's differ. brokerd must start without any configuration, in a
# directory that survives a reboot, and must not be reachable from other machines. One reactor
# thread replaces several of Kafka's, and the system's sizing of receive buffers is faster (1 MB
# frames: 0.3 CPU seconds per GB instead of 0.58).
KAFKA_DEFAULTS = {
    "controller.listener.names": REQUIRED,
    "listeners": ("PLAINTEXT://:9092",),
    "log.dir": ("/tmp/kafka-logs",),
    "node.id": REQUIRED,
    "num.network.threads": 3,
    "process.roles": REQUIRED,
    "socket.receive.buffer.bytes": 102400,
}

# Kafka's internal settings, which it does not list.
INTERNAL = frozenset((
    "controller.performance.always.log.threshold.ms",
    "controller.performance.sample.period.ms",
    "group.consumer.assignor.offload.enable",
    "group.consumer.regex.refresh.interval.ms",
    "group.share.assignor.offload.enable",
    "group.share.dlq.manager.class.name",
    "group.share.initialize.retry.interval.ms",
    "group.share.persister.class.name",
    "group.streams.acceptable.recovery.lag",
    "group.streams.assignor.offload.enable",
    "group.streams.max.warmup.replicas",
    "group.streams.min.task.offset.interval.ms",
    "group.streams.num.warmup.replicas",
    "group.streams.task.offset.interval.ms",
    "internal.metadata.delete.delay.millis",
    "internal.metadata.log.segment.bytes",
    "internal.metadata.max.batch.size.in.bytes",
    "log.initial.task.delay.ms",
    "producer.id.expiration.check.interval.ms",
    "remote.log.index.file.cache.ttl.ms",
    "remote.log.manager.task.retry.backoff.max.ms",
    "remote.log.manager.task.retry.backoff.ms",
    "remote.log.manager.task.retry.jitter",
    "server.max.startup.time.ms",
    "share.coordinator.cold.partition.snapshot.interval.ms",
    "share.coordinator.state.topic.prune.interval.ms",
    "unclean.leader.election.interval.ms",
    "unstable.api.versions.enable",
    "unstable.feature.versions.enable",
    "internal.segment.bytes",
))

# Settings of Kafka's plug-ins. They are in no ConfigDef table, but common in server.properties.
PLUGIN = {
    "allow.everyone.if.no.acl.found": "With an authorizer: if true, resources without an ACL are "
                                      "open to all; false by default.",
    "super.users": "With an authorizer: principals that may do everything, separated by "
                   "semicolons: User:admin;User:node.",
}
PLUGIN_PREFIXES = ("listener.name.", "rlmm.config.", "rsm.config.", "config.providers.")

# Settings that Kafka 4 removed, and their replacements, for the error message.
REMOVED = {
    "advertised.host.name": "advertised.listeners",
    "advertised.port": "advertised.listeners",
    "broker.id.generation.enable": "node.id",
    "control.plane.listener.name": "controller.listener.names",
    "delegation.token.master.key": "delegation.token.secret.key",
    "host.name": "listeners",
    "inter.broker.protocol.version": "the metadata.version feature",
    "log.message.format.version": "remove it: batches have one format",
    "log.message.timestamp.difference.max.ms": "log.message.timestamp.before.max.ms",
    "offsets.topic.min.isr": "min.insync.replicas of that topic",
    "password.encoder.cipher.algorithm": "nothing: AES-256-GCM",
    "password.encoder.iterations": "nothing: scrypt",
    "password.encoder.key.length": "nothing: AES-256-GCM",
    "password.encoder.keyfactory.algorithm": "nothing: scrypt",
    "port": "listeners",
    "zookeeper.connect": "process.roles",
    "zookeeper.connection.timeout.ms": "process.roles",
    "zookeeper.session.timeout.ms": "process.roles",
}

# Topic setting -> broker settings that provide its default; the first that is set is used.
TOPIC_DEFAULTS = (
    ("cleanup.policy", ("log.cleanup.policy",)),
    ("compression.gzip.level", ("compression.gzip.level",)),
    ("compression.lz4.level", ("compression.lz4.level",)),
    ("compression.type", ("compression.type",)),
    ("compression.zstd.level", ("compression.zstd.level",)),
    ("delete.retention.ms", ("log.cleaner.delete.retention.ms",)),
    ("errors.deadletterqueue.group.enable", ()),
    ("file.delete.delay.ms", ("log.segment.delete.delay.ms",)),
    ("flush.messages", ("log.flush.interval.messages",)),
    ("flush.ms", ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")),
    ("follower.replication.throttled.replicas", ()),
    ("index.interval.bytes", ("log.index.interval.bytes",)),
    ("internal.segment.bytes", ()),
    ("leader.replication.throttled.replicas", ()),
    ("local.retention.bytes", ("log.local.retention.bytes",)),
    ("local.retention.ms", ("log.local.retention.ms",)),
    ("max.compaction.lag.ms", ("log.cleaner.max.compaction.lag.ms",)),
    ("max.decompressed.message.bytes", ("max.decompressed.message.bytes",)),
    ("max.message.bytes", ("message.max.bytes",)),
    ("message.timestamp.after.max.ms", ("log.message.timestamp.after.max.ms",)),
    ("message.timestamp.before.max.ms", ("log.message.timestamp.before.max.ms",)),
    ("message.timestamp.type", ("log.message.timestamp.type",)),
    ("min.cleanable.dirty.ratio", ("log.cleaner.min.cleanable.ratio",)),
    ("min.compaction.lag.ms", ("log.cleaner.min.compaction.lag.ms",)),
    ("min.insync.replicas", ("min.insync.replicas",)),
    ("preallocate", ("log.preallocate",)),
    ("remote.copy.lag.bytes", ("log.remote.copy.lag.bytes",)),
    ("remote.copy.lag.ms", ("log.remote.copy.lag.ms",)),
    ("remote.log.copy.disable", ()),
    ("remote.log.delete.on.disable", ()),
    ("remote.storage.enable", ()),
    ("retention.bytes", ("log.retention.bytes",)),
    ("retention.ms", ("log.retention.ms", "log.retention.minutes", "log.retention.hours")),
    ("segment.bytes", ("log.segment.bytes",)),
    ("segment.index.bytes", ("log.index.size.max.bytes",)),
    ("segment.jitter.ms", ("log.roll.jitter.ms", "log.roll.jitter.hours")),
    ("segment.ms", ("log.roll.ms", "log.roll.hours")),
    ("unclean.leader.election.enable", ("unclean.leader.election.enable",)),
)

# Topic settings without a broker setting, or that differ from it.
TOPIC_OWN = (
    ("errors.deadletterqueue.group.enable", "boolean", False, "", "medium", "", "live",
     "Share groups may have this topic as their dead-letter topic."),
    ("flush.ms", "long", LONG_MAX, "0..", "medium", "", "live",
     "Age of an unflushed record at which a partition is flushed."),
    ("follower.replication.throttled.replicas", "list", (), "", "medium", "", "live",
     "Follower replicas under the replication quota, partition:broker, or * for all."),
    ("internal.segment.bytes", "int", None, "1..", "medium", "", "live",
     "Replaces segment.bytes and its lower limit (tests)."),
    ("leader.replication.throttled.replicas", "list", (), "", "medium", "", "live",
     "Leader replicas under the replication quota, partition:broker, or * for all."),
    ("remote.log.copy.disable", "boolean", False, "", "medium", "", "inert",
     "A tiered topic copies no more segments to the tier."),
    ("remote.log.delete.on.disable", "boolean", False, "", "medium", "", "inert",
     "Deletes tiered segments when tiering is switched off."),
    ("remote.storage.enable", "boolean", False, "", "medium", "", "live",
     "Tiered storage for this topic; pylog rejects true."),
    ("retention.ms", "long", 604800000, "-1..", "medium", "", "live",
     "Age at which segments are deleted; -1 means no limit."),
    ("segment.jitter.ms", "long", 0, "0..", "medium", "", "live",
     "Spread of the age at which segments are closed."),
    ("segment.ms", "long", 604800000, "1..", "medium", "", "live",
     "Age at which a segment is closed and a new one is started."),
)

# Dynamic settings without a row in Kafka's tables: DescribeConfigs lists them if they are set, and
# a file cannot set them (KIP-73).
RATES = (
    ("follower.replication.throttled.rate", "long", None, "0..", "medium", "cluster", "live",
     "Bytes a second that a broker fetches of replicas under the replication quota."),
    ("leader.replication.throttled.rate", "long", None, "0..", "medium", "cluster", "live",
     "Bytes a second that a broker sends of replicas under the replication quota."),
    ("replica.alter.log.dirs.io.max.bytes.per.second", "long", None, "0..", "medium", "cluster",
     "live", "Bytes a second of all replicas that move between the broker's log directories."),
)

# Units of settings whose names do not end in their unit.
UNITS = {
    "decompressed.batch.bytes.max": "bytes",
    "internal.metadata.delete.delay.millis": "ms",
    "internal.metadata.max.batch.size.in.bytes": "bytes",
    "kafka.metrics.polling.interval.secs": "seconds",
    "log.cleaner.dedupe.buffer.size": "bytes",
    "log.cleaner.io.buffer.size": "bytes",
    "log.cleaner.io.max.bytes.per.second": "bytes/second",
    "max.connection.creation.rate": "connections/second",
    "offsets.load.buffer.size": "bytes",
    "remote.log.manager.copy.max.bytes.per.second": "bytes/second",
    "remote.log.manager.fetch.max.bytes.per.second": "bytes/second",
    "sasl.kerberos.min.time.before.relogin": "ms",
    "sasl.server.max.receive.size": "bytes",
    "share.coordinator.load.buffer.size": "bytes",
    "transaction.state.log.load.buffer.size": "bytes",
}
UNIT_SUFFIXES = ("ms", "bytes", "seconds", "minutes", "hours")


class Setting:
    """One row with its names. `synonyms`: the broker settings that provide a topic setting's
    default.
    """

    __slots__ = ("name", "type", "default", "limits", "importance", "dynamic", "effect", "doc",
                 "synonyms")

    def __init__(self, row, synonyms=()):
        (self.name, self.type, self.default, self.limits, self.importance, self.dynamic,
         self.effect, self.doc) = row
        self.synonyms = synonyms

    @property
    def unit(self) -> str:
        """Return the unit of the value, "" for a plain number or text."""
        last = self.name.rpartition(".")[2]
        return UNITS.get(self.name, last if last in UNIT_SUFFIXES else "")

    @property
    def kafka_default(self):
        """Return Kafka's default, which is pylog's unless KAFKA_DEFAULTS has the name."""
        return KAFKA_DEFAULTS.get(self.name, self.default)


_BROKER = {row[0]: row for table in (BROKER, OWN) for row in table}
_RATES = {row[0]: row for row in RATES}
_TOPIC = dict(TOPIC_DEFAULTS)
_TOPIC_OWN = {row[0]: row for row in TOPIC_OWN}


def broker_names() -> list[str]:
    """Return the sorted names of all broker settings, including pylog's own."""
    return sorted(_BROKER)


def topic_names() -> list[str]:
    """Return the sorted names of all topic settings."""
    return sorted(_TOPIC)


def current_name(name: str) -> str:
    """Return the present name of a setting that was renamed; other names are returned unchanged."""
    return FORMER_NAMES.get(name, name)


def with_current_names(texts: dict) -> dict:
    """Return {present name: text}. Raises ConfigError if a setting is given under both names."""
    for former in FORMER_NAMES.keys() & texts.keys():
        if FORMER_NAMES[former] in texts:
            raise ConfigError(f"{former} is the former name of {FORMER_NAMES[former]}: both are "
                              f"set. Remove {former}")
    return {current_name(name): text for name, text in texts.items()}


def is_broker(name: str) -> bool:
    return name in _BROKER


def is_topic(name: str) -> bool:
    return name in _TOPIC


def is_shown(name: str) -> bool:
    """Return True if a topic or group setting is listed even if it is not set. Kafka does not list
    its internal test settings.
    """
    return name not in INTERNAL


def rate_names() -> list[str]:
    """Return the sorted names of RATES."""
    return sorted(_RATES)


def is_rate(name: str) -> bool:
    """Return True if RATES has the name."""
    return name in _RATES


def rate(name: str) -> Setting:
    """Return the setting of RATES with this name. Raises KeyError."""
    return Setting(_RATES[name])


def broker(name: str) -> Setting:
    """Return the broker setting with this name. Raises KeyError."""
    return Setting(_BROKER[name])


def topic(name: str) -> Setting:
    """Return the topic setting with this name. Raises KeyError."""
    synonyms = _TOPIC[name]
    own = _TOPIC_OWN.get(name)
    # Without its own row, a topic setting has the facts of its broker setting.
    row = own or (name, *_BROKER[synonyms[0]][1:4], "medium", "", *_BROKER[synonyms[0]][6:])
    return Setting(row, synonyms)
