"""A hanging test is reported, and ends: see tests/checks/hangs.py."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENT = """
    pytest_plugins = ["tests.checks.hangs"]

    def pytest_configure():
        from tests.checks import hangs
        hangs.BEYOND_S = 0.5
"""
DEAF = """
    import signal, time
    import pytest

    @pytest.fixture
    def deaf():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        yield
        {at_end}

    def test_that_hangs(deaf):
        {inside}
"""


@pytest.mark.parametrize("inside, at_end", [
    ("time.sleep(60)", "pass"),
    ("assert False", "time.sleep(60)"),
], ids=["in the test", "at the end of one that failed"])
def test_test_that_ignores_signals_is_ended_and_named(pytester, monkeypatch, inside, at_end):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\ntimeout = 0.5")
    pytester.makeconftest(PATIENT)
    deaf = DEAF.format(inside=inside, at_end=at_end)
    pytester.makepyfile(deaf, test_next="def test_next(): pass")
    done = pytester.runpytest_subprocess(*_as_the_makefile_does(), timeout=60)
    assert done.ret != 0
    done.stdout.fnmatch_lines(["*crashed while running*test_that_hangs*"])
    assert "Timeout (" in done.stderr.str(), "no stack of the process that ended"


def _as_the_makefile_does() -> list[str]:
    makefile = (ROOT / "Makefile").read_text()
    options, = re.findall(r"-m pytest -n \$\(WORKERS\) (.*) \$\(TESTS\)", makefile)
    return ["-n", "2", *options.split()]


def test_test_within_its_limit_is_not_interrupted(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\ntimeout = 0.5")
    pytester.makeconftest(PATIENT)
    pytester.makepyfile("""
        import time
        import pytest

        @pytest.mark.timeout(5)
        def test_slow_by_leave(): time.sleep(1.5)

        @pytest.mark.timeout(0)
        def test_without_a_limit(): time.sleep(1.2)
    """)
    pytester.runpytest_subprocess("-p", "no:randomly").assert_outcomes(passed=2)
