"""The growth bench: its page, its model, and its loads against a brokerd."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import loads
from bench.brokers import RELAXED, PylogBroker
from bench.control import joining
from bench.growth import curves, page, reactors, waits
from bench.growth.curves import CURVES, Side, measured
from bench.growth.model import Work, ceiling, rate
from bench.growth.waits import Place

CURVE = CURVES["connections"]
SMALL = curves.Scale(seconds=0.5, requests=200, sized_bytes=400_000, cold_bytes=2_000_000,
                     members_wait_s=60)


def _samples(kafka: list, pylog: list) -> dict:
    return {point: {"kafka": {"cpu_us": [theirs] if theirs else []}, "pylog": {"cpu_us": [ours]}}
            for point, theirs, ours in zip((1, 10, 100), kafka, pylog, strict=True)}


def test_a_curve_that_grows_more_than_kafkas_is_named():
    assert "**bends more" in page.verdict(CURVE, _samples([50, 50, 60], [5, 5, 8]))
    assert "no more than" in page.verdict(CURVE, _samples([50, 50, 90], [5, 5, 8]))


def test_curves_are_compared_over_their_common_range():
    text = page.verdict(CURVE, _samples([50, 50, None], [5, 5, 8]))
    assert "**" not in text and "1.60 times the least at 100" in text
    assert "1.00 times at 10, pylog's 1.00 times there" in text
    assert "**bends more" in page.verdict(CURVE, _samples([50, 50, None], [5, 8, 9]))


def test_a_point_without_a_figure_is_a_gap_in_the_table():
    lines = page.table(CURVE, _samples([50, None, 60], [5, 6, 7]), ["kafka", "pylog"]).splitlines()
    assert lines[3].startswith("| 10 | — / 6 |")


def test_a_figure_is_the_median_of_its_rounds():
    samples = {1: {"pylog": {"cpu_us": [9.0, 1.0, 2.0]}}}
    assert page.value(samples, 1, "pylog", "cpu_us") == 2.0


def test_the_page_has_a_section_for_each_curve():
    text = page.PAGE.read_text()
    for title in (*(curve.title for curve in CURVES.values()), reactors.SECTION):
        assert text.count(f"## {title}\n") == 1


def test_chart_is_small_and_shows_every_curve():
    found = {name: {point: {"kafka": {curve.bending: []}, "pylog": {curve.bending: [point + 1.5]}}
                    for point in curve.points} for name, curve in CURVES.items()}
    drawn = page.picture(found)
    titles = {text.text for text in ElementTree.fromstring(drawn).iter() if text.text}
    assert titles >= {curve.title for curve in CURVES.values()}
    assert len(drawn) < 60_000


def test_every_curve_shows_its_compared_metric():
    for curve in CURVES.values():
        assert curve.bending in curve.figures
        assert set(curve.short) <= set(curve.points)
        assert list(curve.points) == sorted(curve.points)


def test_a_segments_partition_is_that_of_its_folder():
    assert curves.partition_of(Path("/data/cold-7-12/00000000000000000000.log")) == 12


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Return the folder in which the load clients are built, once."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def cache(programs, monkeypatch):
    monkeypatch.setenv("PYLOG_CACHE", str(programs))


@pytest.fixture
def side(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "SETTLED_S", 0.1)
    monkeypatch.setattr(curves, "TOPIC_PARTITIONS", 5)
    settings = {**RELAXED, "message.max.bytes": "12000000"}
    with PylogBroker(tmp_path / "broker", overrides=settings) as broker:
        yield Side(broker, SMALL)


# Without the load of cold records: its reader runs only on an idle processor.
@pytest.mark.parametrize(("name", "points"), [
    ("connections", (3,)), ("partitions", (3, 10)), ("consumers", (3,)), ("members", (3,)),
    ("sizes", (10, 2_000_000)),
])
def test_curve_contains_every_metric_of_its_table(side, name, points):
    for point in points:
        found = measured(CURVES[name], side, point)
        assert set(found) == {*CURVES[name].figures, "rss_mb"}
        assert all(figure >= 0 for figure in found.values())


def test_requests_go_round_the_partitions_of_all_topics(side):
    for number in range(3):
        loads.create_topic(side.broker, f"round-{number:04}", 2)
    loads.raw_produce(side.broker, "round-", 2, 4, 1, 1, 100, requests=60, topics=3)
    for number in range(3):
        line = loads.native("fetch", side.broker, f"round-{number:04}", 2, 1 << 20, 0)
        assert line["ranges"] >= 2, "a partition of the topic was left out"


WORK = Work(requests=2.0, outside_us=18.0, held_us=2.0)


def test_single_reactor_in_the_model_never_waits():
    assert rate(WORK, 1, 1) == rate(WORK, 1, 64) == pytest.approx(2 / 20 * 1e6)


@pytest.mark.parametrize("logs", [1, 8, 64])
def test_model_scales_with_reactors_until_lock_bound(logs):
    rates = [rate(WORK, count, logs) for count in range(1, 65)]
    assert rates == sorted(rates)
    lock_us = WORK.held_us / WORK.requests / logs
    for count, its in enumerate(rates, 1):
        assert its <= min(count * rates[0], ceiling(lock_us)) * 1.001


def test_reactors_on_many_logs_of_the_model_hardly_meet():
    assert rate(WORK, 64, 64) > 0.9 * 64 * rate(WORK, 1, 1)
    assert rate(WORK, 64, 1) == pytest.approx(ceiling(WORK.held_us / WORK.requests), rel=0.01)


def test_lock_handover_cost_reduces_model_throughput():
    assert rate(WORK, 64, 1, 5.0) < rate(WORK, 64, 1) / 3
    assert rate(WORK, 1, 1, 5.0) == rate(WORK, 1, 1)


def test_lock_site_is_named_by_its_outermost_function():
    assert waits.outermost("0x00000000000012a0\nlock_acquire\nlock.h:72\nlog_append_batches\n"
                           "log_append.c:440") == "log_append_batches"
    assert waits.outermost("0x00000000000012a0\n??\n??:0") == ""


def test_log_lock_counts_include_only_appends():
    found = reactors.Found(100, 10.0, 1e5, 0.0, {
        "log_append_batches": Place(25, 1, 0.0, 200e-6), "log_publish": Place(25, 0, 0.0, 1e-6)})
    work = reactors.work_of(found)
    assert (work.requests, work.held_us, work.outside_us) == pytest.approx((4.0, 8.0, 32.0))


def test_locks_of_a_broker_are_counted_where_it_appends(cache):
    found = reactors._round(reactors.CASES["one"], 2, 400, 1)
    assert reactors.work_of(found).requests >= 1
    assert "log_append_batches" in reactors.locks(found)
    assert "| 64 |" in reactors.modelled(reactors.work_of(found))
