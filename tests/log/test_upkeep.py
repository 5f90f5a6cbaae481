"""Which maintenance is due when, with a fake clock and fake logs."""

from types import SimpleNamespace

import pytest

from pylog.log import partition_logs
from pylog.log.upkeep import CHECKPOINT_MS, Upkeep


def upkeep():
    """Return an upkeep without logs, and the list of what it does."""
    done = []
    settings = {"log.retention.check.interval.ms": 300_000, "log.initial.task.delay.ms": 30_000,
                "producer.id.expiration.check.interval.ms": 600_000}
    return Upkeep(
        settings, SimpleNamespace(check_free_space=lambda: None, usable=list, natives=[], paths=[]),
        SimpleNamespace(tend=lambda: None), SimpleNamespace(all=list, timed=set()),
        SimpleNamespace(tend=lambda: done.append("cleaner")),
        SimpleNamespace(write=lambda store: done.append(("checkpoint", store)), store="store"),
        lambda: 0), done


@pytest.mark.parametrize(("now_ms", "due"), [
    (999, True), (1000, False), (1500, False), (1999, False), (2000, True), (2001, True)])
def test_work_is_due_at_its_time_or_after_the_clock_was_set_back(now_ms, due):
    one, _ = upkeep()
    one._due = [0, 2000]
    assert one._is_due(1, now_ms, 1000) == due


def test_retention_and_checkpoints_have_their_own_intervals(monkeypatch):
    """log.initial.task.delay.ms, log.retention.check.interval.ms; checkpoints every minute, the
    default of Kafka's log.flush.offset.checkpoint.interval.ms.
    """
    one, done = upkeep()
    tended = []
    monkeypatch.setattr(partition_logs, "tend", lambda logs, now_ms, closing: tended.append(
        (now_ms, not isinstance(logs, list))))
    one.begin(0)
    for now_ms in (29_999, 30_000, 59_999, 60_000, 120_000, 329_999, 330_000):
        one.run(now_ms)
    assert CHECKPOINT_MS == 60_000
    assert [now_ms for now_ms, all_logs in tended if all_logs] == [30_000, 330_000]
    assert [one for one in done if one != "cleaner"] == [("checkpoint", "store")] * 3
    assert done.count("cleaner") == 7


def test_maintenance_does_not_run_before_the_start_or_after_a_stop():
    one, done = upkeep()
    one.run(10**9)
    assert not done
    one.begin(0)
    one.closing = True
    one.run(10**9)
    assert not done
