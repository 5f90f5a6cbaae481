"""Metadata that a branch inherits from its source, and rejected branches."""

import re
from types import SimpleNamespace

import pytest

from pylog.log.topic_branches import Cut
from pylog.metadata.controller.partitions import topic_branches
from pylog.metadata.controller.partitions.topics import TopicResult
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.controller.partitions.test_topics import NEW, cluster, create, topic

BRANCH, PLAIN = b"b" * 16, b"p" * 16
SOURCE, AT_OFFSET, AT_TIME = topic_branches.SOURCE, topic_branches.AT_OFFSET, topic_branches.AT_TIME


@pytest.fixture(scope="module")
def image():
    """Return an image with the topic `source`, of two partitions."""
    return create(cluster(), topic("source", 2, configs={
        "retention.ms": "5", "segment.bytes": "1048576"}), topic("__consumer_offsets"))[0]


def branch(*, partitions=-1, factor=-1, assignments=None, source="source", **options):
    """options: at_offset, at_time and settings, with `_` for `.`."""
    words = {"at_offset": AT_OFFSET, "at_time": AT_TIME}
    configs = {} if source is None else {SOURCE: source}
    configs.update({words.get(name, name.replace("_", ".")): value
                    for name, value in options.items()})
    return topic("branch", partitions, factor, assignments, configs)


def test_request_without_branches_is_unchanged(image):
    request = NEW(topics=[topic("plain", configs={"retention.ms": "7"})])
    assert topic_branches.split_branches(image, request) == (request, {}, [])


def test_branch_inherits_partitions_and_settings_of_its_source(image):
    plain = topic("plain", 7, 1)
    request, branches, refused = topic_branches.split_branches(image, NEW(
        topics=[plain, branch(retention_ms="9", at_offset="12")], timeout_ms=33,
        validate_only=True))
    assert branches == {"branch": ("source", Cut(12, None))} and refused == []
    assert request.topics[0] is plain and (request.timeout_ms, request.validate_only) == (33, True)
    made = request.topics[1]
    assert (made.name, made.num_partitions, made.replication_factor, made.assignments) == (
        "branch", 2, 1, [])
    assert {config.name: config.value for config in made.configs} == {
        "retention.ms": "9", "segment.bytes": "1048576"}


@pytest.mark.parametrize(("options", "cut"), [
    ({}, Cut(None, None)), ({"at_offset": "0"}, Cut(0, None)), ({"at_time": "17"}, Cut(None, 17)),
    ({"at_offset": "9" * 18}, Cut(10**18 - 1, None)),
    ({"partitions": 2, "factor": 1}, Cut(None, None))])
def test_branch_ends_at_the_requested_offset(image, options, cut):
    _, branches, refused = topic_branches.split_branches(image, NEW(topics=[branch(**options)]))
    assert branches == {"branch": ("source", cut)} and refused == []


@pytest.mark.parametrize(("options", "error", "text"), [
    ({"source": ""}, E.INVALID_CONFIG, "must name a topic"),
    ({"source": None, "at_offset": "1"}, E.INVALID_CONFIG, "must name a topic"),
    ({"source": "__consumer_offsets"}, E.INVALID_TOPIC_EXCEPTION, "an internal topic"),
    ({"source": "none"}, E.UNKNOWN_TOPIC_OR_PARTITION, "no topic 'none'"),
    ({"assignments": [(0, [1])]}, E.INVALID_REQUEST, "placed like its source's"),
    ({"partitions": 1}, E.INVALID_PARTITIONS, "has 2 partitions"),
    ({"partitions": 3}, E.INVALID_PARTITIONS, "has 2 partitions"),
    ({"factor": 2}, E.INVALID_REPLICATION_FACTOR, "has 1 replica,"),
    ({"at_offset": "1", "at_time": "1"}, E.INVALID_CONFIG, "either"),
    ({"at_offset": "-1"}, E.INVALID_CONFIG, "expected a number from 0 on$"),
    ({"at_offset": "9" * 19}, E.INVALID_CONFIG, "expected a number"),
    ({"at_offset": None}, E.INVALID_CONFIG, "expected a number"),
    ({"at_offset": "\u0661"}, E.INVALID_CONFIG, "expected a number"),
    ({"at_time": "now"}, E.INVALID_CONFIG, "milliseconds since 1970$"),
])
def test_invalid_branch_does_not_affect_other_topics(image, options, error, text):
    plain = topic("plain")
    request, branches, (refused,) = topic_branches.split_branches(
        image, NEW(topics=[branch(**options), plain]))
    assert request.topics == [plain] and branches == {}
    assert (refused.name, refused.error) == ("branch", error)
    assert re.search(text, refused.message)


def test_branches_are_rejected_in_clusters_of_several_brokers():
    two = create(cluster(2), topic("source"))[0]
    _, branches, (refused,) = topic_branches.split_branches(two, NEW(topics=[branch()]))
    assert branches == {} and refused.error == E.INVALID_REQUEST
    assert "clusters cannot create them" in refused.message


def test_only_branches_get_the_leader_epochs_of_their_sources():
    source = SimpleNamespace(partitions=[SimpleNamespace(leader_epoch=7)])
    results = [
        SimpleNamespace(name="plain", topic_id=PLAIN, error=E.NONE),
        SimpleNamespace(name="branch", topic_id=BRANCH, error=E.NONE),
        SimpleNamespace(name="refused", topic_id=bytes(16), error=E.INVALID_CONFIG)]
    records = [messages.PartitionRecord(topic_id=id_, partition_id=0, leader_epoch=0)
               for id_ in (PLAIN, BRANCH)]
    topic_branches.with_epochs(SimpleNamespace(topics={"source": source}), records, results, {
        "branch": ("source", None), "refused": ("source", None)})
    assert [record.leader_epoch for record in records] == [0, 7]


def test_failed_branch_is_removed_and_the_others_are_created():
    def records(name, id_):
        return [messages.TopicRecord(name=name, topic_id=id_),
                messages.ConfigRecord(resource_type=2, resource_name=name, name="x", value="1"),
                messages.PartitionRecord(topic_id=id_, partition_id=0),
                messages.ClearElrRecord(topic_name=name)]
    stays = [*records("plain", PLAIN), messages.NoOpRecord()]
    assert topic_branches.without([*records("branch", BRANCH), *stays],
                                  [TopicResult("branch", E.KAFKA_STORAGE_ERROR, None,
                                               BRANCH)]) == stays
