"""Clients without permission to see an object cannot detect its existence: every API key in every
version, once for an existing object and once for a missing one.
"""

import os

import pytest

from pylog.protocol import api, codec, messages, tables
from pylog.security import authorizer
from pylog.security.authorization.access import STANDARD
from pylog.testing import Broker
from pylog.testing.ports import free_port
from tests.security.caller import Caller
from tests.wire import raw
from tests.wire.talk import create_topic

# Topic, group, transactional id and user at the same time; all of the same length.
SECRET, ABSENT, OWN = "the-secret-word", "the-absent-word", "her-own-word"
JAAS = ('org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice" '
        'user_bob="bob";')
RIGHTS = [(kind, operation) for kind, operations in (
    (authorizer.TOPIC, authorizer.OPERATIONS[authorizer.TOPIC]),
    (authorizer.GROUP, authorizer.OPERATIONS[authorizer.GROUP]),
    (authorizer.TRANSACTIONAL_ID, (authorizer.DESCRIBE, authorizer.WRITE)))
    for operation in operations]
# Resource types of the config APIs.
KINDS = (2, 32)
# A request for a response, without a session, with enough time.
EXCEPT = {"resource_type": 0, "acks": 1, "session_epoch": -1, "timeout_ms": 10_000}
# Requests that name topics only by id: the error tells a client that has an id, a random number of
# 128 bits, if it is a topic's. Kafka does the same.
IDS_SINCE = {api.PRODUCE: 13, api.FETCH: 13}
# Logins, and requests that end by a timeout.
LEFT_OUT = (api.SASL_HANDSHAKE, api.SASL_AUTHENTICATE)
ROUNDS = [(key, version, kind) for key, (low, high) in sorted(api.SERVED.items())
          for version in range(low, high + 1) for kind in KINDS if key not in LEFT_OUT]


def filled(key: int, version: int, word: str, id_: bytes, kind: int):
    """Return a request in which every name is the word, and every id the id."""
    message = tables.message(tables.name_of("request", key))

    def struct(cls, fields):
        return cls(**{field.name: value(field) for field in fields
                      if tables.contains(field.versions, version)})

    def value(field):
        one = struct(getattr(codec.message_class(message.name), field.type),
                     message.structs[field.type]) if field.is_struct else simple(field)
        return [one] if field.array else one

    def simple(field):
        if field.type in ("string", "uuid"):
            return word if field.type == "string" else id_
        if field.name in EXCEPT:
            return kind if field.name == "resource_type" else EXCEPT[field.name]
        if field.type in ("bytes", "records"):
            return b"" if field.type == "bytes" else None
        return {"bool": False, "float64": 0.0}.get(field.type, 0)

    return struct(codec.message_class(message.name), message.fields)


def answer(port: int, callers: list, key: int, version: int, request) -> bytes | str:
    """Return alice's response frame, without its throttle time; or that her connection ended."""
    if not callers:
        callers.append(Caller(port))
        callers[0].__enter__()
        assert callers[0].plain("alice", "alice").error_code == 0
    caller = callers[0]
    try:
        caller.send(codec.request_frame(key, version, 7, "caller", request))
        return bytes(caller.receive())
    except raw.Closed:
        callers.pop().__exit__(None, None, None)
        return "closed"


@pytest.fixture(scope="module")
def ports():
    ports = free_port(), free_port()
    with Broker(settings={
            "authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "PLAIN", "auto.create.topics.enable": "false",
            "connection.failed.authentication.delay.ms": "1",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
            "listeners": f"PLAINTEXT://127.0.0.1:{ports[0]},SASL_PLAINTEXT://127.0.0.1:{ports[1]}",
            }):
        create_topic(ports[0], OWN)
        id_ = bytes.fromhex(create_topic(ports[0], SECRET))
        make(ports[0])
        yield *ports, id_


def make(port: int) -> None:
    """Create the group, the transactional id, the user, the settings."""
    m = messages
    commit = m.OffsetCommitRequest
    with Caller(port) as caller:
        for request in (
                (api.FIND_COORDINATOR, 4, m.FindCoordinatorRequest(
                    key_type=0, coordinator_keys=[SECRET])),
                (api.FIND_COORDINATOR, 4, m.FindCoordinatorRequest(
                    key_type=1, coordinator_keys=[SECRET])),
                (api.INCREMENTAL_ALTER_CONFIGS, 1, m.IncrementalAlterConfigsRequest(resources=[
                    m.IncrementalAlterConfigsRequest.AlterConfigsResource(
                        resource_type=2, resource_name=SECRET, configs=[
                            m.IncrementalAlterConfigsRequest.AlterableConfig(
                                name="flush.ms", config_operation=0, value="7")])]))):
            until_right(caller, *request)
        until_right(caller, api.OFFSET_COMMIT, 8, commit(
            group_id=SECRET, generation_id_or_member_epoch=-1, topics=[
                commit.OffsetCommitRequestTopic(name=SECRET, partitions=[
                    commit.OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=0)])]))
        until_right(caller, api.INIT_PRODUCER_ID, 4, m.InitProducerIdRequest(
            transactional_id=SECRET, transaction_timeout_ms=60_000))


def until_right(caller: Caller, key: int, version: int, request) -> None:
    for _ in range(600):
        found = caller.ask(key, version, request)
        rows = [found, *getattr(found, "coordinators", ()), *getattr(found, "responses", ()),
                *(part for topic in getattr(found, "topics", ()) for part in topic.partitions)]
        if not any(getattr(row, "error_code", 0) for row in rows):
            return
        caller.metadata()
    raise AssertionError(found)


def state(port: int) -> list:
    """Return the existing objects, as an administrator sees them."""
    m = messages
    with Caller(port) as caller:
        return [caller.send(codec.request_frame(key, version, 7, "caller", request))
                or bytes(caller.receive()) for key, version, request in (
            (api.METADATA, 9, m.MetadataRequest(topics=None)),
            (api.LIST_GROUPS, 4, m.ListGroupsRequest()),
            (api.LIST_TRANSACTIONS, 0, m.ListTransactionsRequest()),
            (api.DESCRIBE_CONFIGS, 4, m.DescribeConfigsRequest(resources=[
                m.DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=2, resource_name=SECRET, configuration_keys=None)])),
            (api.DESCRIBE_CLIENT_QUOTAS, 1, m.DescribeClientQuotasRequest(components=[])))]


def told_apart(ports: tuple) -> list:
    """Return the requests whose responses distinguish existing objects from missing ones, or that
    get none.
    """
    callers: list = []
    found, ids = [], (ports[2], os.urandom(16))
    for key, version, kind in ROUNDS:
        answers = []
        for word, id_ in zip((SECRET, ABSENT), ids, strict=True):
            got = answer(ports[1], callers, key, version, filled(key, version, word, id_, kind))
            if isinstance(got, bytes):
                got = got.replace(word.encode(), b"<word>").replace(id_, b"<id>")
            answers.append(got)
        is_told = answers[0] != answers[1] and version < IDS_SINCE.get(key, version + 1)
        if is_told or "closed" in answers:
            found.append((tables.name_of("request", key), version, kind, *answers))
    for caller in callers:
        caller.__exit__(None, None, None)
    return found


def allow(port: int, *rights) -> None:
    """Replace alice's ACLs by ACLs on her own objects."""
    drop, new = messages.DeleteAclsRequest, messages.CreateAclsRequest
    with Caller(port) as caller:
        caller.ask(api.DELETE_ACLS, 3, drop(filters=[drop.DeleteAclsFilter(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1,
            principal_filter="User:alice", host_filter=None, operation=1, permission_type=1)]))
        answered = caller.ask(api.CREATE_ACLS, 3, new(creations=[new.AclCreation(
            resource_type=kind, resource_name=OWN, resource_pattern_type=3, principal="User:alice",
            host="*", operation=operation, permission_type=3) for kind, operation in rights]))
    assert not any(row.error_code for row in answered.results), answered


@pytest.mark.parametrize("rights", [(), tuple(RIGHTS)], ids=["none", "all of her own"])
def test_responses_do_not_reveal_the_existence_of_hidden_objects(ports, rights):
    allow(ports[0], *rights)
    before = state(ports[0])
    found = told_apart(ports)
    assert not found, "\n".join(map(str, found))
    assert state(ports[0]) == before


@pytest.mark.slow
@pytest.mark.parametrize("right", RIGHTS)
def test_responses_do_not_reveal_existence_to_principals_with_other_permissions(ports, right):
    allow(ports[0], right)
    found = told_apart(ports)
    assert not found, "\n".join(map(str, found))
