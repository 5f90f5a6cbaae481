"""Metrics counted in native code, and their text format."""

from array import array

import pytest

from pylog._native.log import log
from pylog._native.server.metrics import BUCKETS, FIGURES, Exposition, Figures, Rows, flushes, times
from tests.native.log.test_log import NOW, make, opened


@pytest.fixture
def directory(tmp_path):
    return log.LogDir(tmp_path, 2)


def test_log_metrics_report_offsets_and_appends(directory):
    one = opened(directory)
    first, second = make(3), make(2)
    one.append(first, NOW)
    one.append(second, NOW)
    row = Figures([one]).row(0)
    assert {name: row[name] for name in (
        "start_offset", "end_offset", "high_watermark", "last_stable_offset", "segments",
        "batches_in", "records_in", "bytes_in", "produce_requests", "produce_failures",
        "size_bytes", "offline")} == {
        "start_offset": 0, "end_offset": 5, "high_watermark": 5, "last_stable_offset": 5,
        "segments": 1, "batches_in": 2, "records_in": 5, "bytes_in": len(first) + len(second),
        "produce_requests": 2, "produce_failures": 0, "size_bytes": len(first) + len(second),
        "offline": 0}


def test_failed_append_is_counted_as_failed(directory):
    one = opened(directory, leader=False)
    with pytest.raises(log.LogError):
        one.append(make(), NOW)
    row = Figures([one]).row(0)
    assert (row["produce_requests"], row["produce_failures"], row["records_in"]) == (1, 1, 0)


def test_closed_log_has_empty_metrics(directory):
    one = opened(directory)
    one.append(make(), NOW)
    one.close()
    assert set(Figures([one]).row(0).values()) == {0}


def test_metrics_are_summed_over_log_instances(directory):
    logs = [opened(directory, partition=index) for index in range(5)]
    for index, one in enumerate(logs):
        one.append(make(index + 1), NOW)
    sums = Figures(logs).sums([2, 2, 5])
    assert sums.columns("records_in", "batches_in") == [[3, 0, 12], [2, 0, 3]]


def test_flushes_rolls_and_removals_are_counted_for_their_directory(directory):
    one = opened(directory, config={"segment.bytes": 1 << 20, "internal.segment.bytes": 300,
                                    "retention.bytes": 400, "segment.ms": 1 << 40})
    before = directory.stats()["rolls"]
    for _ in range(6):
        one.append(make(1, size=200), NOW)
    one.flush()
    total, counts = flushes(directory)
    assert len(counts) == BUCKETS and sum(counts) >= 1 and total > 0
    assert directory.stats()["rolls"] > before
    assert one.upkeep(NOW) == directory.stats()["segments_deleted"] > 0


def _times(logs, offsets, budget_ns=10**10):
    out = array("q", bytes(8 * len(offsets)))
    done = times(logs, array("q", offsets), out, budget_ns)
    return done, list(out)


@pytest.mark.parametrize("codec", range(5))
def test_the_time_of_any_record_is_found_inside_its_batch_too(directory, codec):
    one = opened(directory)
    one.append(make(4, codec=codec), NOW)
    one.append(make(3, now=NOW + 1000, codec=codec), NOW + 1000)
    done, found = _times([one] * 8, list(range(8)))
    assert done == 8
    assert found == [NOW, NOW + 1, NOW + 2, NOW + 3, NOW + 1000, NOW + 1001, NOW + 1002, -1]


def test_the_time_of_a_record_of_another_segment_or_below_the_start_is_found(directory):
    one = opened(directory, config={"internal.segment.bytes": 300})
    for index in range(5):
        one.append(make(1, now=NOW + index, size=200), NOW)
    assert Figures([one]).row(0)["segments"] == 5
    one.move_start(2, NOW)
    assert _times([one] * 3, [0, 3, 4])[1] == [NOW + 2, NOW + 3, NOW + 4]


def test_time_lookups_stop_at_their_budget(directory):
    one = opened(directory)
    one.append(make(), NOW)
    assert _times([one, one], [0, 0], budget_ns=0) == (0, [0, 0])


def test_reader_keeps_its_hint_after_a_time_lookup(directory):
    one = opened(directory)
    for _ in range(20):
        one.append(make(), NOW)
    one.read_range(0, 100)
    where = one.read_range(1, 100)
    assert _times([one], [1])[0] == 1
    assert one.read_range(1, 100) == where


def test_samples_are_written_with_the_labels_of_their_rows(directory):
    logs = [opened(directory, partition=index) for index in range(2)]
    logs[1].append(make(7), NOW)
    text = Exposition()
    text.put(b"# a head\n")
    rows = Rows([b'topic="t",partition="0"', b'topic="t",partition="1"'])
    text.figure(b"pylog_end", rows, Figures(logs), "end_offset")
    text.integers(b"lag", rows, array("q", [-5, 2**63 - 1]))
    text.integers(b"age", rows, array("q", [1005, -1]), thousandths=True)
    assert text.value().decode().splitlines() == [
        "# a head",
        'pylog_end{topic="t",partition="0"} 0', 'pylog_end{topic="t",partition="1"} 7',
        'lag{topic="t",partition="0"} -5', 'lag{topic="t",partition="1"} 9223372036854775807',
        'age{topic="t",partition="0"} 1.005']


def test_text_of_megabytes_is_complete():
    text = Exposition()
    labels = [b'topic="%0200d"' % index for index in range(20_000)]
    text.integers(b"name", Rows(labels), array("q", range(20_000)))
    lines = text.value().splitlines()
    assert len(lines) == 20_000
    assert lines[12_345] == b'name{topic="%0200d"} 12345' % 12_345


def test_rows_and_values_of_different_lengths_are_a_bug(directory):
    with pytest.raises(AssertionError):
        Exposition().integers(b"name", Rows([b"a"]), array("q", []))
    assert len(FIGURES) == len(set(FIGURES))


def test_lag_is_counted_from_the_committed_offset_or_the_start(directory):
    one = opened(directory, config={"internal.segment.bytes": 300})
    for _ in range(5):
        one.append(make(2, size=200), NOW)
    one.move_start(4, NOW)
    figures = Figures([one] * 4)
    records, first = figures.lags(array("q", [0, 6, 10, 12]))
    assert (list(records), list(first)) == ([6, 4, 0, 0], [4, 6, 10, 12])
    assert Figures([]).lags(array("q", []))[0] == array("q", [])
