"""A controller's listener with an authorizer: nodes, forwarded principals, and other clients."""

import contextlib

import pytest

from pylog.protocol import api, codec, messages
from pylog.protocol.errors import ErrorCode as E
from pylog.security import authorizer
from pylog.security.authorization.access import STANDARD
from pylog.testing.ports import free_port
from tests.fixtures.brokers import Brokerd
from tests.security.caller import Caller
from tests.wire import raw

JAAS = ('org.apache.kafka.common.security.plain.PlainLoginModule required user_node="node" '
        'user_admin="admin" user_alice="alice";')
NODE, TOPIC = "User:node", "allowed"
LOCALHOST = b"\x7f\0\0\1"
OF_NODES = (
    (api.FETCH, 17, messages.FetchRequest(session_epoch=-1)),
    (api.FETCH_SNAPSHOT, 1, messages.FetchSnapshotRequest()),
    (api.ALTER_PARTITION, 3, messages.AlterPartitionRequest()),
    (api.ENVELOPE, 0, messages.EnvelopeRequest(request_data=b"", client_host_address=b"")),
    (api.BROKER_REGISTRATION, 4, messages.BrokerRegistrationRequest(broker_id=7)),
    (api.BROKER_HEARTBEAT, 1, messages.BrokerHeartbeatRequest(broker_id=7)),
    (api.UNREGISTER_BROKER, 0, messages.UnregisterBrokerRequest(broker_id=7)),
    (api.ALLOCATE_PRODUCER_IDS, 0, messages.AllocateProducerIdsRequest(broker_id=7)),
    (api.ASSIGN_REPLICAS_TO_DIRS, 0, messages.AssignReplicasToDirsRequest(broker_id=7)))


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """Return the port of a controller whose listener requires SASL."""
    port = free_port()
    controller = Brokerd(tmp_path_factory.mktemp("controller"), {
        "process.roles": "controller", "node.id": "100", "authorizer.class.name": STANDARD,
        "controller.quorum.voters": f"100@127.0.0.1:{port}", "super.users": "User:admin",
        "controller.listener.names": "CONTROLLER", "sasl.enabled.mechanisms": "PLAIN",
        "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT",
        "listener.name.controller.plain.sasl.jaas.config": JAAS,
        "listeners": f"CONTROLLER://127.0.0.1:{port}"})
    controller.start()
    try:
        with logged_in(port, "admin") as admin:
            allow(admin, NODE, authorizer.CLUSTER, authorizer.CLUSTER_NAME,
                  authorizer.CLUSTER_ACTION)
            allow(admin, "User:alice", authorizer.TOPIC, TOPIC, authorizer.CREATE)
        yield port
    finally:
        controller.kill()


@contextlib.contextmanager
def logged_in(port, name):
    with Caller(port) as caller:
        assert caller.plain(name, name).error_code == E.NONE
        yield caller


def allow(admin, principal, kind, name, operation):
    answer = admin.ask(api.CREATE_ACLS, 3, messages.CreateAclsRequest(creations=[
        messages.CreateAclsRequest.AclCreation(
            resource_type=kind, resource_name=name, principal=principal, host="*",
            resource_pattern_type=authorizer.LITERAL, operation=operation,
            permission_type=authorizer.ALLOW)]))
    assert not answer.results[0].error_code, answer


def creation(name):
    new = messages.CreateTopicsRequest
    return new(timeout_ms=5000, validate_only=True, topics=[
        new.CreatableTopic(name=name, num_partitions=1, replication_factor=1)])


def enveloped(principal, request, key=api.CREATE_TOPICS, version=7, principal_version=0):
    """Return an envelope of a request by a user; None: without a principal."""
    named = None
    if principal is not None:
        named = principal_version.to_bytes(2, "big") + codec.program(
            "DefaultPrincipalData", 0).encode(
            messages.DefaultPrincipalData(type="User", name=principal))
    return messages.EnvelopeRequest(
        request_data=codec.request_frame(key, version, 9, "inner", request)[4:],
        request_principal=named, client_host_address=LOCALHOST)


def error_of_topic(answer):
    """Return the error of the only topic in an envelope's response."""
    assert answer.error_code == E.NONE
    frame = bytes(answer.response_data)
    _, at = codec.decode_response_header(api.CREATE_TOPICS, 7, frame)
    return codec.decode_response(api.CREATE_TOPICS, 7, frame, at).topics[0].error_code


@pytest.mark.parametrize("key,version,request_", OF_NODES, ids=lambda value: str(value)[:4])
def test_only_nodes_may_send_node_requests(port, key, version, request_):
    with logged_in(port, "alice") as alice:
        assert alice.ask(key, version, request_).error_code == E.CLUSTER_AUTHORIZATION_FAILED
    with logged_in(port, "node") as node:
        refused = node.ask(key, version, request_).error_code == E.CLUSTER_AUTHORIZATION_FAILED
        # Kafka reserves this operation for administrators, not nodes.
        assert refused == (key == api.UNREGISTER_BROKER)


def test_controller_administrators_have_separate_permissions(port):
    with logged_in(port, "alice") as alice:
        assert alice.ask(api.CREATE_TOPICS, 7, creation("other")).topics[0].error_code \
            == E.TOPIC_AUTHORIZATION_FAILED
        assert alice.ask(api.CREATE_TOPICS, 7, creation(TOPIC)).topics[0].error_code \
            != E.TOPIC_AUTHORIZATION_FAILED
        assert alice.ask(api.DESCRIBE_ACLS, 3, messages.DescribeAclsRequest(
            resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1,
        )).error_code == E.CLUSTER_AUTHORIZATION_FAILED


def test_enveloped_request_is_authorized_by_its_principal(port):
    with logged_in(port, "node") as node:
        for user, topic, refused in (
                ("alice", TOPIC, False), ("alice", "other", True), ("bob", TOPIC, True),
                ("admin", "other", False), ("node", "other", True)):
            answer = node.ask(api.ENVELOPE, 0, enveloped(user, creation(topic)))
            assert (error_of_topic(answer) == E.TOPIC_AUTHORIZATION_FAILED) == refused, user
    with logged_in(port, "alice") as alice:
        assert alice.ask(api.ENVELOPE, 0, enveloped("admin", creation("other"))).error_code \
            == E.CLUSTER_AUTHORIZATION_FAILED


def test_an_envelope_without_a_readable_principal_is_rejected(port):
    with logged_in(port, "node") as node:
        for envelope in (enveloped(None, creation(TOPIC)), enveloped("", creation(TOPIC)),
                         enveloped("alice", creation(TOPIC), principal_version=1)):
            assert node.ask(api.ENVELOPE, 0, envelope).error_code \
                == E.PRINCIPAL_DESERIALIZATION_FAILURE


def test_envelope_must_not_contain_node_requests(port):
    with logged_in(port, "node") as node:
        for key, version, request in OF_NODES:
            if key != api.UNREGISTER_BROKER:
                assert node.ask(api.ENVELOPE, 0, enveloped(
                    "node", request, key, version)).error_code == E.INVALID_REQUEST, key


def test_strangers_are_cut_off_before_anything_is_decided(port):
    for key, version, request in (*OF_NODES, (api.CREATE_TOPICS, 7, creation(TOPIC))):
        with Caller(port) as stranger, pytest.raises(raw.Closed):
            stranger.ask(key, version, request)
    with Caller(port) as stranger:
        assert stranger.plain("node", "wrong").error_code == E.SASL_AUTHENTICATION_FAILED


def test_revoked_permission_applies_to_the_next_request(port):
    new = messages.DeleteAclsRequest
    with logged_in(port, "admin") as admin, logged_in(port, "node") as node:
        allow(admin, NODE, authorizer.TOPIC, "gone", authorizer.CREATE)
        assert node.ask(api.CREATE_TOPICS, 7, creation("gone")).topics[0].error_code \
            != E.TOPIC_AUTHORIZATION_FAILED
        admin.ask(api.DELETE_ACLS, 3, new(filters=[new.DeleteAclsFilter(
            resource_type_filter=authorizer.TOPIC, resource_name_filter="gone",
            pattern_type_filter=authorizer.LITERAL, principal_filter=None, host_filter=None,
            operation=1, permission_type=1)]))
        assert node.ask(api.CREATE_TOPICS, 7, creation("gone")).topics[0].error_code \
            == E.TOPIC_AUTHORIZATION_FAILED
