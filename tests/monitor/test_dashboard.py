"""The dashboard queries only existing metrics."""

import json
import re
from pathlib import Path

from pylog.monitor import metrics

DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana" / "pylog.json"
NAME = re.compile(r"\b(?:pylog|process)_[a-z_]+\b")


def _samples() -> dict:
    """Return every sample's name -> its labels."""
    found = {}
    for metric in metrics.TABLE.values():
        if metric.type == "histogram":
            found[f"{metric.name}_bucket"] = {*metric.labels, "le"}
            found[f"{metric.name}_sum"] = found[f"{metric.name}_count"] = set(metric.labels)
        else:
            found[metric.sample] = set(metric.labels)
    return found


def test_every_query_is_of_metrics_and_labels_that_the_table_has():
    samples = _samples()
    panels = [panel for panel in json.loads(DASHBOARD.read_text())["panels"]
              if panel["type"] != "row"]
    assert len(panels) > 20
    for panel in panels:
        for target in panel["targets"]:
            names = NAME.findall(target["expr"])
            assert names and set(names) <= samples.keys(), target["expr"]
            known = {"instance", "job"}.union(*(samples[name] for name in names))
            used = set(re.findall(r"(\w+)\s*[!=]~?\"", target["expr"]))
            used |= {label for by in re.findall(r"by \(([^)]*)\)", target["expr"])
                     for label in by.replace(" ", "").split(",")}
            used |= set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert used <= known, (panel["title"], used - known)


def test_dashboard_panels_neither_overlap_nor_overflow():
    taken = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y)
                 for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
