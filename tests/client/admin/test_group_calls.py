"""Admin requests to group and transaction coordinators, and parsing of their responses; the test
plays the brokers.
"""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client.errors import KafkaConnectionError, KafkaError, UnsupportedByBrokerError
from pylog.client.network.cluster import GROUP, TRANSACTION
from pylog.client.types import TopicPartition
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.client.played_admin import COORDINATOR, LEADER, admin_of

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
NO_GROUP, MOVED = ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NOT_COORDINATOR
DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS


def raised(call):
    with pytest.raises(KafkaError) as found:
        asyncio.run(call)
    return found.value.code


def kinds(cluster):
    """Return (node, kind) of all requests."""
    return [(node, type(request).__name__.removesuffix("Request"))
            for node, request, _ in cluster.asked]


# Groups.

def listed(*rows, code=0):
    new = messages.ListGroupsResponse
    return new(error_code=code, groups=[new.ListedGroup(
        group_id=id_, protocol_type=protocol, group_state="Stable", group_type=kind)
        for id_, protocol, kind in rows])


def test_groups_are_listed_from_every_broker_with_retries():
    admin, cluster = admin_of(
        listed(("a", "consumer", "classic")),
        listed(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), listed(("c", "share", "share")),
        listed(("b", "", "consumer")))
    found = asyncio.run(admin.list_groups())
    assert [(row.group_id, row.type) for row in found] == [
        ("a", "classic"), ("b", "consumer"), ("c", "share")]
    assert [node for node, _, _ in cluster.asked] == [1, 2, 3, 2]


@pytest.mark.parametrize(("version", "states", "types", "sent"), [
    (3, [], [], []), (3, [], ["Classic", "share"], []), (4, ["Stable"], ["classic"], []),
    (5, ["Stable"], ["share"], ["share"])])
def test_a_list_is_filtered_by_brokers_that_know_how(version, states, types, sent):
    admin, cluster = admin_of(*[listed()] * 3)
    cluster.versions["ListGroupsRequest"] = version
    asyncio.run(admin.list_groups(iter(states), iter(types)))
    for _, request, spoken in cluster.asked:
        assert (request.states_filter or [], request.types_filter or [], spoken) == (
            states, sent, version)


@pytest.mark.parametrize(("version", "states", "types"), [
    (3, ["Stable"], []), (4, [], ["share"])])
def test_unsupported_list_filter_is_an_error(version, states, types):
    admin, cluster = admin_of()
    cluster.versions["ListGroupsRequest"] = version
    with pytest.raises(UnsupportedByBrokerError):
        asyncio.run(admin.list_groups(states, types))
    assert cluster.asked == []


def test_groups_of_joining_or_leaving_brokers_are_listed_once():
    admin, cluster = admin_of()
    nodes = dict(cluster.metadata.nodes)
    lists = {1: [("a", "consumer", "classic")], 3: [("b", "consumer", "classic")],
             4: [("a", "consumer", "classic"), ("c", "consumer", "classic")]}

    async def connection(node, channel=None):
        async def send(request, version):
            cluster.asked.append((node, request, version))
            if node == 2:
                del nodes[2]
                nodes[4] = nodes[1]
                raise KafkaConnectionError("gone")
            return listed(*lists[node])

        return SimpleNamespace(version=lambda kind: 5, send=send)

    cluster.connection, cluster.metadata.nodes = connection, nodes
    found = asyncio.run(admin.list_groups())
    assert [row.group_id for row in found] == ["a", "b", "c"]
    assert [node for node, _, _ in cluster.asked] == [1, 2, 3, 4]


def test_listing_returns_other_brokers_groups_if_one_never_responds():
    admin, cluster = admin_of(listed(("a", "consumer", "classic")), *[
        KafkaConnectionError("down")] * 9)
    cluster.metadata.nodes = {node: None for node in (1, 2)}
    with pytest.raises(KafkaConnectionError) as caught:
        asyncio.run(admin.list_groups())
    assert [row.group_id for row in caught.value.results[1]] == ["a"]
    assert caught.value.results[2] is caught.value


def test_consumer_filter_returns_groups_of_both_consumer_protocols_only():
    admin, _ = admin_of(listed(
        ("a", "consumer", "Classic"), ("b", "consumer", "Consumer"), ("c", "", ""),
        ("d", "connect", "classic"), ("e", "share", "share"), ("f", "consumer", "Streams")),
        listed(), listed())
    assert [row.group_id for row in asyncio.run(admin.list_consumer_groups())] == ["a", "b", "c"]


def newer(code=0):
    new = messages.ConsumerGroupDescribeResponse
    member = new.Member(
        member_id="m", instance_id="i", client_id="c", client_host="/h", assignment=new.Assignment(
            topic_partitions=[new.TopicPartitions(topic_name="t", partitions=[0, 1])]))
    return new(groups=[new.DescribedGroup(
        group_id="g", error_code=code, group_state="Stable", assignor_name="uniform",
        members=[] if code else [member])])


def older(state="Stable", code=0, assignment=b"junk"):
    new = messages.DescribeGroupsResponse
    return new(groups=[new.DescribedGroup(
        group_id="g", error_code=code, group_state=state, protocol_data="range",
        members=[new.DescribedGroupMember(
            member_id="m", group_instance_id=None, client_id="c", client_host="/h",
            member_assignment=assignment)])])


def test_a_consumer_group_is_described_by_its_coordinator():
    admin, cluster = admin_of(newer())
    found = asyncio.run(admin.describe_consumer_groups(["g"]))["g"]
    assert (found.state, found.type, found.assignor, found.coordinator) == (
        "Stable", "consumer", "uniform", COORDINATOR)
    member, = found.members
    assert (member.member_id, member.group_instance_id, member.assignment) == (
        "m", "i", [T0, T1])
    assert kinds(cluster) == [(COORDINATOR, "ConsumerGroupDescribe")]


@pytest.mark.parametrize("first", [
    newer(NO_GROUP), newer(ErrorCode.UNSUPPORTED_VERSION), UnsupportedByBrokerError("old")])
def test_classic_group_is_described_after_newer_types(first):
    admin, cluster = admin_of(first, older())
    found = asyncio.run(admin.describe_consumer_groups(["g"]))["g"]
    assert (found.type, found.assignor, found.members[0].assignment) == ("classic", "range", [])
    assert kinds(cluster)[-1] == (COORDINATOR, "DescribeGroups")


def test_many_groups_are_described_by_one_request_of_each_kind_to_each_coordinator():
    new, old = messages.ConsumerGroupDescribeResponse, messages.DescribeGroupsResponse

    def describe(request):
        if isinstance(request, messages.DescribeGroupsRequest):
            return old(groups=[old.DescribedGroup(group_id=name) for name in request.groups])
        return new(groups=[new.DescribedGroup(
            group_id=name, error_code=NO_GROUP if name == "classic" else 0)
            for name in request.group_ids])

    admin, cluster = admin_of(describe, describe, describe)
    cluster.placed = {"elsewhere": 3}
    names = ["a", "b", "classic", "elsewhere"]
    found = asyncio.run(admin.describe_consumer_groups(names))
    assert {name: (row.type, row.coordinator) for name, row in found.items()} == {
        "a": ("consumer", 2), "b": ("consumer", 2), "classic": ("classic", 2),
        "elsewhere": ("consumer", 3)}
    assert sorted(kinds(cluster)) == [
        (2, "ConsumerGroupDescribe"), (2, "DescribeGroups"), (3, "ConsumerGroupDescribe")]


@pytest.mark.parametrize(("answers", "code", "count"), [
    ([newer(DENIED)], DENIED, 1), ([newer(NO_GROUP), older("Dead")], NO_GROUP, 2),
    ([newer(NO_GROUP), older(code=DENIED)], DENIED, 2)])
def test_failed_group_description_contains_the_reason(answers, code, count):
    admin, cluster = admin_of(*answers)
    assert raised(admin.describe_consumer_groups(["g"])) == code and len(cluster.asked) == count


def test_moved_coordinator_is_looked_up_again():
    admin, cluster = admin_of(newer(MOVED), newer())
    asyncio.run(admin.describe_consumer_groups(["g"]))
    assert cluster.forgotten == [(GROUP, "g")] and len(cluster.asked) == 2


def test_groups_are_deleted_at_their_coordinators_with_all_results():
    new = messages.DeleteGroupsResponse

    def answer(request):
        name, = request.groups_names
        return new(results=[new.DeletableGroupResult(
            group_id=name, error_code=ErrorCode.NON_EMPTY_GROUP if name == "b" else 0)])

    admin, cluster = admin_of(*[answer] * 3)
    with pytest.raises(KafkaError) as found:
        asyncio.run(admin.delete_consumer_groups(["a", "b", "c"]))
    assert found.value.code == ErrorCode.NON_EMPTY_GROUP and len(cluster.asked) == 3
    assert {name: result is None for name, result in found.value.results.items()} == {
        "a": True, "b": False, "c": True}


def test_removing_members_requires_a_recent_broker():
    admin, cluster = admin_of()
    cluster.versions["LeaveGroupRequest"] = 2
    with pytest.raises(UnsupportedByBrokerError):
        asyncio.run(admin.remove_members_from_consumer_group("g", ["i"]))
    assert cluster.asked == []


@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize(("whole", "member", "code"), [
    (0, 0, 0), (DENIED, 0, DENIED), (0, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID)])
def test_members_are_removed_and_each_error_is_reported(
        version, whole, member, code):
    new = messages.LeaveGroupResponse
    admin, cluster = admin_of(new(error_code=whole, members=[
        new.MemberResponse(group_instance_id="i", error_code=0),
        new.MemberResponse(member_id="m", error_code=member)]))
    cluster.versions["LeaveGroupRequest"] = version
    call = admin.remove_members_from_consumer_group("g", ["i"], ["m"])
    if code:
        assert raised(call) == code
    else:
        asyncio.run(call)
    assert cluster.asked[0][2] == version


@pytest.mark.parametrize(("whole", "part", "code"), [
    (0, 0, 0), (DENIED, 0, DENIED), (0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 86)])
def test_offsets_are_forgotten_by_topic(whole, part, code):
    new = messages.OffsetDeleteResponse
    admin, cluster = admin_of(new(error_code=whole, topics=[new.OffsetDeleteResponseTopic(
        name="t", partitions=[new.OffsetDeleteResponsePartition(partition_index=0, error_code=0),
                              new.OffsetDeleteResponsePartition(partition_index=1,
                                                                error_code=part)])]))
    call = admin.delete_consumer_group_offsets("g", [T0, U0, T1])
    if code:
        assert raised(call) == code
    else:
        asyncio.run(call)
    assert [(topic.name, [row.partition_index for row in topic.partitions])
            for topic in cluster.asked[0][1].topics] == [("t", [0, 1]), ("u", [0])]


# Share groups.

def test_share_group_offsets_are_listed_and_errors_are_raised():
    new = messages.DescribeShareGroupOffsetsResponse
    row, topic = (new.DescribeShareGroupOffsetsResponseGroup,
                  new.DescribeShareGroupOffsetsResponseTopic)

    def answer(whole=0, part=0):
        return new(groups=[row(group_id="g", error_code=whole, topics=[topic(
            topic_name="t", partitions=[new.DescribeShareGroupOffsetsResponsePartition(
                partition_index=1, start_offset=7, leader_epoch=3, error_code=part)])])])

    admin, _ = admin_of(answer())
    found = asyncio.run(admin.list_share_group_offsets("g"))
    assert list(found) == [T1] and found[T1][:2] == (7, 3)
    for whole, part in ((DENIED, 0), (0, DENIED)):
        admin, _ = admin_of(answer(whole, part))
        assert raised(admin.list_share_group_offsets("g")) == DENIED


def changed(kind, *, whole=0, part=0):
    if kind == "alter":
        new = messages.AlterShareGroupOffsetsResponse
        return new(error_code=whole, responses=[new.AlterShareGroupOffsetsResponseTopic(
            topic_name="t", partitions=[new.AlterShareGroupOffsetsResponsePartition(
                partition_index=0, error_code=part, error_message="why")])])
    new = messages.DeleteShareGroupOffsetsResponse
    return new(error_code=whole, responses=[new.DeleteShareGroupOffsetsResponseTopic(
        topic_name="t", error_code=part, error_message="why")])


@pytest.mark.parametrize("kind", ["alter", "delete"])
@pytest.mark.parametrize(("faults", "code"), [
    ({}, 0), ({"whole": DENIED}, DENIED), ({"part": NO_GROUP}, NO_GROUP)])
def test_share_group_offsets_are_altered_by_topic(kind, faults, code):
    admin, cluster = admin_of(changed(kind, **faults))
    call = admin.alter_share_group_offsets("g", {T0: 5, U0: 6, T1: 7}) if kind == "alter" \
        else admin.delete_share_group_offsets("g", ["t", "u"])
    if code:
        assert raised(call) == code
    else:
        asyncio.run(call)
    topics = cluster.asked[0][1].topics
    assert [topic.topic_name for topic in topics] == ["t", "u"]
    if kind == "alter":
        assert [[(row.partition_index, row.start_offset) for row in topic.partitions]
                for topic in topics] == [[(0, 5), (1, 7)], [(0, 6)]]


# Transactions.

def test_unsupported_duration_filter_of_transactions_is_an_error():
    admin, cluster = admin_of()
    cluster.versions["ListTransactionsRequest"] = 0
    with pytest.raises(UnsupportedByBrokerError):
        asyncio.run(admin.list_transactions((), 500))
    assert cluster.asked == []


@pytest.mark.parametrize(("version", "duration"), [(0, -1), (1, 500)])
def test_transactions_are_listed_of_every_broker(version, duration):
    new = messages.ListTransactionsResponse
    row = new.TransactionState(transactional_id="x", producer_id=7, transaction_state="Ongoing")
    admin, cluster = admin_of(
        new(error_code=0, transaction_states=[row]),
        new(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        new(error_code=0, transaction_states=[]), new(error_code=0, transaction_states=[row]))
    cluster.versions["ListTransactionsRequest"] = version
    found = asyncio.run(admin.list_transactions(iter(["Ongoing"]), duration))
    assert [(one.transactional_id, one.producer_id, one.state, one.coordinator)
            for one in found] == [("x", 7, "Ongoing", 1), ("x", 7, "Ongoing", 2)]
    _, request, sent = cluster.asked[0]
    assert (request.state_filters, request.duration_filter, sent) == (
        ["Ongoing"], duration, version)


def test_transaction_description_follows_a_moved_coordinator():
    new = messages.DescribeTransactionsResponse

    def answer(code):
        return new(transaction_states=[new.TransactionState(
            error_code=code, transactional_id="x", transaction_state="Ongoing", producer_id=7,
            producer_epoch=3, transaction_timeout_ms=5, transaction_start_time_ms=6,
            topics=[new.TopicData(topic="t", partitions=[0, 1])])])

    admin, cluster = admin_of(answer(MOVED), answer(0))
    found = asyncio.run(admin.describe_transactions(["x", "x"]))["x"]
    assert (found.producer_id, found.producer_epoch, found.coordinator) == (7, 3, COORDINATOR)
    assert found.partitions == (T0, T1) and len(cluster.asked) == 2
    assert cluster.forgotten == [(TRANSACTION, "x")]
    admin, cluster = admin_of(answer(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND))
    assert raised(admin.describe_transactions(["x"])) == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert cluster.forgotten == []


def test_missing_transactional_id_does_not_hide_others():
    new = messages.InitProducerIdResponse
    admin, _ = admin_of(new(error_code=0, producer_id=7, producer_epoch=4),
                        new(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
                        new(error_code=0, producer_id=9, producer_epoch=1))
    with pytest.raises(KafkaError) as caught:
        asyncio.run(admin.fence_producers(["x", "y", "z"]))
    assert caught.value.results == {"x": (7, 4), "y": caught.value, "z": (9, 1)}


def test_fencing_producers_waits_for_an_ending_in_progress():
    new = messages.InitProducerIdResponse
    admin, cluster = admin_of(new(error_code=BUSY),
                              new(error_code=0, producer_id=7, producer_epoch=4))
    assert asyncio.run(admin.fence_producers(["x"])) == {"x": (7, 4)}
    _, request, sent = cluster.asked[1]
    assert (request.transactional_id, request.transaction_timeout_ms, sent) == ("x", 1, 5)


def test_active_producers_are_described_by_the_leader():
    new = messages.DescribeProducersResponse

    def answer(code):
        return new(topics=[new.TopicResponse(name="t", partitions=[new.PartitionResponse(
            partition_index=1, error_code=code, active_producers=[new.ProducerState(
                producer_id=7, producer_epoch=3, last_sequence=9, last_timestamp=5,
                coordinator_epoch=2, current_txn_start_offset=4)])])])

    admin, cluster = admin_of(answer(ErrorCode.NOT_LEADER_OR_FOLLOWER), answer(0))
    one, = asyncio.run(admin.describe_producers(T1))
    assert (one.producer_id, one.producer_epoch, one.last_sequence) == (7, 3, 9)
    assert kinds(cluster) == [(LEADER, "DescribeProducers")] * 2


@pytest.mark.parametrize(("epoch", "sent"), [(-1, 0), (0, 0), (4, 4)])
def test_forced_abort_writes_a_marker_with_a_valid_coordinator_epoch(epoch, sent):
    new = messages.WriteTxnMarkersResponse

    def answer(code):
        return new(markers=[new.WritableTxnMarkerResult(topics=[
            new.WritableTxnMarkerTopicResult(partitions=[
                new.WritableTxnMarkerPartitionResult(partition_index=1, error_code=code)])])])

    admin, cluster = admin_of(answer(0))
    asyncio.run(admin.abort_transaction(T1, 7, 3, epoch))
    marker, = cluster.asked[0][1].markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 3, sent)
    assert marker.transaction_result is False and cluster.asked[0][0] == LEADER
    admin, _ = admin_of(answer(ErrorCode.INVALID_PRODUCER_EPOCH))
    assert raised(admin.abort_transaction(T1, 7, 3, epoch)) == ErrorCode.INVALID_PRODUCER_EPOCH


def offsets_of(*groups):
    new = messages.OffsetFetchResponse
    return new(groups=[new.OffsetFetchResponseGroup(group_id=name, error_code=code, topics=[
        new.OffsetFetchResponseTopics(name="t", partitions=[
            new.OffsetFetchResponsePartitions(partition_index=0, committed_offset=offset)])]
        if not code else []) for name, offset, code in groups])


def test_offsets_of_many_groups_are_read_with_one_request_to_each_coordinator():
    admin, cluster = admin_of(
        offsets_of(("a", 5, 0), ("c", 7, 0)), offsets_of(("b", 6, 0)))
    cluster.placed = {"a": 1, "b": 2, "c": 1}
    found = asyncio.run(admin.list_offsets_of_consumer_groups(dict.fromkeys("abc")))
    assert {name: rows[T0].offset for name, rows in found.items()} == {"a": 5, "b": 6, "c": 7}
    assert [(node, len(request.groups)) for node, request, _ in cluster.asked] == [(1, 2), (2, 1)]


def test_one_denied_group_does_not_hide_the_offsets_of_the_others():
    admin, cluster = admin_of(offsets_of(("a", 5, 0), ("b", -1, DENIED)))
    with pytest.raises(KafkaError) as failure:
        asyncio.run(admin.list_offsets_of_consumer_groups(dict.fromkeys("ab")))
    assert failure.value.code == DENIED
    assert failure.value.results["a"][T0].offset == 5


def test_offsets_of_a_group_whose_coordinator_moved_are_requested_again():
    admin, cluster = admin_of(offsets_of(("a", 5, 0), ("b", -1, MOVED)), offsets_of(("b", 6, 0)))
    found = asyncio.run(admin.list_offsets_of_consumer_groups(dict.fromkeys("ab")))
    assert (found["a"][T0].offset, found["b"][T0].offset) == (5, 6)
    assert cluster.forgotten == [(GROUP, "b")]
    assert [len(request.groups) for _, request, _ in cluster.asked] == [2, 1]
