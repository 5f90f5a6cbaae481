"""Brokers of bench.vs with certificates, users and ACLs, the same on both sides.

Owns: the files of a run's certificate authority, below the run's folder.
Invariants: both brokers have the same certificate and accept TLS 1.3 with AES-128-GCM only;
  plaintext connections, which the bench itself uses, may do everything.
"""

import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from pylog.testing.ports import free_port
from bench.process import Access, BrokerProcess
from pylog.testing.certificates import Authority, write

USER, PASSWORD = "loader", "secret of the loader"
LOGIN = {"BENCH_LOGIN": f"{USER}:{PASSWORD}"}
ITERATIONS = 4096
WAIT_S = 60.0
ACLS_AT_ONCE = 1000
SETTINGS = {
    "ssl.keystore.type": "PEM", "ssl.enabled.protocols": "TLSv1.3",
    "ssl.cipher.suites": "TLS_AES_128_GCM_SHA256", "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "socket.listen.backlog.size": "2048",
    # Kafka requires a login module for the broker on every listener with SASL.
    **{f"listener.name.{name}.scram-sha-256.sasl.jaas.config":
       "org.apache.kafka.common.security.scram.ScramLoginModule required;"
       for name in ("sasl_ssl", "sasl_plaintext")},
}
AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@dataclass(frozen=True)
class Files:
    """Paths. trusted: the CA certificate; server: the server's key and certificate in one file."""

    trusted: str
    server: str


@cache
def files(folder: Path) -> Files:
    authority = Authority("bench")
    server = authority.issue()
    return Files(write(folder, "trusted.pem", authority.pem),
                 write(folder, "server.pem", server.key + server.chain))


def tls(folder: Path) -> Access:
    trusted = files(folder).trusted
    return Access("SSL", {"security.protocol": "ssl", "ssl.ca.location": trusted},
                  {"security.protocol": "SSL", "ssl.truststore.type": "PEM",
                   "ssl.truststore.location": trusted},
                  {"BENCH_TLS_CA": trusted})


def login() -> Access:
    return Access("SASL_PLAINTEXT", environment=LOGIN)


def tls_login(folder: Path) -> Access:
    return Access("SASL_SSL", environment={"BENCH_TLS_CA": files(folder).trusted, **LOGIN})


def client_context(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files(folder).trusted)


def start(broker: BrokerProcess, folder: Path, acls: int | None = None) -> BrokerProcess:
    """Start the broker with a listener of each kind and one user. acls: number of ACLs, None for no
    authorizer.
    """
    broker.listeners = {name: free_port() for name in ("SSL", "SASL_SSL", "SASL_PLAINTEXT")}
    broker.overrides |= SETTINGS | {"ssl.keystore.location": files(folder).server}
    broker.overrides |= AUTHORIZED if acls is not None else {}
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(
        USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, ITERATIONS), PASSWORD.encode())])
    made[USER].result(WAIT_S)
    bindings = list(_bindings(acls)) if acls else []
    for first in range(0, len(bindings), ACLS_AT_ONCE):
        for future in admin.create_acls(bindings[first:first + ACLS_AT_ONCE]).values():
            future.result(WAIT_S)
    return broker


def _bindings(count: int):
    """Yield the user's own ACLs; of the rest, half are the user's for other topics, half other
    users'.
    """
    own = [("load-", ResourcePatternType.PREFIXED, USER, operation)
           for operation in (AclOperation.READ, AclOperation.WRITE)]
    others = [(f"topic-{number}", ResourcePatternType.LITERAL,
               USER if number % 2 else f"user-{number}", AclOperation.READ)
              for number in range(count - len(own))]
    for name, pattern, user, operation in own + others:
        yield AclBinding(ResourceType.TOPIC, name, pattern, f"User:{user}", "*", operation,
                         AclPermissionType.ALLOW)
