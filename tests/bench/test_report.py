"""The destination of a bench's table."""

import re

import pytest

from bench import report, vs
from bench.control import __main__ as control

PAGE = """# The last full run

## First

old

| a | b |

## Second

stays
"""


def test_a_full_run_replaces_its_own_section_only(tmp_path):
    page = tmp_path / "benchmarks.md"
    page.write_text(PAGE)
    report.publish("First", "new\n", page)
    assert page.read_text() == "# The last full run\n\n## First\n\nnew\n\n## Second\n\nstays\n"
    report.publish("Second", "newer\n", page)
    assert page.read_text() == "# The last full run\n\n## First\n\nnew\n\n## Second\n\nnewer\n"


def test_a_section_that_the_page_lacks_is_named(tmp_path):
    page = tmp_path / "benchmarks.md"
    page.write_text(PAGE)
    with pytest.raises(ValueError, match="no section 'Third'"):
        report.publish("Third", "new\n", page)
    assert page.read_text() == PAGE


def test_the_page_has_a_section_for_each_program():
    page = report.PAGE.read_text()
    for title in (vs.SECTION, vs.SECTION_SECURED, control.SECTION):
        assert page.count(f"## {title}\n") == 1


def test_the_performance_page_quotes_the_runs_that_the_results_have():
    quoting = (report.PAGE.parents[2] / "docs/explain/performance.md").read_text()
    quoted = re.findall(r"from commit (\w+\+?)", quoting)
    sections = report.PAGE.read_text().split("\n## ")[1:]
    for commit, title in zip(quoted, (vs.SECTION, control.SECTION), strict=True):
        section, = [text for text in sections if text.startswith(f"{title}\n")]
        assert f"commit {commit}" in section, "explain/performance.md has values of an older run"


def test_every_run_is_saved_with_its_samples(tmp_path, monkeypatch):
    monkeypatch.setenv("PYLOG_CACHE", str(tmp_path))
    path = report.save("| a |\n", {"samples": {"e2e": 1}}, "-control")
    assert path.read_text() == "| a |\n" and path.name.endswith("-control.md")
    assert '"e2e": 1' in path.with_suffix(".json").read_text()


@pytest.mark.parametrize(("arguments", "rounds", "sections"), [
    ([], 3, [vs.SECTION, vs.SECTION_SECURED]),
    (["--quick"], 2, [vs.SECTION, vs.SECTION_SECURED]), (["--quick"], 1, []),
    (["--only", "e2e"], 3, []), (["--sides", "pylog"], 3, []),
    (["--only", "tls"], 2, [vs.SECTION_SECURED]), (["--only", "tls-e2e"], 2, []),
])
def test_a_run_replaces_the_sections_of_which_it_has_everything(arguments, rounds, sections):
    assert list(vs.sections(vs._arguments(arguments), rounds)) == sections
