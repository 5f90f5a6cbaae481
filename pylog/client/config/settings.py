"""The client's settings: a table with Kafka's names, and the values of one client object.

Owns: the table.
Invariants: names are Kafka's (librdkafka's if Kafka has none; others begin with `pylog.`); an
  unknown name is rejected with the most similar known one; values are checked once, at
  construction, and do not change afterwards.
Source: Kafka 4.3's ProducerConfig, ConsumerConfig, AdminClientConfig; librdkafka's CONFIGURATION.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pylog.client.config import aliases, durations
from pylog.client.errors import ConfigError

ALL, CONSUMER, PRODUCER, ADMIN = "all", "consumer", "producer", "admin"
SHARE_CONSUMER = "share_consumer"
READERS = f"{CONSUMER} {SHARE_CONSUMER}"
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class Setting(NamedTuple):
    """One setting. kind: type of the value; values: those allowed, or (lowest, highest)."""

    name: str
    roles: tuple[str, ...]
    kind: type
    default: Any
    values: tuple[Any, ...] = ()


def _row(name: str, roles: str, kind: type, default: Any, *values: Any) -> Setting:
    return Setting(name, tuple(roles.split()), kind, default, values)


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

TABLE = (
    _row("bootstrap.servers", ALL, list, None),
    _row("client.id", ALL, str, "pylog"),
    _row("client.rack", READERS, str, ""),
    _row("request.timeout.ms", ALL, int, 30_000, 1, INT32_MAX),
    _row("default.api.timeout.ms", ALL, int, 60_000, 1, INT32_MAX),
    _row("metadata.max.age.ms", ALL, int, 300_000, 0, INT64_MAX),
    _row("reconnect.backoff.ms", ALL, int, 50, 0, INT32_MAX),
    _row("reconnect.backoff.max.ms", ALL, int, 1000, 0, INT32_MAX),
    _row("retry.backoff.ms", ALL, int, 100, 0, INT32_MAX),
    _row("retry.backoff.max.ms", ALL, int, 1000, 0, INT32_MAX),
    _row("connections.max.idle.ms", ALL, int, 540_000, -1, INT64_MAX),
    _row("socket.connection.setup.timeout.ms", ALL, int, 10_000, 1, INT32_MAX),
    _row("send.buffer.bytes", ALL, int, -1, -1, INT32_MAX),
    _row("receive.buffer.bytes", ALL, int, -1, -1, INT32_MAX),
    _row("security.protocol", ALL, str, "PLAINTEXT",
         "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    _row("sasl.mechanism", ALL, str, "PLAIN", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512",
         "OAUTHBEARER", "GSSAPI"),
    _row("sasl.username", ALL, str, None),
    _row("sasl.password", ALL, str, None),
    _row("pylog.sasl.tokenauth", ALL, bool, False),
    _row("sasl.kerberos.service.name", ALL, str, "kafka"),
    _row("sasl.kerberos.keytab", ALL, str, None),
    _row("sasl.kerberos.principal", ALL, str, None),
    _row("oauth_cb", ALL, object, None),
    _row("sasl.oauthbearer.token.endpoint.url", ALL, str, None),
    _row("sasl.oauthbearer.client.credentials.client.id", ALL, str, None),
    _row("sasl.oauthbearer.client.credentials.client.secret", ALL, str, None),
    _row("sasl.oauthbearer.scope", ALL, str, None),
    _row("sasl.oauthbearer.jwt.retriever.class", ALL, str, "DefaultJwtRetriever"),
    _row("sasl.oauthbearer.assertion.file", ALL, str, None),
    _row("sasl.oauthbearer.assertion.private.key.file", ALL, str, None),
    _row("sasl.oauthbearer.assertion.private.key.passphrase", ALL, str, None),
    _row("sasl.oauthbearer.assertion.algorithm", ALL, str, "RS256", "RS256", "ES256"),
    _row("sasl.oauthbearer.assertion.template.file", ALL, str, None),
    _row("sasl.oauthbearer.assertion.claim.iss", ALL, str, None),
    _row("sasl.oauthbearer.assertion.claim.sub", ALL, str, None),
    _row("sasl.oauthbearer.assertion.claim.aud", ALL, str, None),
    _row("sasl.oauthbearer.assertion.claim.exp.seconds", ALL, int, 300, 0, 86_400),
    _row("sasl.oauthbearer.assertion.claim.nbf.seconds", ALL, int, 60, 0, 3_600),
    _row("sasl.oauthbearer.assertion.claim.jti.include", ALL, bool, False),
    _row("https.ca.location", ALL, str, None),
    _row("ssl.ca.location", ALL, str, None),
    _row("ssl.keystore.type", ALL, str, "JKS", "JKS", "PKCS12", "PEM"),
    _row("ssl.keystore.location", ALL, str, None),
    _row("ssl.keystore.password", ALL, str, None),
    _row("ssl.keystore.key", ALL, str, None),
    _row("ssl.keystore.certificate.chain", ALL, str, None),
    _row("ssl.truststore.type", ALL, str, "JKS", "JKS", "PKCS12", "PEM"),
    _row("ssl.truststore.location", ALL, str, None),
    _row("ssl.truststore.password", ALL, str, None),
    _row("ssl.truststore.certificates", ALL, str, None),
    _row("ssl.certificate.location", ALL, str, None),
    _row("ssl.key.location", ALL, str, None),
    _row("ssl.key.password", ALL, str, None),
    _row("ssl.endpoint.identification.algorithm", ALL, str, "https", "https", ""),
    _row("ssl.context", ALL, object, None),
    _row("statistics.interval.ms", f"{PRODUCER} {CONSUMER}", int, 0, 0, INT32_MAX),
    _row("stats_cb", f"{PRODUCER} {CONSUMER}", object, None),
    _row("interceptor.classes", ALL, list, ()),
    _row("allow.auto.create.topics", READERS, bool, True),
    _row("group.id", READERS, str, None),
    _row("group.instance.id", CONSUMER, str, None),
    _row("group.protocol", CONSUMER, str, "classic", "classic", "consumer"),
    _row("group.remote.assignor", CONSUMER, str, None),
    _row("session.timeout.ms", CONSUMER, int, 45_000, 1, INT32_MAX),
    _row("heartbeat.interval.ms", CONSUMER, int, 3_000, 1, INT32_MAX),
    _row("max.poll.interval.ms", READERS, int, 300_000, 1, INT32_MAX),
    _row("max.poll.records", READERS, int, 500, 1, INT32_MAX),
    _row("partition.assignment.strategy", CONSUMER, list, ("range", "cooperative-sticky")),
    _row("enable.auto.commit", CONSUMER, bool, True),
    _row("enable.auto.offset.store", CONSUMER, bool, True),
    _row("auto.commit.interval.ms", CONSUMER, int, 5_000, 0, INT32_MAX),
    _row("auto.offset.reset", CONSUMER, str, "latest", "earliest", "latest", "none",
         "by_duration:<duration>"),
    _row("isolation.level", CONSUMER, str, "read_uncommitted",
         "read_uncommitted", "read_committed"),
    _row("check.crcs", READERS, bool, True),
    _row("exclude.internal.topics", CONSUMER, bool, True),
    _row("fetch.min.bytes", READERS, int, 1, 0, INT32_MAX),
    _row("fetch.max.bytes", READERS, int, 52_428_800, 0, INT32_MAX),
    _row("fetch.max.wait.ms", READERS, int, 500, 0, INT32_MAX),
    _row("max.partition.fetch.bytes", CONSUMER, int, 1_048_576, 0, INT32_MAX),
    _row("queued.max.messages.kbytes", CONSUMER, int, 65_536, 1, INT32_MAX),
    _row("key.deserializer", READERS, object, None),
    _row("value.deserializer", READERS, object, None),
    _row("share.acknowledgement.mode", SHARE_CONSUMER, str, "implicit", "implicit", "explicit"),
    _row("share.acquire.mode", SHARE_CONSUMER, str, "batch_optimized",
         "batch_optimized", "record_limit"),
    _row("key.serializer", PRODUCER, object, None),
    _row("value.serializer", PRODUCER, object, None),
    _row("acks", PRODUCER, str, "all", "all", "-1", "0", "1"),
    _row("linger.ms", PRODUCER, int, 5, 0, INT32_MAX),
    # Java: 16,384, librdkafka: 1,000,000. A batch costs as much as 200 records; its memory is
    # allocated as it fills. Records of 1 KiB take an eighth less CPU than with 131,072, and no less
    # with 524,288, when a batch no longer fits into the processor's cache (bench.client --produce).
    _row("batch.size", PRODUCER, int, 262_144, 0, INT32_MAX),
    _row("buffer.memory", PRODUCER, int, 33_554_432, 0, INT64_MAX),
    _row("max.block.ms", PRODUCER, int, 60_000, 0, INT64_MAX),
    _row("max.request.size", PRODUCER, int, 1_048_576, 0, INT32_MAX),
    _row("compression.type", PRODUCER, str, "none", *CODECS),
    _row("compression.gzip.level", PRODUCER, int, -1, -1, 9),
    _row("compression.lz4.level", PRODUCER, int, 9, 1, 17),
    _row("compression.zstd.level", PRODUCER, int, 3, -131_072, 22),
    _row("retries", PRODUCER, int, INT32_MAX, 0, INT32_MAX),
    _row("delivery.timeout.ms", PRODUCER, int, 120_000, 0, INT32_MAX),
    _row("max.in.flight.requests.per.connection", PRODUCER, int, 5, 1, INT32_MAX),
    _row("enable.idempotence", PRODUCER, bool, True),
    _row("transactional.id", PRODUCER, str, None),
    _row("transaction.timeout.ms", PRODUCER, int, 60_000, 1, INT32_MAX),
    _row("partitioner.class", PRODUCER, object, None),
    _row("partitioner.ignore.keys", PRODUCER, bool, False),
    _row("partitioner.adaptive.partitioning.enable", PRODUCER, bool, True),
    _row("partitioner.availability.timeout.ms", PRODUCER, int, 0, 0, INT64_MAX),
)
ROWS = {row.name: row for row in TABLE}
assert len(ROWS) == len(TABLE), "a name stands twice"


class Settings:
    """The setting values of one client object: `settings["fetch.min.bytes"]`."""

    def __init__(self, role: str, given: Mapping[str, Any] | None = None, **more: Any):
        """Check the values. given: names with dots, more: names with underscores. Raises
        ConfigError.
        """
        self.role = role
        self.values = {row.name: row.default for row in TABLE
                       if role in row.roles or ALL in row.roles}
        self.given: set[str] = set()
        # Other clients' settings that have no effect here.
        self.idle: list[str] = []
        self.tls: tuple[Any, Any] | None = None  # TLS context, and the files' state at that time.
        self.tokens: Any = None  # A TokenSource, if tokens are used.
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"settings must be a mapping or keywords, not {given!r:.100}")
        words = {_dotted(name): value for name, value in more.items()}
        twice = words.keys() & (given or {}).keys()
        if twice:
            raise ConfigError(f"{min(twice)} is given twice")
        found, self.idle = aliases.translated({**(given or {}), **words})
        for name, value in found.items():
            row = self._row(name)
            self.given.add(row.name)
            self.values[row.name] = _checked(row, aliases.plain_value(name, value))
        if not self.values["bootstrap.servers"]:
            raise ConfigError("bootstrap.servers is missing")
        servers(self.values["bootstrap.servers"])
        if self["security.protocol"].startswith("SASL"):
            self._check_login()

    def _check_login(self) -> None:
        if self["sasl.mechanism"] == "GSSAPI":
            if self["sasl.kerberos.keytab"] and not self["sasl.kerberos.principal"]:
                raise ConfigError("sasl.kerberos.keytab needs sasl.kerberos.principal")
            return
        if self["sasl.mechanism"] != "OAUTHBEARER":
            if self["sasl.username"] is None or self["sasl.password"] is None:
                raise ConfigError("SASL needs sasl.username and sasl.password")
            return
        # Imported lazily, with its dependencies: only clients with tokens need it.
        from pylog.client.config.oauth_tokens import TokenSource

        self.tokens = TokenSource(self.__getitem__)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def seconds(self, name: str) -> float:
        """Return a setting in ms as seconds."""
        return self.values[name] / 1000

    def _row(self, name: str) -> Setting:
        if name in self.values:
            return ROWS[name]
        # Reject it with the most similar known name.
        near = aliases.nearest(name, self.values)
        remedy = f"did you mean {near!r}?" if near else ""
        if name in ROWS:
            remedy = f"it is one of the {' and '.join(ROWS[name].roles)}"
        raise ConfigError(f"{name!r} is not a setting of the {self.role}", remedy=remedy)


def servers(listed: list[str]) -> list[tuple[str, int]]:
    """Parse (host, port) of each `host:port` or `[v6]:port`. Raises ConfigError."""
    found = []
    for text in listed:
        host, _, port = text.rpartition("://")[2].rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(f"bootstrap.servers: {text!r} is not host:port")
        found.append((host.strip("[]"), int(port)))
    return found


def _dotted(name: str) -> str:
    return name.replace("_", ".")


def _checked(row: Setting, value: Any) -> Any:
    if value is None or row.kind is object:
        return value
    convert = _CONVERSIONS[row.kind]
    made = convert(row, value)
    if row.kind is int:
        low, high = row.values
        if not low <= made <= high:
            raise ConfigError(f"{row.name}={made}", remedy=f"allowed are {low} to {high}")
    elif row.values and made not in row.values and not _is_duration(row, made):
        raise ConfigError(f"{row.name}={made!r}",
                          remedy=f"allowed are {', '.join(map(str, row.values))}")
    return made


def _is_duration(row: Setting, value: Any) -> bool:
    """Return True for by_duration:PT1H (KIP-1106). Raises ConfigError if the duration is invalid.
    """
    kind, sign, text = str(value).partition(":")
    if row.name != "auto.offset.reset" or not sign or kind != "by_duration":
        return False
    try:
        durations.milliseconds(text)
    except ValueError as error:
        raise ConfigError(f"{row.name}={value}: {error}") from None
    return True


def _integer(row: Setting, value: Any) -> int:
    try:
        if isinstance(value, bool) or isinstance(value, float) and not value.is_integer():
            raise ValueError
        return int(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{row.name}={value!r} is not a whole number") from None


def _truth(row: Setting, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    found = {"true": True, "false": False}.get(str(value).lower())
    if found is None:
        raise ConfigError(f"{row.name}={value!r} is neither true nor false")
    return found


def _text(row: Setting, value: Any) -> str:
    text = str(value)
    for allowed in row.values:
        if text.lower() == str(allowed).lower():
            return str(allowed)
    return text


def _several(row: Setting, value: Any) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return list(value) if isinstance(value, (list, tuple)) else [value]


_CONVERSIONS: dict[type, Any] = {int: _integer, bool: _truth, str: _text, list: _several}
