"""The dashboards query only existing metrics, and their panels have room."""

import json
import re
from pathlib import Path

import pytest

from pylog.monitor import metrics
from release import dashboards

GRAFANA = Path(__file__).resolve().parents[2] / "docs" / "grafana"
PANELS_MIN = {"pylog": 38, "broker": 20, "cluster": 20, "clients": 18, "host": 18}
NAME = re.compile(r"\b(?:pylog|process)_[a-z_]+\b")


def samples() -> dict:
    """Return every sample's name -> its labels."""
    found = {}
    for metric in metrics.TABLE.values():
        if metric.type == "histogram":
            found[f"{metric.name}_bucket"] = {*metric.labels, "le"}
            found[f"{metric.name}_sum"] = found[f"{metric.name}_count"] = set(metric.labels)
        else:
            found[metric.sample] = set(metric.labels)
    return found


def test_every_dashboard_is_tested():
    assert {path.stem for path in GRAFANA.glob("*.json")} == set(PANELS_MIN)
    assert set(PANELS_MIN) == {"pylog", *dashboards.DASHBOARDS}


@pytest.mark.parametrize("name", dashboards.DASHBOARDS)
def test_dashboard_is_generated_from_its_table(name):
    assert (GRAFANA / f"{name}.json").read_text() == dashboards.text(name)


@pytest.mark.parametrize("name", PANELS_MIN)
def test_every_query_is_of_metrics_and_labels_that_the_table_has(name):
    known_samples = samples()
    panels = [panel for panel in json.loads((GRAFANA / f"{name}.json").read_text())["panels"]
              if panel["type"] != "row"]
    assert len(panels) >= PANELS_MIN[name]
    for panel in panels:
        for target in panel["targets"]:
            names = NAME.findall(target["expr"])
            assert names and set(names) <= known_samples.keys(), target["expr"]
            known = {"instance", "job"}.union(*(known_samples[name] for name in names))
            used = set(re.findall(r"(\w+)\s*[!=]~?\"", target["expr"]))
            used |= {label for by in re.findall(r"by \(([^)]*)\)", target["expr"])
                     for label in by.replace(" ", "").split(",")}
            used |= set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert used <= known, (panel["title"], used - known)


@pytest.mark.parametrize("name", PANELS_MIN)
def test_dashboard_panels_neither_overlap_nor_overflow(name):
    taken = set()
    for panel in json.loads((GRAFANA / f"{name}.json").read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y)
                 for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
