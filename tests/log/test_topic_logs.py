"""The list of open logs, with fake logs."""

import pytest

from pylog.log.topic_logs import TopicEntry, TopicLogs


@pytest.mark.parametrize(("flush_ms", "timed"), [(2**63 - 1, False), (2**63 - 2, True), (0, True)])
def test_every_upkeep_checks_only_logs_with_a_flush_interval(flush_ms, timed):
    logs = TopicLogs(None)
    for _ in range(2):
        logs._watch("log", {"flush.ms": flush_ms})
        assert ("log" in logs.timed) == timed
        logs.timed = {"log"}
    logs._watch("log", {"flush.ms": flush_ms})
    assert ("log" in logs.timed) == timed


@pytest.mark.parametrize(("index", "found"), [(-1, None), (0, "a"), (1, None), (2, "c"), (3, None)])
def test_partition_is_found_by_its_index(index, found):
    logs = TopicLogs(None)
    logs.entries["t"] = TopicEntry(b"", ["a", None, "c"], {})
    assert logs.get("t", index) == found and logs.get("u", index) is None
