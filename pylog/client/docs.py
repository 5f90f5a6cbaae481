"""Generate the settings reference and the type stubs from the client's tables.

Owns: nothing; docs/reference/client-settings.md, options.pyi and admin/blocking.pyi are generated,
  never edited.
Invariants: the same tables give the same bytes; every setting has a description.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pylog.client.admin import (
    admin, blocking, groups as admin_groups, security as admin_security,
    share_groups as admin_share_groups, streams_groups as admin_streams_groups,
    transactions as admin_transactions,
)
from pylog.client.config.aliases import ALIASES, UNITS, WITHOUT_EFFECT
from pylog.client.config.settings import (
    ADMIN, ALL, CONSUMER, INT32_MAX, INT64_MAX, PRODUCER, SHARE_CONSUMER, TABLE, Setting,
)

ROLES = (PRODUCER, CONSUMER, SHARE_CONSUMER, ADMIN)
_MEANINGS = {
    "bootstrap.servers": "Brokers for the first connection, as `host:port`; the client discovers "
                         "the others.",
    "client.id": "The client's name in the broker's quotas, metrics and logs.",
    "client.rack": "The client's rack: followers in the same rack may serve it (KIP-392).",
    "request.timeout.ms": "A request without a response within this time fails and is retried.",
    "default.api.timeout.ms": "Timeout of calls that have no timeout argument.",
    "metadata.max.age.ms": "Topics and brokers are refreshed after this time.",
    "reconnect.backoff.ms": "The pause before the second attempt to connect; it doubles.",
    "reconnect.backoff.max.ms": "The longest pause between attempts to connect.",
    "retry.backoff.ms": "The pause before a request is retried; it doubles.",
    "retry.backoff.max.ms": "The longest pause before a request is retried.",
    "connections.max.idle.ms": "Idle connections are closed after this time; -1 keeps them open.",
    "socket.connection.setup.timeout.ms": "Timeout of a TCP connection including its login.",
    "send.buffer.bytes": "SO_SNDBUF; -1 uses the system's default.",
    "receive.buffer.bytes": "SO_RCVBUF; -1 uses the system's default.",
    "security.protocol": "Selects plain text or TLS, with or without a login.",
    "sasl.mechanism": "The login mechanism.",
    "sasl.username": "The user that logs in.",
    "sasl.password": "The user's password; never shown in errors or logs.",
    "pylog.sasl.tokenauth":
        "The user is the id of a delegation token, and the password is its HMAC (SCRAM).",
    "sasl.kerberos.keytab": "The keytab with which the client gets tickets; empty uses those of "
                            "kinit.",
    "sasl.kerberos.principal": "The client's principal in the keytab.",
    "sasl.kerberos.service.name": "The first part of the brokers' principals.",
    "oauth_cb": "Called with a text, in a thread, to get a token for OAUTHBEARER: returns it, or "
                "(token, expiry in seconds since 1970).",
    "sasl.oauthbearer.token.endpoint.url":
        "The endpoint that issues tokens for the client's credentials, or `file:///path` of a "
        "token.",
    "sasl.oauthbearer.client.credentials.client.id": "The client's name at the token endpoint.",
    "sasl.oauthbearer.client.credentials.client.secret":
        "The client's secret at the token endpoint; never shown in errors or logs.",
    "sasl.oauthbearer.scope": "The scope of requested tokens.",
    "sasl.oauthbearer.jwt.retriever.class":
        "JwtBearerJwtRetriever requests tokens with an assertion that names their subject "
        "(RFC 7523); the default depends on the other settings.",
    "sasl.oauthbearer.assertion.file":
        "A file with an assertion that another program renews; overrides the client's own key.",
    "sasl.oauthbearer.assertion.private.key.file":
        "A PEM file with the key that signs an assertion for each token request.",
    "sasl.oauthbearer.assertion.private.key.passphrase":
        "The passphrase of that key; never shown in errors or logs.",
    "sasl.oauthbearer.assertion.algorithm": "The signature algorithm of assertions.",
    "sasl.oauthbearer.assertion.template.file":
        'JSON with additional parts of an assertion: `{"header": {"kid": …}, "payload": {…}}`.',
    "sasl.oauthbearer.assertion.claim.iss":
        "The issuer in assertions; if set, an assertion replaces the client's secret.",
    "sasl.oauthbearer.assertion.claim.sub": "The subject in assertions.",
    "sasl.oauthbearer.assertion.claim.aud": "The audience in assertions: the token issuer.",
    "sasl.oauthbearer.assertion.claim.exp.seconds": "The lifetime of assertions.",
    "sasl.oauthbearer.assertion.claim.nbf.seconds":
        "Assertions are valid from this long before they are created.",
    "sasl.oauthbearer.assertion.claim.jti.include":
        "If true, an assertion has an id, so that it can be used only once.",
    "https.ca.location":
        "A PEM file of the authorities that may sign the token endpoint's certificate.",
    "ssl.ca.location": "A PEM file of the authorities that may sign the broker's certificate.",
    "ssl.keystore.type": "The type of the key store; JKS also accepts PKCS12, as in Java.",
    "ssl.keystore.location": "A file with the client's certificate and its key.",
    "ssl.keystore.password": "The password of that file; PEM files have none.",
    "ssl.keystore.key": "The client's key as PEM text, instead of a file.",
    "ssl.keystore.certificate.chain": "The client's certificate as PEM text, for that key.",
    "ssl.truststore.type": "The type of the trust store; JKS also accepts PKCS12, as in Java.",
    "ssl.truststore.location": "A file of the authorities that may sign the broker's certificate.",
    "ssl.truststore.password": "The password of that file; PEM files have none.",
    "ssl.truststore.certificates": "Those authorities as PEM text, instead of a file.",
    "ssl.certificate.location": "A PEM file with the client's certificate.",
    "ssl.key.location": "A PEM file with the key of the client's certificate.",
    "ssl.key.password": "The password of the client's key.",
    "ssl.endpoint.identification.algorithm": "`https` verifies the broker's host name against its "
                                             "certificate, empty does not.",
    "ssl.context": "An `ssl.SSLContext` that replaces the settings above.",
    "statistics.interval.ms": "The interval of calls of stats_cb; 0: never.",
    "stats_cb": "Called on the client's thread with the result of `metrics()`.",
    "interceptor.classes": "Objects or classes that receive each record before it is sent, or "
                           "after it is read.",
    "allow.auto.create.topics": "If true, the broker may create a subscribed topic.",
    "group.id": "The consumer group; without a group, assign partitions manually.",
    "group.instance.id": "A name that survives a restart: a static member (KIP-345).",
    "group.protocol": "`consumer`: the group protocol of KIP-848, assigned by the broker.",
    "group.remote.assignor": "The broker's assignor for `group.protocol=consumer`.",
    "session.timeout.ms": "A member without a heartbeat for this time loses its partitions.",
    "heartbeat.interval.ms": "The interval of heartbeats to the coordinator.",
    "max.poll.interval.ms": "A member that does not poll for this time leaves the group.",
    "max.poll.records": "The maximum number of records that a poll returns.",
    "partition.assignment.strategy": "Assignors by name, or objects; the first that all members "
                                     "support is used.",
    "enable.auto.commit": "If true, positions are committed in the background.",
    "auto.commit.interval.ms": "The interval of these commits.",
    "enable.auto.offset.store": "If false, commits without offsets, including automatic ones, "
                                "commit only offsets stored with `store_offsets`.",
    "auto.offset.reset": "The start offset if there is no committed offset, or if it no longer "
                         "exists; `by_duration:PT1H`: an hour before now (KIP-1106).",
    "isolation.level": "`read_committed` skips records of open and aborted transactions.",
    "check.crcs": "If true, each batch's checksum is verified.",
    "exclude.internal.topics": "If true, a pattern does not match the brokers' internal topics.",
    "fetch.min.bytes": "A broker waits until it has this much, for at most fetch.max.wait.ms.",
    "fetch.max.bytes": "The maximum size of a response; a larger first batch is returned whole.",
    "fetch.max.wait.ms": "The maximum time that a broker waits for fetch.min.bytes.",
    "max.partition.fetch.bytes": "The maximum size of one partition in a response.",
    "queued.max.messages.kbytes": "The maximum size of prefetched records, in KiB.",
    "key.deserializer": "Converts bytes to keys: an object or a function.",
    "value.deserializer": "Converts bytes to values: an object or a function.",
    "share.acknowledgement.mode": "`implicit`: a poll accepts the records of the previous poll; "
                                  "`explicit`: the program acknowledges each record.",
    "share.acquire.mode": "`record_limit`: at most max.poll.records per response; "
                          "`batch_optimized`: whole batches (KIP-1206).",
    "key.serializer": "Converts keys to bytes: an object or a function.",
    "value.serializer": "Converts values to bytes: an object or a function.",
    "acks": "The replicas that must have a record before it is acknowledged: none, the leader, all "
            "in-sync replicas.",
    "linger.ms": "The time that a batch waits for more records.",
    "batch.size": "A batch of this many bytes is sent at once.",
    "buffer.memory": "The maximum size of unsent records; above it send() blocks.",
    "max.block.ms": "The maximum time that send() and transactional calls block.",
    "max.request.size": "The maximum size of a record, and of a request.",
    "compression.type": "The codec of batches.",
    "compression.gzip.level": "-1: zlib's default.",
    "compression.lz4.level": "9 and above compress better and slower.",
    "compression.zstd.level": "Negative levels are faster.",
    "retries": "The maximum number of retries of a batch, within delivery.timeout.ms.",
    "delivery.timeout.ms": "A record that is not acknowledged within this time fails.",
    "max.in.flight.requests.per.connection": "The maximum number of unanswered requests to one "
                                             "broker.",
    "enable.idempotence": "If true, retries cause no duplicates and keep the order.",
    "transactional.id": "Identifies the producer across restarts, and enables transactions.",
    "transaction.timeout.ms": "The coordinator aborts a transaction that is open for longer.",
    "partitioner.class": "Chooses partitions: an object, a function or a name.",
    "partitioner.ignore.keys": "If true, records with a key are distributed like those without.",
    "partitioner.adaptive.partitioning.enable": "If true, slow brokers get fewer records.",
    "partitioner.availability.timeout.ms": "A partition whose broker accepts no batch for this "
                                           "time is avoided; 0: never.",
}
# Settings that most programs set, or that change what a program can rely on. Kafka's own ratings
# differ: they call acks, enable.idempotence and transactional.id low.
HIGH = {
    "bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password",
    "ssl.ca.location", "ssl.keystore.location", "ssl.truststore.location", "group.id",
    "group.protocol", "auto.offset.reset", "enable.auto.commit", "isolation.level",
    "max.poll.interval.ms", "max.poll.records", "share.acknowledgement.mode", "key.deserializer",
    "value.deserializer", "key.serializer", "value.serializer", "acks", "linger.ms",
    "compression.type", "delivery.timeout.ms", "enable.idempotence", "transactional.id",
}
# Settings whose defaults suit almost every program.
LOW = {
    "client.rack", "metadata.max.age.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms",
    "retry.backoff.ms", "retry.backoff.max.ms", "connections.max.idle.ms", "send.buffer.bytes",
    "receive.buffer.bytes", "sasl.kerberos.service.name",
    "sasl.oauthbearer.jwt.retriever.class", "sasl.oauthbearer.assertion.algorithm",
    "sasl.oauthbearer.assertion.template.file", "sasl.oauthbearer.assertion.claim.exp.seconds",
    "sasl.oauthbearer.assertion.claim.nbf.seconds", "sasl.oauthbearer.assertion.claim.jti.include",
    "ssl.keystore.type", "ssl.truststore.type", "ssl.endpoint.identification.algorithm",
    "statistics.interval.ms", "interceptor.classes", "group.remote.assignor",
    "heartbeat.interval.ms", "auto.commit.interval.ms", "check.crcs", "exclude.internal.topics",
    "fetch.max.bytes", "max.partition.fetch.bytes", "share.acquire.mode", "max.request.size",
    "compression.gzip.level", "compression.lz4.level", "compression.zstd.level", "retries",
    "max.in.flight.requests.per.connection", "partitioner.ignore.keys",
    "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms",
}
_PAGE = """\
# Settings of the client

Generated from `pylog/client/config/settings.py` by `make docs`; do not edit.

`Producer({{"linger.ms": 20}})` and `Producer(linger_ms=20)` are the same. Names are Kafka's. An
unknown name raises an error that suggests the most similar name, and type checkers report it
earlier. For a dict, `pylog.client.options` has the types `ProducerConfig`, `ConsumerConfig`,
`ShareConsumerConfig` and `AdminConfig` (names with dots); import them under `if TYPE_CHECKING:`.

Importance is high for settings that most programs set, or that change what a program can rely on.
It is low for settings whose defaults suit almost every program.

## Files of other clients

A `.properties` file of Kafka's own clients works unchanged (`pylog -c client.properties`, or read
into a dict). This includes `sasl.jaas.config` with PlainLoginModule, ScramLoginModule,
OAuthBearerLoginModule or Krb5LoginModule, key and trust stores, and Kafka's serializers and
assignors by their Java names. These names of librdkafka are accepted too:

{aliases}

Accepted without effect: {idle}.
"""
_OPTIONS = '''\
"""Types of the client's settings, for type checkers. Generated by `make docs`; do not edit."""

import ssl
from collections.abc import Sequence
from typing import Literal, TypedDict

from pylog.client.consumer.assignors import Assignor
from pylog.client.interfaces import PartitionChooser, StatisticsCallback, TokenCallback
from pylog.client.producer.partitioners import Partitioner
'''
# Types of settings whose kind is `object` or a list of objects.
_TYPES = {
    "oauth_cb": "TokenCallback | None", "stats_cb": "StatisticsCallback | None",
    "ssl.context": "ssl.SSLContext | None", "interceptor.classes": "str | Sequence[object]",
    "partition.assignment.strategy": "str | Sequence[str | Assignor]",
    "partitioner.class": "str | Partitioner | PartitionChooser | None",
    "auto.offset.reset": "str",  # Also by_duration:<duration>.
    "acks": 'Literal["all", "-1", "0", "1", -1, 0, 1]',
}
# Parameters of the constructors: they determine the types of keys and values.
_PARAMETERS = {"key.serializer", "value.serializer", "key.deserializer", "value.deserializer"}
_ADMIN = """\
class Admin:
    def __init__(self, config: AdminConfig | None = None, /,
                 **more: Unpack[AdminOptions]) -> None: ...
    @classmethod
    def from_settings(cls, settings: Mapping[str, object], /) -> Self: ...
    @classmethod
    def from_properties(cls, path: str | PathLike[str], /) -> Self: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ..."""


def page() -> str:
    """Return the text of docs/reference/client-settings.md."""
    meant = {**ALIASES, **{name: f"{ours}, in KiB" for name, (ours, _) in UNITS.items()}}
    theirs = [f"| {name} | {ours} |" for name, ours in sorted(meant.items())]
    parts = [_PAGE.format(aliases="\n".join(["| theirs | ours |", "|---|---|", *theirs]),
                          idle=", ".join(f"`{name}`" for name in sorted(WITHOUT_EFFECT)))]
    for title, role in (("Every client", ALL), ("Producer", PRODUCER), ("Consumer", CONSUMER),
                        ("Share consumer", SHARE_CONSUMER), ("Admin", ADMIN)):
        rows = [row for row in TABLE if role in row.roles]
        if rows:
            parts.append("\n".join([f"## {title}\n", "| setting | importance | type | default | "
                                    "allowed | what it does |", "|---|---|---|---|---|---|",
                                    *(_row(row) for row in rows), ""]))
    return "\n".join(parts)


def _row(row: Setting) -> str:
    default = {None: "", (): "empty", "": "empty"}.get(row.default, row.default)
    if isinstance(default, tuple):
        default = ",".join(default)
    kind = {object: "object", list: "list", str: "text", int: "int", bool: "true/false"}[row.kind]
    cells = (row.name, importance(row.name), kind, default, _allowed(row), _MEANINGS[row.name])
    return f"| {' | '.join(map(str, cells))} |"


def importance(name: str) -> str:
    """Return high, medium or low."""
    return "high" if name in HIGH else "low" if name in LOW else "medium"


def _allowed(row: Setting) -> str:
    if row.kind is not int:
        return ", ".join(value or "empty" for value in row.values)
    low, high = row.values
    return f"{low} or more" if high in (INT32_MAX, INT64_MAX) else f"{low} to {high}"


# ---- types --------------------------------------------------------------------------------------


def options_stub() -> str:
    """Return the text of pylog/client/options.pyi."""
    parts = [_OPTIONS]
    for role in ROLES:
        rows = [row for row in TABLE if (role in row.roles or ALL in row.roles)
                and row.name not in _PARAMETERS]
        fields = [f"    {row.name.replace('.', '_')}: {_type(row)}" for row in rows]
        stem = role.title().replace("_", "")
        parts.append("\n".join([f"class {stem}Options(TypedDict, total=False):",
                                *fields, ""]))
        entries = [f'    "{row.name}": {_type(row)},' for row in rows]
        name = f"{stem}Config"
        parts.append("\n".join([f'{name} = TypedDict("{name}", {{', *entries, "}, total=False)",
                                ""]))
    return "\n".join(parts)


def _type(row: Setting) -> str:
    if row.name in _TYPES:
        return _TYPES[row.name]
    if row.kind is list:
        return "str | Sequence[str]"
    text = "Literal[{}]".format(", ".join(f'"{value}"' for value in row.values)) \
        if row.kind is str and row.values else row.kind.__name__
    return text + " | None" if row.default is None else text


def admin_stub() -> str:
    """Return the text of pylog/client/admin/blocking.pyi: the admin calls, without await."""
    calls = [_call(name, method) for name, method
             in inspect.getmembers(admin.Admin, inspect.iscoroutinefunction)
             if not name.startswith("_") and name not in ("start", "close")]
    body = "\n".join([_ADMIN, *calls]) + "\n"
    words = {*re.findall(r"\w+", body), *vars(blocking)["__all__"]}
    return "\n".join([
        '"""Admin\'s calls, for type checkers. Generated by `make docs`; do not edit."""', "",
        *sorted({f"from {origin} import {name} as {name}"
                 for module in (blocking, admin, admin_groups,
                                admin_security, admin_share_groups,
                                admin_streams_groups, admin_transactions)
                 for origin, name in _imports(module) if name in words}),
        "from os import PathLike", "from typing import Self, Unpack", "",
        "from pylog.client.options import AdminConfig, AdminOptions", "", body])


def _imports(module: Any) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each from-import."""
    source = Path(inspect.getfile(module)).read_text()
    for origin, names in re.findall(r"^from (\S+) import (\([^)]*\)|.*)$", source, re.MULTILINE):
        for name in names.strip("()").replace("\n", " ").split(","):
            if name.strip() and origin != "__future__":
                yield origin, name.strip()


def _call(name: str, method: Any) -> str:
    signature = inspect.signature(method)
    given = []
    keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            given.append("*")
            keyword_only = True
        text = parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {parameter.annotation}"
        given.append(text if parameter.default is parameter.empty else text + " = ...")
    return "\n".join([f"    def {name}(", *(f"        {text}," for text in given),
                      f"    ) -> {signature.return_annotation}: ..."])


def main() -> None:
    """Write the page to the first argument, and the stubs next to this module."""
    here = Path(__file__).parent
    Path(sys.argv[1]).write_text(page())
    (here / "options.pyi").write_text(options_stub())
    (here / "admin" / "blocking.pyi").write_text(admin_stub())


if __name__ == "__main__":
    main()
