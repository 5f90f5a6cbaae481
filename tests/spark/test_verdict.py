import itertools
import re

import numpy as np
import pyarrow as pa
import pytest

from spark import chart, report, summary
from spark.plan import Outcome, Plan
from spark.records import Content
from spark.summary import Expected
from spark.verdict import percentiles, timeline, verdict
from tests.spark.topics import values

CONTENT = Content(21, keys=8)
COUNT = 400
EXPECTED = Expected(CONTENT, {0: COUNT, 1: COUNT})


def topic():
    """Return the content of a good load: {partition: [(value, key)]}, two generators mixed in each.
    """
    parts = {0: [], 1: []}
    both = [values(CONTENT, generator, 0, COUNT) for generator in (0, 1)]
    for row in itertools.chain.from_iterable(zip(*both)):
        parts[int(row[1][-1:]) % 2].append(row)
    return parts


def batch(partition, rows, first=0, offsets=None):
    offsets = list(range(first, first + len(rows))) if offsets is None else offsets
    return pa.RecordBatch.from_pydict({
        "key": pa.array([key for _, key in rows], pa.binary()),
        "value": pa.array([value for value, _ in rows], pa.binary()),
        "partition": pa.array([partition] * len(rows), pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array([1_700_000_000_000] * len(rows), pa.timestamp("ms", "UTC"))})


def judged(parts, expected=EXPECTED, explained=None, cuts=(150,), planned=None):
    """Read each partition by several tasks, split at `cuts`."""
    rows = []
    for number, found in parts.items():
        for low, high in itertools.pairwise([0, *cuts, len(found)]):
            for made in summary.summaries(expected, [batch(number, found[low:high], low)]):
                rows += made.to_pylist()
    planned = planned or {number: (0, len(found)) for number, found in parts.items()}
    return verdict(expected, rows, planned, explained)


def faults(found):
    return {name: count for name, count in found.faults.items() if count}


def test_correct_load_passes():
    found = judged(topic())
    assert found.good and found.records == 2 * COUNT and not faults(found)
    assert "GOOD" in found.lines()[0]


@pytest.mark.parametrize("place", [0, 149, 150, 200])
def test_a_dropped_record_is_missing_and_named(place):
    parts = topic()
    del parts[1][place]
    found = judged(parts)
    assert faults(found) == {"missing": 1} and not found.good
    assert len(found.missing_runs) == 1


@pytest.mark.parametrize("source, target", [(10, 11), (10, 100), (10, 300)])
def test_a_doubled_record_is_named_wherever_its_double_lies(source, target):
    parts = topic()
    parts[0].insert(target, parts[0][source])
    found = judged(parts)
    assert found.faults["doubled"] == 1 and not found.faults["missing"] and not found.good
    assert any(text.startswith("doubled") for text in found.examples)


def test_duplicate_in_another_partition_is_reported():
    parts = topic()
    parts[1].append(parts[0][5])
    assert judged(parts).faults["doubled"] == 1


@pytest.mark.parametrize("first, second", [(20, 40), (149, 151), (10, 300)])
def test_swapped_records_are_out_of_order(first, second):
    parts = topic()
    rows = parts[0]
    rows[first], rows[second] = rows[second], rows[first]
    found = judged(parts)
    assert set(faults(found)) == {"disordered"}
    assert any(text.startswith("disordered") for text in found.examples)


def test_damaged_record_is_reported_as_corrupted_and_missing():
    parts = topic()
    value, key = parts[0][33]
    parts[0][33] = (value[:50] + bytes([value[50] ^ 1]) + value[51:], key)
    found = judged(parts)
    assert faults(found) == {"corrupted": 1, "missing": 1}
    assert "corrupted at 0/33" in found.examples


def test_record_of_another_load_is_reported_as_unexpected():
    parts = topic()
    parts[0].append(values(Content(99, keys=8), 0, 0, 1)[0])
    assert faults(judged(parts)) == {"foreign": 1}


def test_a_record_with_anothers_key_is_named():
    parts = topic()
    parts[0][3] = (parts[0][3][0], b"key-00000099")
    assert faults(judged(parts)) == {"wrong_key": 1}


def test_wrong_seed_is_detected():
    found = judged(topic(), Expected(Content(22, keys=8), EXPECTED.counts))
    assert found.faults["foreign"] == found.records and found.faults["missing"] == 2 * COUNT


def test_offsets_without_a_record_are_faults_unless_explained():
    parts = topic()
    rows = parts[0]
    made = []
    offsets = [*range(100), *range(103, len(rows) + 3)]
    for given in (batch(0, rows, offsets=offsets), batch(1, parts[1])):
        for one in summary.summaries(EXPECTED, [given]):
            made += one.to_pylist()
    planned = {0: (0, len(rows) + 3), 1: (0, len(parts[1]))}
    assert faults(verdict(EXPECTED, made, planned)) == {"unexplained_gaps": 3}
    assert verdict(EXPECTED, made, planned, lambda gaps: gaps).good


def compacted(parts, keep=30):
    """Compact: of all but the last `keep` records, keep the newest of each key."""
    left = {}
    for number, rows in parts.items():
        newest = {row[1]: place for place, row in enumerate(rows)}
        left[number] = [place for place, row in enumerate(rows)
                        if newest[row[1]] == place or place >= len(rows) - keep]
    return left


def judged_after(parts, left, is_compacted=True):
    made = []
    for number, offsets in left.items():
        rows = [parts[number][place] for place in offsets]
        for one in summary.summaries(EXPECTED, [batch(number, rows, offsets=offsets)]):
            made += one.to_pylist()
    planned = {number: (0, len(rows)) for number, rows in parts.items()}
    return verdict(EXPECTED, made, planned, lambda gaps: [], lambda: is_compacted)


def test_records_that_compaction_replaced_are_explained_with_their_gaps():
    parts = topic()
    left = compacted(parts)
    found = judged_after(parts, left)
    assert found.good, found.lines()
    assert found.superseded == 2 * COUNT - sum(map(len, left.values())) > 500
    assert sum(part.explained_gaps for part in found.partitions) == found.superseded


def test_without_compaction_the_same_topic_is_bad():
    parts = topic()
    found = judged_after(parts, compacted(parts), is_compacted=False)
    assert found.faults["missing"] == found.faults["unexplained_gaps"] > 500


def test_compaction_does_not_explain_the_newest_record_of_a_key():
    parts = topic()
    left = compacted(parts, keep=1)
    key = parts[0][left[0][0]][1]
    left[0] = [place for place in left[0] if parts[0][place][1] != key]
    found = judged_after(parts, left)
    # No earlier record of the key has a successor either.
    assert not found.good and found.faults["missing"] == sum(row[1] == key for row in parts[0])


def test_compaction_explains_at_most_the_missing_offsets():
    parts = topic()
    left = compacted(parts)
    never = {number: len(rows) - 3 for number, rows in parts.items()}
    whole = {number: [row for place, row in enumerate(rows) if place != never[number] - 40]
             for number, rows in parts.items()}
    left = compacted(whole)
    found = judged_after(whole, left)
    assert found.faults["missing"] == 2 and any("no gap" in text for text in found.examples)


def test_compaction_explains_no_more_gaps_than_records_were_replaced():
    parts = topic()
    parts[0].insert(100, values(Content(99, keys=8), 0, 0, 1)[0])
    left = compacted(parts)
    left[0] = [place for place in left[0] if place != 100]
    assert judged_after(parts, left).faults["unexplained_gaps"] == 1


def test_gaps_too_many_to_be_listed_are_counted(monkeypatch):
    monkeypatch.setattr(summary, "GAPS_MAX", 3)
    parts = topic()
    left = {0: list(range(0, len(parts[0]), 2)), 1: list(range(len(parts[1])))}
    found = judged_after(parts, left, is_compacted=False)
    assert found.faults["unexplained_gaps"] == len(parts[0]) // 2


def test_a_partition_that_was_not_read_is_named():
    parts = topic()
    planned = {number: (0, len(rows)) for number, rows in parts.items()}
    unread = parts.pop(1)
    found = judged({0: parts[0]}, planned=planned)
    assert found.faults["unread"] == len(unread) == found.faults["missing"]


def test_retried_task_is_counted_once():
    parts = topic()
    rows = []
    for _ in range(2):
        for number, found in parts.items():
            for made in summary.summaries(EXPECTED, [batch(number, found)]):
                rows += made.to_pylist()
    assert verdict(EXPECTED, rows, {number: (0, len(one)) for number, one in parts.items()}).good


def test_report_is_one_self_contained_page():
    parts = topic()
    parts[0][3] = (b"<script>" + parts[0][3][0], parts[0][3][1])
    page = report.html("a<b", judged(parts), None, 1.0)
    assert "http" not in page and "<script" not in page and "a&lt;b" in page
    assert page.count("<svg") == 6 and "corrupted at 0/3" in page
    assert page.index("1 corrupted") < page.index("corrupted at 0/3") < page.index("<table")


def test_throughput_appears_once_on_the_page():
    outcome = Outcome(Plan("t", {}, CONTENT, records=2 * COUNT), {0: COUNT, 1: COUNT}, 0, 4000,
                      2 * COUNT * 100, {}, {})
    page = report.html("t", judged(topic()), outcome, 2.0)
    seen = re.sub("<title>.*?</title>", "", page)  # A bar's tooltip counts only its second.
    assert re.findall(r"[\d.]+ k?B/s", seen) == ["20.0 kB/s", "40.0 kB/s"]


def test_axes_have_round_numbers():
    assert chart.steps(0, 1.3e6, 5) == [0, 5e5, 1e6]
    assert chart.steps(0, 7, 10) == list(range(8))
    assert chart.decades(3, 60) == [5, 10, 20, 50]
    assert [chart.short(value) for value in (0, 250, 1500, 2e6)] == ["0", "250", "1.5 k", "2 M"]
    assert [chart.duration(value) for value in (9.51, 2000, 3.6e6)] == ["9.51 ms", "2 s", "60 min"]


def test_reading_is_reported_per_second_too():
    found = judged(topic())
    assert sum(row[1] for row in found.read_seconds) == found.records
    assert sum(row[1] for row in found.seconds) == found.records


def test_timeline_has_throughput_latency_missing_and_duplicate_records():
    parts = topic()
    lost = parts[0].pop(20)
    parts[1][11] = parts[1][10]
    found = judged(parts)
    assert {"missing", "doubled"} <= faults(found).keys() and lost
    # Batches of ten records, each sent a second after the one before, acknowledged after 100 ms.
    firsts = np.tile(np.arange(0, COUNT, 10), 2)
    generators = np.repeat([0, 1], COUNT // 10)
    sent_ms = 1_700_000_000_000 + firsts // 10 * 1000
    rows = timeline(found, generators, firsts, np.full(len(firsts), 10), sent_ms, sent_ms + 100)
    assert sum(row.records for row in rows) == found.records
    assert sum(row.missing for row in rows) == found.faults["missing"] == 2
    assert sum(row.doubled for row in rows) == found.faults["doubled"] == 1
    assert {row.ack_p99_ms for row in rows} == {percentiles(np.bincount(
        summary.bucket(np.array([100])), minlength=summary.LATENCY_BUCKETS))["p99"]}
    gone = {(generator, int(number)) for generator, numbers in found.lost.items()
            for number in numbers}
    assert {row.second for row in rows if row.missing} == {
        1_700_000_000 + number // 10 for _, number in gone}


def test_report_shows_missing_and_duplicate_records_over_time():
    parts = topic()
    parts[0].pop(20)
    parts[1][11] = parts[1][10]
    found = judged(parts)
    firsts = np.tile(np.arange(0, COUNT, 10), 2)
    sent_ms = 1_700_000_000_000 + firsts // 10 * 1000
    acks = np.bincount(summary.bucket(np.full(COUNT, 100)), minlength=summary.LATENCY_BUCKETS)
    found.acks, found.ack_ms = acks.tolist(), percentiles(acks)
    found.timeline = timeline(found, np.repeat([0, 1], COUNT // 10), firsts,
                              np.full(len(firsts), 10), sent_ms, sent_ms + 100)
    page = report.html("t", found, None, 1.0)
    section = page.partition("<h2>Over time</h2>")[2].partition("<h2>")[0]
    assert section.count("<svg") == 4
    assert "Missing records: 2<" in section and "Duplicate records: 1<" in section
    assert " 1 missing" in section or " 2 missing" in section
    assert "lost" not in found.json() and "timeline" in found.json()


def sent_each_second(found):
    """Add the manifest of batches of ten records, each sent a second after the one before."""
    firsts = np.tile(np.arange(0, COUNT, 10), 2)
    sent_ms = 1_700_000_000_000 + firsts // 10 * 1000
    found.timeline = timeline(found, np.repeat([0, 1], COUNT // 10), firsts,
                              np.full(len(firsts), 10), sent_ms, sent_ms + 100)


def test_timeline_has_duplicates_that_two_tasks_read():
    parts = topic()
    parts[1].append(parts[0][30])
    found = judged(parts)
    assert found.faults["doubled"] == 1
    [(_, numbers)] = found.repeated.items()
    before = report.html("t", found, None, 1.0)
    assert "Duplicate records: 1, of which 0 have a known time" in before
    sent_each_second(found)
    assert [row.second for row in found.timeline if row.doubled] == [
        1_700_000_000 + int(numbers[0]) // 10]
    assert "Duplicate records: 1<" in report.html("t", found, None, 1.0)
    assert "repeated" not in found.json()
