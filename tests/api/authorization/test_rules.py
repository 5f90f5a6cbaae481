"""Authorization of clients: Produce and Fetch with native grants, revocation, addresses, audit."""

import json
import threading
import time

import pytest

from pylog._native.records import batch
from pylog.metadata.controller.partitions.topic_branches import SOURCE
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from pylog.security import authorizer
from pylog.security.authorization.access import STANDARD
from pylog.security.authorizer import Authorizer, Decision
from pylog.testing import Broker
from pylog.testing.ports import free_port
from tests.security.caller import Caller
from tests.wire import raw
from tests.wire.talk import append, create_topic, fetch, produce, unique

JAAS = ('org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice" '
        'user_bob="bob";')
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN", "super.users": "User:ANONYMOUS",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS}


def settings(ports, **more) -> dict:
    return {**SETTINGS, "authorizer.class.name": STANDARD, "listeners": (
        f"PLAINTEXT://127.0.0.1:{ports[0]},SASL_PLAINTEXT://127.0.0.1:{ports[1]}"), **more}


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    return tmp_path_factory.mktemp("audit") / "audit.log"


@pytest.fixture(scope="module")
def ports(audit):
    ports = free_port(), free_port()
    with Broker(settings=settings(ports, **{
            "audit.log.file": str(audit), "audit.log.topic": "the-audit"})):
        yield ports


def rule(topic, operation, host="*", permission=authorizer.ALLOW, principal="User:alice"):
    return messages.CreateAclsRequest.AclCreation(
        resource_type=authorizer.TOPIC, resource_name=topic, principal=principal, host=host,
        resource_pattern_type=authorizer.LITERAL, operation=operation, permission_type=permission)


def allow(ports, *rules) -> None:
    with Caller(ports[0]) as caller:
        answer = caller.ask(api.CREATE_ACLS, 3, messages.CreateAclsRequest(creations=list(rules)))
        assert not any(row.error_code for row in answer.results), answer


def revoke(ports, topic, kind=authorizer.TOPIC) -> None:
    new = messages.DeleteAclsRequest
    with Caller(ports[0]) as caller:
        caller.ask(api.DELETE_ACLS, 3, new(filters=[new.DeleteAclsFilter(
            resource_type_filter=kind, resource_name_filter=topic,
            pattern_type_filter=authorizer.LITERAL, principal_filter=None, host_filter=None,
            operation=authorizer.ANY, permission_type=authorizer.ANY)]))


@pytest.fixture
def topic(ports):
    name = unique("rights")
    create_topic(ports[0], name)
    return name


@pytest.fixture
def alice(ports):
    with Caller(ports[1]) as caller:
        assert caller.plain("alice", "alice").error_code == 0
        yield caller


def record(text: bytes = b"v") -> bytes:
    return raw.batch([raw.record(value=text)])


def produced(caller, topic) -> int:
    return produce(caller, topic, record())["error_code"]


def fetched(caller, topic, **options) -> int:
    return fetch(caller, topic, **options)["error_code"]


def test_reading_and_writing_are_separate_permissions(ports, topic, alice):
    assert (produced(alice, topic), fetched(alice, topic)) == (REFUSED, REFUSED)
    allow(ports, rule(topic, authorizer.WRITE))
    assert (produced(alice, topic), fetched(alice, topic)) == (0, REFUSED)
    revoke(ports, topic)
    allow(ports, rule(topic, authorizer.READ))
    assert (produced(alice, topic), fetched(alice, topic)) == (REFUSED, 0)


def followed(caller, topic) -> int:
    """Return the response to a follower's Fetch."""
    new = messages.FetchRequest
    answer = caller.ask(api.FETCH, 12, new(
        replica_id=7, max_wait_ms=0, max_bytes=1 << 20, session_epoch=-1, topics=[new.FetchTopic(
            topic=topic, partitions=[new.FetchPartition(
                partition=0, current_leader_epoch=-1, fetch_offset=0,
                partition_max_bytes=1 << 20)])]))
    row = answer.responses[0].partitions[0]
    assert not row.records
    return row.error_code


def test_authorization_precedes_the_check_for_an_empty_topic_name(alice):
    assert (produced(alice, ""), fetched(alice, "")) == (REFUSED, REFUSED)


def branch(caller, source: str, name: str, *more_sources: str) -> int:
    """Return the error of a CreateTopics request that creates a branch. more_sources: additional
    sources.
    """
    new = messages.CreateTopicsRequest
    answer = caller.ask(api.CREATE_TOPICS, 7, new(timeout_ms=10_000, topics=[new.CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1,
        configs=[new.CreatableTopicConfig(name=SOURCE, value=value)
                 for value in (source, *more_sources)])]))
    return answer.topics[0].error_code


@pytest.mark.parametrize("rights", [
    (), (authorizer.READ,), (authorizer.DESCRIBE_CONFIGS,), (authorizer.WRITE, authorizer.DESCRIBE),
])
def test_branch_requires_read_permission_on_its_source(ports, topic, alice, rights):
    name = unique("branch")
    allow(ports, rule(name, authorizer.CREATE),
          *(rule(topic, operation) for operation in rights))
    assert branch(alice, topic, name) == REFUSED


def test_branch_with_two_sources_needs_permission_on_the_effective_one(ports, topic, alice):
    name, readable = unique("branch"), unique("readable")
    allow(ports, rule(name, authorizer.CREATE), rule(readable, authorizer.READ),
          rule(readable, authorizer.DESCRIBE_CONFIGS))
    assert branch(alice, readable, name, topic) == REFUSED


def test_branch_needs_read_and_describe_configs_on_its_source(ports, topic, alice):
    name = unique("branch")
    allow(ports, rule(name, authorizer.CREATE), rule(topic, authorizer.READ),
          rule(topic, authorizer.DESCRIBE_CONFIGS))
    assert branch(alice, topic, name) == 0
    assert fetched(alice, name) == REFUSED


def test_branch_refusal_does_not_reveal_whether_the_source_exists(ports, topic, alice):
    name = unique("branch")
    allow(ports, rule(name, authorizer.CREATE))
    assert branch(alice, unique("missing"), name) == branch(alice, topic, name) == REFUSED


def test_following_verifying_and_marking_are_for_nodes(ports, topic, alice):
    markers = messages.WriteTxnMarkersRequest
    marker = markers(markers=[markers.WritableTxnMarker(
        producer_id=1, coordinator_epoch=0, topics=[markers.WritableTxnMarkerTopic(
            name=topic, partition_indexes=[0])])])
    batched = messages.AddPartitionsToTxnRequest

    def answers() -> set[int]:
        row = alice.ask(api.WRITE_TXN_MARKERS, 1, marker).markers[0].topics[0].partitions[0]
        return {followed(alice, topic), row.error_code, alice.ask(
            api.ADD_PARTITIONS_TO_TXN, 4, batched(transactions=[
                batched.AddPartitionsToTxnTransaction(
                    transactional_id="t", producer_id=1, verify_only=True)])).error_code}

    refused = {REFUSED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    allow(ports, rule(topic, authorizer.ALL))
    assert fetched(alice, topic) == 0 and answers() == refused
    cluster = messages.CreateAclsRequest.AclCreation(
        resource_type=authorizer.CLUSTER, resource_name=authorizer.CLUSTER_NAME,
        principal="User:alice", host="*", resource_pattern_type=authorizer.LITERAL,
        operation=authorizer.CLUSTER_ACTION, permission_type=authorizer.ALLOW)
    allow(ports, cluster)
    assert not answers() & refused
    revoke(ports, authorizer.CLUSTER_NAME, authorizer.CLUSTER)
    assert answers() == refused


def test_hidden_topic_is_reported_like_a_missing_one(alice, topic):
    absent = unique("absent")
    assert produced(alice, absent) == produced(alice, topic) == REFUSED
    assert fetched(alice, absent) == fetched(alice, topic) == REFUSED


def test_revoked_acl_applies_to_open_connections(ports, topic, alice):
    allow(ports, rule(topic, authorizer.ALL))
    for _ in range(3):
        assert (produced(alice, topic), fetched(alice, topic)) == (0, 0)
    revoke(ports, topic)
    assert (produced(alice, topic), fetched(alice, topic)) == (REFUSED, REFUSED)


def test_waiting_fetch_gets_no_records_after_its_permission_is_revoked(ports, topic, alice):
    allow(ports, rule(topic, authorizer.READ))
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(
        fetch(alice, topic, wait_ms_max=20_000, bytes_min=1)))
    waiting.start()
    time.sleep(0.2)
    revoke(ports, topic)
    with Caller(ports[0]) as admin:
        assert produced(admin, topic) == 0
    waiting.join(20)
    assert answers and answers[0]["error_code"] == REFUSED and not answers[0]["records"]


def test_acls_of_one_address_do_not_apply_to_another(ports, topic, alice):
    allow(ports, rule(topic, authorizer.WRITE, host="10.1.2.3"))
    assert produced(alice, topic) == REFUSED
    allow(ports, rule(topic, authorizer.WRITE, host="127.0.0.1"))
    assert produced(alice, topic) == 0
    allow(ports, rule(topic, authorizer.WRITE, "127.0.0.1", authorizer.DENY))
    assert produced(alice, topic) == REFUSED
    revoke(ports, topic)
    allow(ports, rule(topic, authorizer.WRITE))
    assert produced(alice, topic) == 0


def test_session_ends_on_time_despite_acl_changes():
    ports = free_port(), free_port()
    with Broker(settings=settings(ports, **{"connections.max.reauth.ms": "1000"})), \
            Caller(ports[1]) as caller:
        assert caller.plain("alice", "alice").session_lifetime_ms == 1000
        allow(ports, rule("t", authorizer.READ, host="192.0.2.1"))
        assert caller.metadata().brokers
        time.sleep(1.1)
        with pytest.raises(raw.Closed):
            caller.metadata()


def test_acls_of_one_user_do_not_apply_to_another(ports, topic, alice):
    allow(ports, rule(topic, authorizer.ALL, principal="User:bob"))
    with Caller(ports[1]) as bob:
        assert bob.plain("bob", "bob").error_code == 0
        assert (produced(bob, topic), produced(alice, topic), produced(bob, topic)) \
            == (0, REFUSED, 0)


def test_auto_creation_requires_the_create_permission(ports, alice):
    new = messages.MetadataRequest
    name = unique("asked-for")
    request = new(topics=[new.MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
    allow(ports, rule(name, authorizer.DESCRIBE))
    assert [row.error_code for row in alice.ask(api.METADATA, 9, request).topics] == [REFUSED]
    allow(ports, rule(name, authorizer.CREATE))
    assert [row.error_code for row in alice.ask(api.METADATA, 9, request).topics] == [0]


def test_topic_list_contains_only_visible_topics(ports, topic, alice):
    def seen(version):
        return {row.name for row in alice.ask(api.METADATA, version, messages.MetadataRequest(
            topics=[] if version == 0 else None)).topics}

    for version in (0, 12):
        assert topic not in seen(version)
    allow(ports, rule(topic, authorizer.DESCRIBE))
    for version in (0, 12):
        assert topic in seen(version)
    revoke(ports, topic)
    for version in (0, 12):
        assert topic not in seen(version)


def test_audit_log_contains_principal_operation_and_acl(ports, topic, alice, audit):
    allow(ports, rule(topic, authorizer.READ))
    assert produced(alice, topic) == REFUSED
    end_s = time.monotonic() + 10
    while topic not in audit.read_text():
        assert time.monotonic() < end_s
        time.sleep(0.01)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    mine = [line for line in lines if line["name"] == topic and line["operation"] == "Write"]
    assert (mine[0]["principal"], mine[0]["host"], mine[0]["request"], mine[0]["allowed"],
            mine[0]["by"]) == ("User:alice", "127.0.0.1", "Produce", False, "no rule allows it")
    assert any((line["request"], line["operation"], line["allowed"]) == (
        "CreateAcls", "Alter", True) for line in lines)
    assert '"alice"' not in audit.read_text().replace("User:alice", "")


def told(caller) -> list[str]:
    """Return the lines in the audit log's topic."""
    batches = fetch(caller, "the-audit")["records"] or b""
    lines = []
    for at, _ in batch.walk(batches):
        lines += [value.decode() for _, _, _, value, _ in batch.records(batches[at:])]
    return lines


def test_audit_topic_contains_the_same_lines_as_the_file(ports, topic, alice, audit):
    assert produced(alice, topic) == REFUSED
    end_s = time.monotonic() + 10
    with Caller(ports[0]) as caller:
        while not any(topic in line for line in told(caller)):
            assert time.monotonic() < end_s
            time.sleep(0.01)
        lines = set(told(caller))
    while not lines <= set(audit.read_text().splitlines()):
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_audit_log_contains_no_denial_of_unrequested_operations(ports, topic, alice, audit):
    hidden = unique("hidden")
    create_topic(ports[0], hidden)
    allow(ports, rule(topic, authorizer.READ))
    begin = audit.stat().st_size
    assert fetched(alice, topic) == 0
    alice.ask(api.METADATA, 12, messages.MetadataRequest(topics=None))
    alice.ask(api.LIST_GROUPS, 4, messages.ListGroupsRequest())
    assert produced(alice, topic) == produced(alice, hidden) == REFUSED
    assert (fetched(alice, topic), produced(alice, topic)) == (0, REFUSED)
    end_s = time.monotonic() + 10
    while audit.read_bytes()[begin:].count(topic.encode()) < 2:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    lines = [json.loads(line) for line in audit.read_bytes()[begin:].splitlines()]
    assert [(line["request"], line["operation"], line["name"]) for line in lines
            if line["principal"] == "User:alice"] == [
        ("Produce", "Write", topic), ("Produce", "Write", hidden), ("Produce", "Write", topic)]


class OddNames(Authorizer):
    """Allows resources whose name has an odd number of letters."""

    def __init__(self, settings):
        self.settings = settings

    def authorize(self, principal, host, operation, resource_type, resource_name):
        return Decision(len(resource_name) % 2 == 1 or principal.name == "ANONYMOUS", None, "odd")

    def authorize_any(self, principal, host, operation, resource_type):
        return Decision(True, None, "")

    def take(self, security, changed):
        return None


def test_custom_authorizer_decides():
    ports = free_port(), free_port()
    with Broker(settings=settings(ports, **{
            "authorizer.class.name": "tests.api.authorization.test_rules:OddNames"})):
        for name in ("one", "four"):
            create_topic(ports[0], name)
        with Caller(ports[1]) as alice:
            alice.plain("alice", "alice")
            assert (produced(alice, "one"), produced(alice, "four")) == (0, REFUSED)


class Fickle(OddNames):
    """Allows everything while `open` is true, and accepts ACLs while `away` is false."""

    open, away = True, False

    def authorize(self, *asked):
        return Decision(Fickle.open, None, "open or not")

    def take(self, security, changed):
        if Fickle.away:
            raise ConnectionError("nobody answers")


@pytest.fixture
def fickle(monkeypatch):
    """Yield (the authorizer, the port of a broker's plain listener, alice's connection to the
    secured listener).
    """
    monkeypatch.setattr(Fickle, "open", True)
    monkeypatch.setattr(Fickle, "away", False)
    ports = free_port(), free_port()
    with Broker(settings=settings(ports, **{
            "authorizer.class.name": f"{__name__}:Fickle"})), Caller(ports[1]) as alice:
        alice.plain("alice", "alice")
        create_topic(ports[0], "t")
        yield Fickle, ports[0], alice


def comes(alice, error: int) -> bool:
    """Return True if a Produce to the topic soon gets this error."""
    end_s = time.monotonic() + 60
    while (seen := produced(alice, "t")) != error and time.monotonic() < end_s:
        time.sleep(0.05)
    return seen == error


def test_custom_authorizer_can_revoke_without_an_acl_change(fickle):
    authorizer_, _, alice = fickle
    assert produced(alice, "t") == 0
    authorizer_.open = False
    assert comes(alice, REFUSED)


def test_cached_heartbeat_ends_with_its_permission(fickle):
    authorizer_, _, alice = fickle

    def beat(epoch: int, **fields):
        answer = alice.ask(api.CONSUMER_GROUP_HEARTBEAT, 1, messages.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="a-member", member_epoch=epoch, **fields))
        time.sleep(0.05)
        return answer

    alice.ask(api.FIND_COORDINATOR, 4, messages.FindCoordinatorRequest(
        key_type=0, coordinator_keys=["g"]))
    joining = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"],
               "topic_partitions": []}
    end_s = time.monotonic() + 60
    while (answer := beat(0, **joining)).error_code and time.monotonic() < end_s:
        continue
    epoch = answer.member_epoch
    while (answer := beat(epoch)).heartbeat_interval_ms < 5000 and time.monotonic() < end_s:
        epoch = answer.member_epoch
    assert [beat(epoch).error_code for _ in range(3)] == [0, 0, 0]
    authorizer_.open = False
    while not (answer := beat(epoch)).error_code and time.monotonic() < end_s:
        continue
    assert answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_failed_acl_update_of_an_authorizer_is_retried(fickle):
    authorizer_, port, alice = fickle
    authorizer_.away = True
    allow((port, 0), rule("t", authorizer.WRITE))
    assert comes(alice, REFUSED)
    authorizer_.away = False
    assert comes(alice, 0)


def test_acls_require_an_authorizer():
    ports = free_port(), free_port()
    with Broker(settings={**settings(ports), "authorizer.class.name": ""}), \
            Caller(ports[0]) as caller:
        answer = caller.ask(api.CREATE_ACLS, 3, messages.CreateAclsRequest(
            creations=[rule("t", authorizer.READ)]))
        assert [row.error_code for row in answer.results] == [ErrorCode.SECURITY_DISABLED]


def test_transactions_need_the_right_on_their_id(ports, topic, alice):
    id_ = unique("transaction")
    request = messages.InitProducerIdRequest(transactional_id=id_, transaction_timeout_ms=10_000)
    ended = messages.EndTxnRequest(transactional_id=id_, producer_id=1, producer_epoch=0)
    error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    allow(ports, rule(topic, authorizer.WRITE))
    assert alice.ask(api.INIT_PRODUCER_ID, 4, request).error_code == error
    assert alice.ask(api.END_TXN, 3, ended).error_code == error
    batch = raw.batch([raw.record(value=b"v")], attributes=raw.TRANSACTIONAL, producer_id=1,
                      producer_epoch=0, base_sequence=0)
    assert produce(alice, topic, batch, transactional_id=id_)["error_code"] == error
    right = rule(id_, authorizer.WRITE)
    right.resource_type = authorizer.TRANSACTIONAL_ID
    allow(ports, right)
    assert alice.ask(api.END_TXN, 3, ended).error_code != error
    assert produce(alice, topic, batch, transactional_id=id_)["error_code"] != error


def producer_of(caller, id_: str):
    """Return its InitProducerIdResponse."""
    request = messages.FindCoordinatorRequest(key_type=1, coordinator_keys=[id_])
    caller.ask(api.FIND_COORDINATOR, 4, request)
    for _ in range(600):
        answer = caller.ask(api.INIT_PRODUCER_ID, 4, messages.InitProducerIdRequest(
            transactional_id=id_, transaction_timeout_ms=10_000))
        if answer.error_code == 0:
            return answer
        time.sleep(0.01)
    raise AssertionError(answer)


def add_partition(caller, id_: str, producer, topic: str) -> None:
    new = messages.AddPartitionsToTxnRequest
    added = caller.ask(api.ADD_PARTITIONS_TO_TXN, 3, new(
        v3_and_below_transactional_id=id_, v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch, v3_and_below_topics=[
            new.AddPartitionsToTxnTopic(name=topic, partitions=[0])]))
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0


def in_transaction(producer, sequence: int) -> bytes:
    return raw.batch([raw.record(value=b"v")], attributes=raw.TRANSACTIONAL,
                     producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
                     base_sequence=sequence)


def test_revoked_transaction_acl_applies_to_the_next_batch(ports, topic, alice):
    id_ = unique("transaction")
    right = rule(id_, authorizer.WRITE)
    right.resource_type = authorizer.TRANSACTIONAL_ID
    allow(ports, rule(topic, authorizer.WRITE), right)
    producer = producer_of(alice, id_)
    add_partition(alice, id_, producer, topic)
    for sequence in range(2):
        batch = in_transaction(producer, sequence)
        assert produce(alice, topic, batch, transactional_id=id_)["error_code"] == 0
    revoke(ports, id_, authorizer.TRANSACTIONAL_ID)
    batch = in_transaction(producer, 2)
    assert produce(alice, topic, batch, transactional_id=id_)["error_code"] \
        == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    allow(ports, right)
    assert produce(alice, topic, batch, transactional_id=id_)["error_code"] == 0


def test_transaction_description_omits_unauthorized_topics(ports, topic, alice):
    id_ = unique("transaction")
    right = rule(id_, authorizer.DESCRIBE)
    right.resource_type = authorizer.TRANSACTIONAL_ID
    allow(ports, right)
    with Caller(ports[0]) as owner:
        add_partition(owner, id_, producer_of(owner, id_), topic)

    def topics() -> list[str]:
        row, = alice.ask(api.DESCRIBE_TRANSACTIONS, 0, messages.DescribeTransactionsRequest(
            transactional_ids=[id_])).transaction_states
        assert (row.error_code, row.transaction_state) == (0, "Ongoing")
        return [found.topic for found in row.topics]

    assert topics() == []
    allow(ports, rule(topic, authorizer.DESCRIBE))
    assert topics() == [topic]


@pytest.mark.parametrize("everything", [False, True])
def test_allowed_reads_and_writes_are_audited_if_configured(tmp_path, everything):
    ports, audit = (free_port(), free_port()), tmp_path / "audit.log"
    with Broker(settings=settings(ports, **{
            "audit.log.file": str(audit), "audit.log.data.enable": everything})):
        name = unique("audited")
        create_topic(ports[0], name)
        append(ports[0], name, raw.batch())
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {line["name"] for line in lines if line["operation"] == "Write"} == (
        {name} if everything else set())
    assert any(line["operation"] == "Create" for line in lines)
