from types import SimpleNamespace

import pytest

from pylog.metadata.quorum.voter_status import Voter
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from tests.api.support import with_broker


VOTERS = {"controller.quorum.voters": "1@h1:9093,2@h2:9093,3@h3:9093",
          "controller.listener.names": "CONTROLLER", "process.roles": "broker,controller",
          "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"}


async def described(broker):
    new = messages.DescribeQuorumRequest
    return await broker.ask(api.DESCRIBE_QUORUM, 2, new(topics=[new.TopicData(
        topic_name="__cluster_metadata", partitions=[new.PartitionData(partition_index=0)])]))


def test_this_node_is_the_only_voter_and_never_behind():
    async def scenario(broker):
        answer = await described(broker)
        partition = answer.topics[0].partitions[0]
        assert (partition.leader_id, partition.leader_epoch) == (1, broker.image.epoch)
        assert [(voter.replica_id, voter.log_end_offset) for voter in partition.current_voters] \
            == [(1, broker.image.offset + 1)]
        assert partition.high_watermark == broker.image.offset + 1
        listener = answer.nodes[0].listeners[0]
        assert (listener.host, listener.port) == ("dialled.example", 1234)
    with_broker(scenario)


def test_other_voters_are_described_by_their_last_response():
    async def scenario(broker):
        end = broker.image.offset + 1

        async def asked(known):
            assert known == end
            return [Voter(2, end - 1, 70, 60), Voter(1, end, 90, 90), Voter(3)]
        broker.voters = SimpleNamespace(states=asked)
        answer = await described(broker)
        partition = answer.topics[0].partitions[0]
        assert partition.leader_id == 1
        assert {voter.replica_id: (voter.log_end_offset, voter.last_fetch_timestamp,
                                   voter.last_caught_up_timestamp)
                for voter in partition.current_voters} == {
                    1: (end, 90, broker.now_ms()), 2: (end - 1, 70, 60), 3: (-1, -1, -1)}
        assert {node.node_id: [(one.name, one.host, one.port) for one in node.listeners]
                for node in answer.nodes} == {
                    1: [("CONTROLLER", "dialled.example", 1234)],
                    2: [("CONTROLLER", "h2", 9093)], 3: [("CONTROLLER", "h3", 9093)]}
    with_broker(scenario, VOTERS)


def test_voters_offset_does_not_exceed_the_leaders():
    async def scenario(broker):
        end = broker.image.offset + 1

        async def asked(known):
            return [Voter(1, end + 2, 90, 90), Voter(2, end + 2, 90, 90)]
        broker.voters = SimpleNamespace(states=asked)
        partition = (await described(broker)).topics[0].partitions[0]
        assert {voter.log_end_offset for voter in partition.current_voters} == {end}
    with_broker(scenario, VOTERS)


def test_replaced_controller_returns_no_quorum_description():
    async def scenario(broker):
        async def asked(known):
            broker.controller.resign()
            return [Voter(1, known, 90, 90), Voter(2, known, 90, 90)]
        broker.voters = SimpleNamespace(states=asked)
        answer = await described(broker)
        assert (answer.error_code, answer.topics) == (ErrorCode.NOT_CONTROLLER, [])
    with_broker(scenario, VOTERS)


@pytest.mark.parametrize("name, level, kind, error", [
    ("metadata.version", 33, 1, 0), ("metadata.version", 34, 1, 95),
    ("metadata.version", 32, 2, 95), ("metadata.version", 32, 3, 95), ("other", 1, 1, 95),
    ("transaction.version", 3, 1, 95), ("transaction.version", 2, 1, 0)])
def test_feature_has_exactly_the_served_level(name, level, kind, error):
    async def scenario(broker):
        new = messages.UpdateFeaturesRequest
        answer = await broker.ask(api.UPDATE_FEATURES, 2, new(feature_updates=[
            new.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)]))
        assert answer.error_code == error
        assert broker.image.features == {
            "metadata.version": 33, "transaction.version": 2, "group.version": 1,
            "share.version": 2, "streams.version": 1}
    with_broker(scenario)


def test_feature_level_is_checked_with_the_other_controllers():
    async def scenario(broker):
        broker.standbys = [(2, {"transaction.version": (0, 1)})]
        new = messages.UpdateFeaturesRequest
        answer = await broker.ask(api.UPDATE_FEATURES, 2, new(feature_updates=[
            new.FeatureUpdateKey(feature="transaction.version", max_version_level=2,
                                 upgrade_type=1)]))
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "Controller 2 only supports versions 0-1" in answer.error_message
    with_broker(scenario)
