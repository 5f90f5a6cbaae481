import pytest

from pylog.protocol import api, messages
from tests.api.support import with_broker


def test_this_node_is_the_only_voter_and_never_behind():
    async def scenario(broker):
        new = messages.DescribeQuorumRequest
        answer = await broker.ask(api.DESCRIBE_QUORUM, 2, new(topics=[new.TopicData(
            topic_name="__cluster_metadata", partitions=[new.PartitionData(partition_index=0)])]))
        partition = answer.topics[0].partitions[0]
        assert (partition.leader_id, partition.leader_epoch) == (1, broker.image.epoch)
        assert [(voter.replica_id, voter.log_end_offset) for voter in partition.current_voters] \
            == [(1, broker.image.offset + 1)]
        assert partition.high_watermark == broker.image.offset + 1
        listener = answer.nodes[0].listeners[0]
        assert (listener.host, listener.port) == ("dialled.example", 1234)
    with_broker(scenario)


@pytest.mark.parametrize("name, level, kind, error", [
    ("metadata.version", 30, 1, 0), ("metadata.version", 31, 1, 95),
    ("metadata.version", 29, 2, 95), ("metadata.version", 29, 3, 95), ("other", 1, 1, 95),
    ("transaction.version", 3, 1, 95), ("transaction.version", 2, 1, 0)])
def test_a_feature_has_the_one_level_that_is_served(name, level, kind, error):
    async def scenario(broker):
        new = messages.UpdateFeaturesRequest
        answer = await broker.ask(api.UPDATE_FEATURES, 2, new(feature_updates=[
            new.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)]))
        assert answer.error_code == error
        assert broker.image.features == {
            "metadata.version": 30, "transaction.version": 2, "group.version": 1,
            "share.version": 1, "streams.version": 1}
    with_broker(scenario)
