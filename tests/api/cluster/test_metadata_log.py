"""A controller's responses to observers of the metadata log."""

import asyncio
from types import SimpleNamespace

from pylog.api.cluster.metadata_log import MetadataLogApi, Observers
from pylog.metadata.image.state_store import METADATA_LOG_ID
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

NEW = messages.FetchRequest


class Log:
    """Records 0 to 9 in epoch 1, from 10 to 19 in epoch 3."""

    start_offset, snapshot_id = 0, None

    def __init__(self, is_whole):
        self.is_whole = is_whole

    def end_for_epoch(self, epoch):
        return (1, 10) if epoch < 3 else (3, 20)


def fetched(offset, last_epoch, epoch=3, is_whole=False):
    """Return the partition's row of a response of the active controller of epoch 3, which has
    records below 20. is_whole: no other records can exist.
    """
    metadata = SimpleNamespace(
        cluster_id="c", controller=SimpleNamespace(epoch=epoch, is_active=True, log=Log(is_whole)),
        tail=SimpleNamespace(newest=SimpleNamespace(offset=19, epoch=3)))
    handler = MetadataLogApi(metadata, Observers(), 1, lambda: 0)
    context = SimpleNamespace(api_version=17, local_host="h", local_port=9)
    answer = asyncio.run(handler.fetch(context, NEW(
        max_wait_ms=0, topics=[NEW.FetchTopic(topic_id=METADATA_LOG_ID, partitions=[
            NEW.FetchPartition(partition=0, current_leader_epoch=epoch, fetch_offset=offset,
                               last_fetched_epoch=last_epoch)])])))
    return answer.responses[0].partitions[0]


def test_observer_with_more_of_an_older_epoch_gets_that_epochs_end():
    row = fetched(12, 1)
    assert (row.error_code, row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (0, 1, 10)


def test_observer_with_more_than_the_known_end_of_this_epoch_gets_no_end():
    row = fetched(21, 3)
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert row.diverging_epoch.epoch == -1


def test_observer_with_more_than_the_only_controller_gets_its_end():
    row = fetched(21, 3, is_whole=True)
    assert (row.error_code, row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (0, 3, 20)


def test_epoch_end_is_available_to_later_observers():
    row = fetched(21, 3, epoch=4)
    assert (row.error_code, row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (0, 3, 20)
