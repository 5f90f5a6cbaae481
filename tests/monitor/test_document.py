from pathlib import Path

from pylog.monitor import metrics
from pylog.monitor.document import document

WRITTEN = Path(__file__).resolve().parents[2] / "docs/reference/metrics.md"


def test_document_agrees_with_the_table():
    assert WRITTEN.read_text() == document(), "run `make docs`"


def test_every_metric_is_in_the_document_under_a_subject():
    text = document()
    assert "## Others" not in text
    for metric in metrics.TABLE.values():
        assert f"| {metric.sample} |" in text


def test_names_follow_their_units_and_types():
    for metric in metrics.TABLE.values():
        assert metric.type in ("counter", "gauge", "histogram"), metric.name
        assert not metric.unit or metric.name.endswith(f"_{metric.unit}"), metric.name
        assert not metric.name.endswith("_total"), metric.name
        assert metric.help.endswith("."), metric.name
