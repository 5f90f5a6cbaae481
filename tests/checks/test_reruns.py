"""A failed test runs again with new fixtures: see tests/checks/reruns.py."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
    import pytest

    made = []

    @pytest.fixture(scope="session")
    def jvm():
        made.append("jvm")

    @pytest.fixture(scope="module")
    def broker(jvm):
        made.append("broker")
        topics = set()
        yield topics
        made.append("broker stopped")

    @pytest.fixture(scope="module")
    def target(request):
        return request.getfixturevalue("broker")

    def test_that_fails_once(target):
        assert "topic" not in target
        target.add("topic")
        assert len(made) > 2

    def test_of_the_second_broker(target):
        assert made == ["jvm", "broker", "broker stopped", "broker"]
        assert "topic" in target
"""


def test_a_second_run_has_a_new_module_fixture_and_the_same_session_fixture(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest('pytest_plugins = ["tests.checks.reruns"]')
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "no:randomly", "--reruns", "1")
    result.assert_outcomes(passed=2)
    assert "1 rerun" in result.stdout.str()
