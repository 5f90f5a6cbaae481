"""The batch to write, from the last decision."""

import pytest

from pylog.client.errors import ConfigError
from pylog.client.producer.transaction_manager import Prepared
from pylog.client.spark.epoch_decision import Decision, Task, is_decided
from pylog.client.types import OffsetAndMetadata

METADATA_BYTES_MAX = 4096
PARTS = (Prepared("orders-task-0-0", 4000, 7), Prepared("orders-task-1-2", 4001, 0))


def test_the_first_batch_follows_on_nothing():
    assert not is_decided(Decision(), "orders", "q", 0)


def test_decided_batch_is_not_written_again():
    last = Decision(6, "q", PARTS)
    assert is_decided(last, "orders", "q", 6)
    assert not is_decided(last, "orders", "q", 7)


@pytest.mark.parametrize("batch", [0, 5, 8, 100])
def test_checkpoint_on_another_cluster_than_the_sink_is_rejected(batch):
    with pytest.raises(ConfigError, match="used with another checkpoint") as refused:
        is_decided(Decision(6, "q", PARTS), "orders", "q", batch)
    assert f"at batch {batch}" in str(refused.value) and "decided batch 6" in str(refused.value)


def test_checkpoint_of_another_query_is_rejected():
    for batch in (6, 7):
        with pytest.raises(ConfigError, match="belongs to the query q"):
            is_decided(Decision(6, "q", PARTS), "orders", "another", batch)


def test_running_query_with_an_empty_sink_requires_a_decision_to_commit():
    with pytest.raises(ConfigError, match="Commit 9 as the offset of group 'orders'.*10 if"):
        is_decided(Decision(), "orders", "q", 9)


def test_manually_committed_offset_determines_the_next_batch():
    last = Decision.of(OffsetAndMetadata(9))
    assert last == Decision(8)
    assert not is_decided(last, "orders", "whichever", 9)
    assert is_decided(last, "orders", "whichever", 8)


def test_a_decision_is_read_back_as_it_was_written():
    decision = Decision(6, "6190aeaf-f1b5-4d09-8a63-226754421310", PARTS)
    assert Decision.of(decision.row()) == decision
    assert decision.row().offset == 7
    assert Decision.of(Decision(0, "q").row()) == Decision(0, "q")
    assert Decision.of(None) == Decision()


def test_decision_with_hundreds_of_tasks_fits_in_a_record(random_source):
    id_ = "a-sink-with-quite-a-long-name-as-they-tend-to-be"
    right = Prepared(id_, 4711, 31_000)
    parts = tuple(Prepared(Task("q", 6, number, 1_000_000 + random_source.randrange(600))
                           .transactional_id(id_, right), random_source.randrange(1000, 10_000), 0)
                  for number in range(300))
    row = Decision(6, "6190aeaf-f1b5-4d09-8a63-226754421310", parts).row()
    assert len(row.metadata.encode()) <= METADATA_BYTES_MAX


def test_each_attempt_of_a_task_has_its_own_transactional_id():
    rights = [Prepared("orders", 7, 0), Prepared("orders", 7, 1), Prepared("orders", 71, 0)]
    ids = {Task("q", 6, number, attempt).transactional_id("orders", right)
           for number in range(20) for attempt in range(15) for right in rights}
    assert len(ids) == 900 and "orders" not in ids
