"""Generate the settings reference and the type stubs from the client's tables.

Owns: nothing; docs/client-settings.md, options.pyi and admin/blocking.pyi are generated, never
  edited.
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
    admin as administration, blocking, groups as admin_groups, security as admin_security,
    share_groups as admin_share_groups, streams_groups as admin_streams_groups,
    transactions as admin_transactions,
)
from pylog.client.config.aliases import ALIASES, UNITS, WITHOUT_EFFECT
from pylog.client.config.settings import (
    ADMIN, ALL, CONSUMER, INT32_MAX, INT64_MAX, PRODUCER, SHARE_CONSUMER, TABLE, Setting,
)

ROLES = (PRODUCER, CONSUMER, SHARE_CONSUMER, ADMIN)
_MEANINGS = {
    "bootstrap.servers": "Brokers to begin with, as `host:port`; the others are found from them.",
    "client.id": "Named in the broker's quotas, metrics and logs.",
    "client.rack": "Where the client runs: followers of the same rack may serve it (KIP-392).",
    "request.timeout.ms": "A request without an answer for so long fails, and is sent again.",
    "default.api.timeout.ms": "A call without a timeout of its own gives up after this.",
    "metadata.max.age.ms": "Topics and brokers are asked for again after this.",
    "reconnect.backoff.ms": "The pause before the second attempt to connect; it doubles.",
    "reconnect.backoff.max.ms": "The longest pause between attempts to connect.",
    "retry.backoff.ms": "The pause before a request is repeated; it doubles.",
    "retry.backoff.max.ms": "The longest pause before a request is repeated.",
    "connections.max.idle.ms": "A connection unused for so long is closed; -1 keeps it.",
    "socket.connection.setup.timeout.ms": "The time for a TCP connection and its login.",
    "send.buffer.bytes": "SO_SNDBUF; -1 leaves it to the system.",
    "receive.buffer.bytes": "SO_RCVBUF; -1 leaves it to the system.",
    "security.protocol": "Whether connections use TLS, and whether the client logs in.",
    "sasl.mechanism": "How the client logs in.",
    "sasl.username": "The user that logs in.",
    "sasl.password": "The user's password; never shown in errors or logs.",
    "pylog.sasl.tokenauth":
        "The user is a delegation token's id, and the password what proves it (SCRAM).",
    "sasl.kerberos.keytab": "Whose tickets the client gets by itself; else those of kinit.",
    "sasl.kerberos.principal": "Who it is in the keytab.",
    "sasl.kerberos.service.name": "The first part of the brokers' principals.",
    "oauth_cb": "Called with a text, in a thread, for a token of OAUTHBEARER: returns it, or "
                "(token, its end in seconds since 1970).",
    "sasl.oauthbearer.token.endpoint.url":
        "Where tokens are had for the client's credentials, or `file:///path` of one.",
    "sasl.oauthbearer.client.credentials.client.id": "The client's name there.",
    "sasl.oauthbearer.client.credentials.client.secret":
        "Its secret there; never shown in errors or logs.",
    "sasl.oauthbearer.scope": "The scope that tokens are asked for with.",
    "sasl.oauthbearer.jwt.retriever.class":
        "JwtBearerJwtRetriever asks with an assertion about whose token it is to be (RFC 7523); "
        "the default goes by what else is set.",
    "sasl.oauthbearer.assertion.file":
        "An assertion that somebody else keeps fresh; goes before a key of the client's own.",
    "sasl.oauthbearer.assertion.private.key.file":
        "A PEM file: signs an assertion each time a token is asked for.",
    "sasl.oauthbearer.assertion.private.key.passphrase":
        "What that key is encrypted with; never shown in errors or logs.",
    "sasl.oauthbearer.assertion.algorithm": "How assertions are signed.",
    "sasl.oauthbearer.assertion.template.file":
        'JSON with more of an assertion: `{"header": {"kid": …}, "payload": {…}}`.',
    "sasl.oauthbearer.assertion.claim.iss":
        "Who says it; with it, an assertion takes the place of the client's secret.",
    "sasl.oauthbearer.assertion.claim.sub": "Whom an assertion is about.",
    "sasl.oauthbearer.assertion.claim.aud": "The issuer that it is for.",
    "sasl.oauthbearer.assertion.claim.exp.seconds": "For how long it counts.",
    "sasl.oauthbearer.assertion.claim.nbf.seconds": "How long before now it begins to count.",
    "sasl.oauthbearer.assertion.claim.jti.include": "It has an id, so that it counts once.",
    "https.ca.location":
        "A PEM file of the authorities that may sign the token endpoint's certificate.",
    "ssl.ca.location": "A PEM file of the authorities that may sign the broker's certificate.",
    "ssl.keystore.type": "What the key store is; PKCS12 is taken for JKS too, as in Java.",
    "ssl.keystore.location": "The client's own certificate with its key, a file.",
    "ssl.keystore.password": "The password of that file; PEM files have none.",
    "ssl.keystore.key": "The client's key as PEM text, in place of a file.",
    "ssl.keystore.certificate.chain": "The client's certificate as PEM text, with that key.",
    "ssl.truststore.type": "What the trust store is; PKCS12 is taken for JKS too, as in Java.",
    "ssl.truststore.location": "The authorities that may sign the broker's certificate, a file.",
    "ssl.truststore.password": "The password of that file; PEM files have none.",
    "ssl.truststore.certificates": "Those authorities as PEM text, in place of a file.",
    "ssl.certificate.location": "The client's own certificate, a PEM file.",
    "ssl.key.location": "The key of the client's certificate, a PEM file.",
    "ssl.key.password": "What the client's key is encrypted with.",
    "ssl.endpoint.identification.algorithm": "`https` compares the broker's name with its "
                                             "certificate, empty does not.",
    "ssl.context": "An `ssl.SSLContext` that takes the place of the settings above.",
    "statistics.interval.ms": "How often stats_cb is called; 0: never.",
    "stats_cb": "Called on the client's thread with what `metrics()` returns.",
    "interceptor.classes": "Objects or classes that see each record before it is sent, or after it "
                           "was read.",
    "allow.auto.create.topics": "Whether the broker may create a topic that is subscribed to.",
    "group.id": "The consumer group; without one, partitions are assigned by hand.",
    "group.instance.id": "A name that outlives a restart: a static member (KIP-345).",
    "group.protocol": "`consumer`: the group protocol of KIP-848, assigned by the broker.",
    "group.remote.assignor": "The broker's assignor for `group.protocol=consumer`.",
    "session.timeout.ms": "A member unheard of for so long loses its partitions.",
    "heartbeat.interval.ms": "How often a member reports to the coordinator.",
    "max.poll.interval.ms": "A member that does not poll for so long leaves the group.",
    "max.poll.records": "The most records that one poll returns.",
    "partition.assignment.strategy": "Assignors by name, or objects; the first that all members "
                                     "have is used.",
    "enable.auto.commit": "Whether positions are committed in the background.",
    "auto.commit.interval.ms": "How often they are.",
    "enable.auto.offset.store": "If false, commits without offsets, automatic ones included, hold "
                                "only what `store_offsets` stored.",
    "auto.offset.reset": "Where to begin without a committed offset, or with one that is gone; "
                         "`by_duration:PT1H`: an hour before now (KIP-1106).",
    "isolation.level": "Whether records of open and aborted transactions are read.",
    "check.crcs": "Whether each batch's checksum is compared.",
    "exclude.internal.topics": "Whether a pattern leaves the brokers' own topics out.",
    "fetch.min.bytes": "A broker waits until it has so much, for at most fetch.max.wait.ms.",
    "fetch.max.bytes": "The most that one answer holds; a larger first batch comes whole.",
    "fetch.max.wait.ms": "How long a broker waits for fetch.min.bytes.",
    "max.partition.fetch.bytes": "The most that one partition has in an answer.",
    "queued.max.messages.kbytes": "What may be fetched ahead of the program, in KiB.",
    "key.deserializer": "Makes keys of bytes: an object or a function.",
    "value.deserializer": "Makes values of bytes: an object or a function.",
    "share.acknowledgement.mode": "`implicit`: a poll accepts what the one before it gave; "
                                  "`explicit`: the program acknowledges each record.",
    "share.acquire.mode": "`record_limit`: never more than max.poll.records in one answer; "
                          "`batch_optimized`: whole batches (KIP-1206).",
    "key.serializer": "Makes bytes of keys: an object or a function.",
    "value.serializer": "Makes bytes of values: an object or a function.",
    "acks": "Which replicas have a record before it counts as sent: none, the leader, all in sync.",
    "linger.ms": "How long a batch waits for more records.",
    "batch.size": "A batch of so many bytes is sent at once.",
    "buffer.memory": "Records that are not sent yet take at most this; then send() blocks.",
    "max.block.ms": "How long send() and transactions' calls may block.",
    "max.request.size": "The largest record, and the largest request.",
    "compression.type": "The codec of batches.",
    "compression.gzip.level": "-1: zlib's own default.",
    "compression.lz4.level": "9 and above compress better and slower.",
    "compression.zstd.level": "Negative levels are faster.",
    "retries": "How often a batch is sent again, within delivery.timeout.ms.",
    "delivery.timeout.ms": "A record that is not acknowledged by then has failed.",
    "max.in.flight.requests.per.connection": "Requests on their way to one broker.",
    "enable.idempotence": "Whether a batch that is sent twice is stored once, in order.",
    "transactional.id": "Names the producer across restarts, and lets it use transactions.",
    "transaction.timeout.ms": "The coordinator aborts a transaction that is open for longer.",
    "partitioner.class": "Chooses partitions: an object, a function or a name.",
    "partitioner.ignore.keys": "Whether records with a key are spread like those without.",
    "partitioner.adaptive.partitioning.enable": "Whether slow brokers get less.",
    "partitioner.availability.timeout.ms": "A partition whose broker takes nothing for so long is "
                                           "avoided; 0: never.",
}
_PAGE = """\
# Settings of the client

Generated from `pylog/client/config/settings.py` by `make docs`; do not edit.

`Producer({{"linger.ms": 20}})` and `Producer(linger_ms=20)` are the same. Names are Kafka's. A name
that is unknown is refused with the nearest known one, and type checkers refuse it before. For a
dict, `pylog.client.options` has the types `ProducerConfig`, `ConsumerConfig`,
`ShareConsumerConfig` and `AdminConfig` (names with dots); import them under `if TYPE_CHECKING:`.

## Files of other clients

A `.properties` file of Kafka's own clients works as it is (`pylog -c client.properties`, or read
into a dict), `sasl.jaas.config` with PlainLoginModule, ScramLoginModule, OAuthBearerLoginModule or
Krb5LoginModule, key and trust stores, Kafka's serializers and assignors by their Java names
included. Of librdkafka these names are understood:

{aliases}

Accepted, and without effect here: {idle}.
"""
_OPTIONS = '''\
"""Types of the client's settings, for type checkers. Generated by `make docs`; do not edit."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict
'''
_ADMIN = """\
class Admin:
    def __init__(self, config: Mapping[str, Any] | None = None,
                 **more: Unpack[AdminOptions]) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Admin: ...
    def __exit__(self, *exception: object) -> None: ..."""


def page() -> str:
    """Return the text of docs/client-settings.md."""
    meant = {**ALIASES, **{name: f"{ours}, in KiB" for name, (ours, _) in UNITS.items()}}
    theirs = [f"| {name} | {ours} |" for name, ours in sorted(meant.items())]
    parts = [_PAGE.format(aliases="\n".join(["| theirs | ours |", "|---|---|", *theirs]),
                          idle=", ".join(f"`{name}`" for name in sorted(WITHOUT_EFFECT)))]
    for title, role in (("Every client", ALL), ("Producer", PRODUCER), ("Consumer", CONSUMER),
                        ("Share consumer", SHARE_CONSUMER), ("Admin", ADMIN)):
        rows = [row for row in TABLE if role in row.roles]
        if rows:
            parts.append("\n".join([f"## {title}\n", "| setting | type | default | allowed | what "
                                    "it does |", "|---|---|---|---|---|",
                                    *(_row(row) for row in rows), ""]))
    return "\n".join(parts)


def _row(row: Setting) -> str:
    default = {None: "", (): "empty", "": "empty"}.get(row.default, row.default)
    if isinstance(default, tuple):
        default = ",".join(default)
    kind = {object: "object", list: "list", str: "text", int: "int", bool: "true/false"}[row.kind]
    return f"| {row.name} | {kind} | {default} | {_allowed(row)} | {_MEANINGS[row.name]} |"


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
        rows = [row for row in TABLE if role in row.roles or ALL in row.roles]
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
    if row.kind is object or row.name in ("interceptor.classes", "partition.assignment.strategy"):
        return "Any"
    if row.kind is list:
        return "str | Sequence[str]"
    if row.name == "auto.offset.reset":
        return "str"
    if row.name == "acks":
        return 'Literal["all", "-1", "0", "1", -1, 0, 1]'
    text = "Literal[{}]".format(", ".join(f'"{value}"' for value in row.values)) \
        if row.kind is str and row.values else row.kind.__name__
    return text + " | None" if row.default is None else text


def admin_stub() -> str:
    """Return the text of pylog/client/admin/blocking.pyi: the admin calls, without await."""
    calls = [_call(name, method) for name, method
             in inspect.getmembers(administration.Admin, inspect.iscoroutinefunction)
             if not name.startswith("_") and name not in ("start", "close")]
    body = "\n".join([_ADMIN, *calls]) + "\n"
    words = {*re.findall(r"\w+", body), *vars(blocking)["__all__"]}
    return "\n".join([
        '"""Admin\'s calls, for type checkers. Generated by `make docs`; do not edit."""', "",
        *sorted({f"from {place} import {name} as {name}"
                 for module in (blocking, administration, admin_groups,
                                admin_security, admin_share_groups,
                                admin_streams_groups, admin_transactions)
                 for place, name in _imports(module) if name in words}),
        "from typing import Unpack", "", "from pylog.client.options import AdminOptions", "", body])


def _imports(module: Any) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each from-import."""
    source = Path(inspect.getfile(module)).read_text()
    for place, names in re.findall(r"^from (\S+) import (\([^)]*\)|.*)$", source, re.MULTILINE):
        for name in names.strip("()").replace("\n", " ").split(","):
            if name.strip() and place != "__future__":
                yield place, name.strip()


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
