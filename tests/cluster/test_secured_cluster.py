"""Three brokerds with all connections secured, etcd's too: TLS, expiring logins, ACLs."""

import asyncio
import base64
import socket
import ssl

import pytest

from pylog.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from pylog.client.errors import UnknownTopicOrPartitionError
from pylog.config import Settings
from pylog.peer import securing
from pylog.peer.connection import Peer
from pylog.protocol import messages
from pylog.testing.certificates import Authority, write
from tests.fixtures.clusters import Cluster, files_of, until
from tests.peer.secured import now_ms

MECHANISM, PROTOCOL = "SCRAM-SHA-512", "SASL_SSL"
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required {};"
HOSTS = ("localhost", *(f"127.0.0.{number}" for number in (1, 2, 3)))
USERS = {"node": "between nodes", "admin": "of all", "mallory": "without rights"}
NO_CLUSTER_RIGHT, NO_TOPIC_RIGHT = 31, 29
REAUTHENTICATE_MS = 3000
CA = Authority()


def secured(root, account: str = "node") -> dict:
    """Return the settings of a node that authenticates to other nodes as a user."""
    own, trusted = CA.issue("node", HOSTS), CA.pem
    login = f'username="{account}" password="{USERS[account]}"'
    return {
        "sasl.enabled.mechanisms": MECHANISM, "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "sasl.mechanism.controller.protocol": MECHANISM,
        **{f"listener.name.{name}.{MECHANISM.lower()}.sasl.jaas.config": JAAS.format(login)
           for name in (PROTOCOL.lower(), "controller")},
        "ssl.keystore.type": "PEM", "ssl.keystore.location": write(
            root, "own.pem", own.chain + own.key),
        "ssl.truststore.type": "PEM", "ssl.truststore.location": write(root, "ca.pem", trusted),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:node;User:admin",
        "connections.max.reauth.ms": REAUTHENTICATE_MS}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    root = tmp_path_factory.mktemp("secured")
    users = [word for name, password in USERS.items()
             for word in ("--add-scram", f"{MECHANISM}=[name={name},password={password}]")]
    with Cluster(root, protocol=PROTOCOL, arguments=users, settings=secured(root) | {
            "group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1,
            "transaction.state.log.num.partitions": 1}) as found:
        yield found
        assert [broker.alarms() for broker in found.brokers.values()] == [[], [], []]


def as_user(cluster, name: str, **more) -> dict:
    return {"bootstrap.servers": cluster.bootstrap, "security.protocol": PROTOCOL,
            "sasl.mechanism": MECHANISM, "sasl.username": name, "sasl.password": USERS[name],
            "ssl.truststore.type": "PEM", "ssl.truststore.certificates": CA.pem.decode(), **more}


def states(admin, topic: str) -> list:
    """Return (leader, ISR) of each partition from one broker's metadata."""
    try:
        described = admin.describe_topics([topic])[topic]
    except UnknownTopicOrPartitionError:
        return [(-1, [])]
    return [(part.leader, sorted(part.isr)) for _, part in sorted(described.partitions.items())]


def created(cluster, admin, topic: str) -> None:
    until(lambda: len(admin.describe_cluster().nodes) == 3)
    admin.create_topics([NewTopic(topic, 3, 3)])
    in_sync(cluster, admin, topic)


def in_sync(cluster, admin, topic: str) -> None:
    until(lambda: all(isr == [1, 2, 3] for _, isr in states(admin, topic)), 60, cluster.tails())


def test_replication_continues_while_logins_expire_and_a_machine_dies(cluster):
    with Admin(as_user(cluster, "admin")) as admin:
        created(cluster, admin, "orders")
        with Producer(as_user(cluster, "admin", acks="all")) as producer, \
                Producer(as_user(cluster, "admin", **{"transactional.id": "w"})) as writer:
            writer.init_transactions()
            for number in range(300):
                producer.send("orders", b"%d" % number, partition=number % 3).result(30)
            cluster.brokers[states(admin, "orders")[0][0]].kill()
            for number in range(300, 400):
                producer.send("orders", b"%d" % number, partition=number % 3).result(60)
            for broker in cluster.brokers:
                if not cluster.brokers[broker].alive():
                    cluster.start_broker(broker)
            in_sync(cluster, admin, "orders")
            writer.begin_transaction()
            writer.send("orders", b"400", partition=0)
            writer.commit_transaction()
        for index in range(3):
            until(lambda at=index: len({files_of(broker, "orders", at)
                                        for broker in cluster.brokers.values()}) == 1, 20)
    with Consumer(as_user(cluster, "admin", **{"isolation.level": "read_committed"})) as consumer:
        parts = [TopicPartition("orders", index) for index in range(3)]
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        found = []
        until(lambda: found.extend(int(record.value) for record in consumer.poll(0.5))
              or len(found) >= 401, 30)
    assert sorted(found) == list(range(401))


def id_of(cluster, topic: str) -> bytes:
    path = cluster.brokers[1].data_dir / f"{topic}-0" / "partition.metadata"
    text = until(lambda: path.exists() and path.read_text())
    return base64.urlsafe_b64decode(text.partition("topic_id: ")[2].strip() + "==")


async def request_as(cluster, account: str, listener: str, request, version: int):
    """Send the first node a request from a node that authenticates as a user."""
    given = {name: str(value) for name, value in cluster.brokers[1].overrides.items()}
    own = cluster.root / "asking"
    own.mkdir(exist_ok=True)
    settings = Settings({**given, **secured(own, account)})
    credentials = securing.between_brokers(settings, now_ms) if listener == "brokers" \
        else securing.towards_controllers(settings, now_ms)
    listed = settings.listeners if listener == "brokers" else settings.controller_listeners
    peer = await Peer.connect(listed[0].host, listed[0].port, "test", credentials=credentials)
    try:
        return await peer.call(request, version, 20)
    finally:
        peer.close()


def test_only_nodes_fetch_as_replicas_and_call_the_controller(cluster):
    with Admin(as_user(cluster, "admin")) as admin:
        created(cluster, admin, "guarded")
    topic_id = id_of(cluster, "guarded")
    new = messages.FetchRequest
    fetch = new(
        max_wait_ms=0, min_bytes=0, max_bytes=1000, session_id=0, session_epoch=-1,
        replica_state=new.ReplicaState(replica_id=2), topics=[new.FetchTopic(
            topic_id=topic_id, partitions=[new.FetchPartition(
                partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1,
                partition_max_bytes=1000)])])
    envelope = messages.EnvelopeRequest(
        request_data=b"", request_principal=b"", client_host_address=bytes(4))
    calls = {
        "as a replica": ("brokers", fetch, 17), "of the metadata": ("controllers", fetch, 17),
        "envelope": ("controllers", envelope, 0),
        "registration": ("controllers", messages.BrokerRegistrationRequest(broker_id=9), 4),
        "heartbeat": ("controllers", messages.BrokerHeartbeatRequest(broker_id=1), 1),
        "isr": ("controllers", messages.AlterPartitionRequest(broker_id=1), 3),
        "markers": ("brokers", messages.WriteTxnMarkersRequest(markers=[
            messages.WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=1, producer_epoch=0, transaction_result=True, coordinator_epoch=0,
                topics=[messages.WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                    name="guarded", partition_indexes=[0])])]), 1)}
    for name, (listener, request, version) in calls.items():
        refused, taken = (_code(asyncio.run(request_as(cluster, user, listener, request, version)))
                          for user in ("mallory", "node"))
        wanted = NO_TOPIC_RIGHT if name == "as a replica" else NO_CLUSTER_RIGHT
        assert refused == wanted and taken != wanted, (name, refused, taken)


def _code(answer) -> int:
    """Return the first error code in a response, at any depth."""
    if getattr(answer, "error_code", 0):
        return answer.error_code
    for field in ("responses", "partitions", "markers", "topics"):
        for row in getattr(answer, field, ()):
            return _code(row)
    return 0


def test_etcd_rejects_clients_without_a_cluster_certificate(cluster):
    port = cluster.brokers[1].overrides["quorum.etcd.client.port"]
    context = ssl.create_default_context(cadata=CA.pem.decode())
    for host in HOSTS[1:]:
        with socket.create_connection((host, port), 10) as plain:
            plain.sendall(b"POST /v3/kv/range HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            assert b"200 OK" not in plain.recv(100)
        with pytest.raises((ssl.SSLError, ConnectionError)), socket.create_connection(
                (host, port), 10) as safe, context.wrap_socket(
                    safe, server_hostname=host) as stream:
            stream.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert stream.recv(100) == b""
            raise ConnectionError("ended")
