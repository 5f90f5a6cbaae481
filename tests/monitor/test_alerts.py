"""The alert rules: valid, only on existing metrics, with headings and commands that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from pylog.config.kafka_settings import BROKER
from pylog.config.own_settings import OWN
from pylog.tools import app
from release import alerts
from tests.monitor.test_dashboard import GRAFANA, NAME, PANELS_MIN, samples

REPOSITORY = Path(__file__).resolve().parents[2]
RULES, PAGE = REPOSITORY / alerts.RULES, REPOSITORY / alerts.PAGE
UNIT_TESTS = Path(__file__).with_name("alerts.test.yml")
# Labels that Prometheus adds to each series.
TARGET = {"job", "instance", "state"}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    return found


def test_rules_and_page_are_generated_from_the_table():
    assert RULES.read_text() == alerts.rules()
    assert PAGE.read_text() == alerts.page()


def test_every_rule_uses_existing_metrics_and_labels():
    known = samples()
    for alert in alerts.ALERTS:
        names = set(NAME.findall(alert.expression))
        assert names <= known.keys(), alert
        assert names or "up{" in alert.expression, alert
        labels = TARGET.union(*(known[name] for name in names))
        used = set(re.findall(r"[{,](\w+)=~?\"", alert.expression)) | {
            label.strip() for row in re.findall(r"(?:by|on) \(([^)]*)\)", alert.expression)
            for label in row.split(",")}
        used |= set(re.findall(r"\$labels\.(\w+)", alert.summary))
        assert used <= labels, (alert.name, used - labels)


def test_alerts_name_only_labels_that_their_expression_keeps():
    for alert in alerts.ALERTS:
        kept = re.match(r"(?:max|sum) by \(([^)]*)\)", alert.expression)
        if kept and "group_right" not in alert.expression:
            named = set(re.findall(r"\$labels\.(\w+)", alert.summary))
            assert named <= set(kept[1].replace(" ", "").split(",")), alert.name


def test_every_alert_has_summary_remedy_and_a_unique_name():
    assert len({alert.name for alert in alerts.ALERTS}) == len(alerts.ALERTS)
    for alert in alerts.ALERTS:
        assert alert.severity in (alerts.CRITICAL, alerts.WARNING)
        assert alert.summary and alert.meaning.endswith(".") and alert.remedy.endswith((".", "`."))


def test_commands_in_remedies_exist():
    root = app.root()
    context = click.Context(root)
    for alert in alerts.ALERTS:
        for words in re.findall(r"`pylog ([a-z-]+)(?: ([a-z-]+))?", alert.remedy + alert.meaning):
            command = root.get_command(context, words[0])
            assert command is not None, (alert.name, words)
            if words[1] and isinstance(command, click.Group):
                assert command.get_command(context, words[1]) is not None, (alert.name, words)


def test_settings_in_remedies_exist():
    known = {row[0] for row in (*BROKER, *OWN)}
    topics = {"retention.bytes", "min.insync.replicas", "max.poll.interval.ms"}
    for alert in alerts.ALERTS:
        named = re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", alert.remedy + alert.meaning)
        assert set(named) <= known | topics, (alert.name, named)


def test_promtool_accepts_the_rules(promtool):
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(alerts.ALERTS)} rules found" in done.stdout


def test_rules_fire_and_stay_silent_as_intended(promtool, tmp_path):
    shutil.copy(RULES, tmp_path)
    shutil.copy(UNIT_TESTS, tmp_path)
    done = subprocess.run([promtool, "test", "rules", UNIT_TESTS.name], cwd=tmp_path,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", PANELS_MIN)
def test_prometheus_accepts_every_query_of_the_dashboards(promtool, tmp_path, name):
    rules = tmp_path / "panels.yml"
    lines = ["groups:", "  - name: panels", "    rules:"]
    for panel in json.loads((GRAFANA / f"{name}.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$__rate_interval", "1m")
            lines += [f"      - record: panel:{panel['id']}_{target['refId']}",
                      f"        expr: {json.dumps(query)}"]
    rules.write_text("\n".join(lines))
    done = subprocess.run([promtool, "check", "rules", str(rules)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
