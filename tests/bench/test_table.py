"""The verdicts of bench.vs."""

from bench.table import Goal, Row, is_steady, number, render, verdict


def _row(*goals: Goal) -> Row:
    return Row("load", "cpu", "CPU", "s/GB", goals)


def test_a_ratio_goal_passes_at_its_limit_and_misses_above():
    row = _row(Goal("ratio_max", 0.35))
    assert verdict(row, {("kafka", "cpu"): 2.0, ("pylog", "cpu"): 0.7}) == "pass"
    assert verdict(row, {("kafka", "cpu"): 2.0, ("pylog", "cpu"): 0.71}) == "MISS"


def test_a_minimum_ratio_goal_misses_below_its_limit():
    row = _row(Goal("ratio_min", 5))
    assert verdict(row, {("kafka", "cpu"): 10.0, ("pylog", "cpu"): 50.0}) == "pass"
    assert verdict(row, {("kafka", "cpu"): 10.0, ("pylog", "cpu"): 49.0}) == "MISS"


def test_every_goal_of_a_row_must_be_met():
    row = _row(Goal("ratio_max", 0.35), Goal("floor_max", 1.2))
    figures = {("kafka", "cpu"): 4.0, ("pylog", "cpu"): 1.0, ("floor", "cpu"): 0.7}
    assert verdict(row, figures) == "MISS"


def test_a_goal_beside_several_of_our_figures_is_met_by_the_larger():
    row = _row(Goal("own_max", 1.2, "alone_us|bare_us"))
    figures = {("pylog", "alone_us"): 1.0, ("pylog", "bare_us"): 2.0}
    assert verdict(row, {**figures, ("pylog", "cpu"): 2.4}) == "pass"
    assert verdict(row, {**figures, ("pylog", "cpu"): 2.5}) == "MISS"
    assert verdict(row, {("pylog", "alone_us"): 1.0, ("pylog", "cpu"): 0.5}) == ""
    assert row.goals[0].text("ms") == "≤ 1.2× alone or bare"


def test_missing_baseline_gives_no_verdict():
    assert verdict(_row(Goal("ratio_max", 0.35)), {("pylog", "cpu"): 0.1}) == ""


def test_row_without_measurements_is_omitted():
    samples = {"e2e": {"kafka": {"p99_us": [900.0, 1000.0, 5000.0]},
                       "pylog": {"p99_us": [300.0]}}}
    lines = render(samples, "4.3.1", {}).splitlines()
    assert len(lines) == 3
    assert "| 1,000 | 300 | 0.30× |" in lines[2]
    assert lines[2].endswith("| pass |")


def test_numbers_are_printed_with_three_digits():
    assert [number(value) for value in (None, 0.12345, 12.345, 123456.7)] == [
        "—", "0.123", "12.3", "123,457"]


def _samples(*ours: float) -> dict:
    return {"one-record": {"kafka": {"cpu_s_per_million_requests": [10.0] * len(ours)},
                           "pylog": {"cpu_s_per_million_requests": list(ours)}}}


def test_a_load_is_steady_once_three_rounds_agree():
    assert not is_steady(_samples(1.0, 1.0)["one-record"])
    assert is_steady(_samples(1.0, 1.0, 1.02)["one-record"])
    assert not is_steady(_samples(1.0, 1.2, 1.4)["one-record"])
    assert is_steady({"pylog": {"p99_us": [1.0]}})


def test_ratio_is_shown_with_its_spread_and_other_placement():
    row = render(_samples(1.0, 1.1, 1.2), "4.3.1", _samples(2.0)).splitlines()[2]
    assert "| 0.11× | 9.1% (not steady) | 0.20× |" in row
    row = render(_samples(1.0, 1.0, 1.0), "4.3.1", {}).splitlines()[2]
    assert "| 0.10× | 0.0% | — |" in row
