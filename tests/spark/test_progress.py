import json
from xml.etree import ElementTree

import pytest

from spark import progress
from spark.plan import PlanError
from spark.progress import Batch, Journal, batch_of


def reported(number, run="r1", name="rows", **more):
    """Return a batch's progress in Spark's format."""
    return {
        "name": name, "runId": run, "batchId": number, "numInputRows": 100,
        "durationMs": {"addBatch": 300, "triggerExecution": 400},
        "stateOperators": [{"numRowsTotal": 70, "numRowsDroppedByWatermark": 3,
                            "customMetrics": {"numDroppedDuplicateRows": 9}}],
        "sources": [{"endOffset": '{"raw": {"0": 10, "1": 20, "topicId": "a"}}',
                     "latestOffset": '{"raw": {"0": 15, "1": 30, "topicId": "a"}}'}],
        "observedMetrics": {"decoded": {"unreadable": 1}, "enriched": {"written": 87}}, **more}


def test_batch_reports_rows_read_written_and_dropped():
    assert batch_of(reported(7)) == Batch(
        "rows", 7, "r1", read=100, written=87, unreadable=1, doubled=9, late=3, took_ms=400,
        behind=15, state=70)


def test_a_look_that_found_nothing_is_no_batch():
    assert batch_of(reported(7, durationMs={"latestOffset": 2, "triggerExecution": 2})) is None


def test_non_topic_sources_report_no_backlog():
    for offset in (None, '{"logOffset": 3}', "7"):
        found = batch_of(reported(1, sources=[{"endOffset": offset, "latestOffset": offset}]))
        assert found.behind == 0


def test_journal_continues_after_a_restart_without_duplicates(tmp_path):
    path = str(tmp_path / "new" / "progress.svg")
    Journal(path).note([[reported(0), reported(1)], [reported(0, name="totals")]])
    # Batch 1 was not committed when the process was killed: it is run again.
    again = Journal(path)
    again.note([[reported(1, "r2", numInputRows=5), reported(2, "r2")]])
    kept = list(Journal(path).batches.values())
    assert [(batch.query, batch.number, batch.run) for batch in kept] == [
        ("rows", 0, "r1"), ("rows", 1, "r2"), ("totals", 0, "r1"), ("rows", 2, "r2")]
    assert kept[1].read == 5


def test_nothing_new_writes_nothing(tmp_path):
    journal = Journal(str(tmp_path / "progress.html"))
    journal.note([[reported(0)]])
    (tmp_path / "progress.html").unlink()
    journal.note([[reported(0)]])
    assert not (tmp_path / "progress.html").exists()


def test_a_journal_keeps_the_newest_batches(tmp_path):
    journal = Journal(str(tmp_path / "progress.svg"))
    journal.note([[reported(number) for number in range(progress.BATCHES_MAX + 50)]])
    assert [batch.number for batch in journal.batches.values()] == list(
        range(50, progress.BATCHES_MAX + 50))
    assert len(json.loads((tmp_path / "progress.svg.json").read_text())) == progress.BATCHES_MAX


def test_without_a_report_no_file_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Journal("").note([[reported(0)]])
    assert list(tmp_path.iterdir()) == []


def test_unwritable_report_fails_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(PlanError, match="cannot write"):
        Journal(str(tmp_path / "file" / "progress.html"))


def test_a_picture_has_a_panel_for_each_figure_and_marks_each_restart():
    batches = [batch_of(reported(number, f"r{number // 4}")) for number in range(12)]
    root = ElementTree.fromstring(progress.picture(batches))
    titles = [text.text for text in root.iter() if text.get("class") == "title"]
    assert len(titles) == 5 and titles[0] == "rows: Records read, per batch"
    marks = [text.text for text in root.iter() if text.get("class") == "mark" and text.text]
    assert marks == ["started anew"] * 2 * len(titles)
    hints = [text.text for text in root.iter() if text.tag.endswith("title")]
    assert hints.count("batch 3: 100") == 1


def test_chart_of_one_or_no_batch_is_valid():
    for batches in ([], [batch_of(reported(0, numInputRows=0, sources=[]))]):
        assert ElementTree.fromstring(progress.picture(batches)).tag.endswith("svg")


def test_page_sums_its_batches_and_loads_no_resources():
    batches = [batch_of(reported(number)) for number in range(20)]
    text = progress.page([*batches, batch_of(reported(0, name="totals"))])
    assert "<b>2,000</b><span>records read" in text and "<b>180</b><span>doubles" in text
    assert "totals: Totals written" in text
    assert "<script" not in text and "http" not in text
