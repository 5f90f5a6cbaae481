"""Every block of README.md runs: commands and Python against a real brokerd, tests in pytest."""

import re
import subprocess
import tomllib

import pytest

from tests.docs.session import ROOT, Session, blocks, missing

BLOCKS = blocks("README.md")
INSTALL, COMMANDS = [text for language, _, text in BLOCKS if language == "bash"]
READY, LAG = [text for language, _, text in BLOCKS if language == "text"]
PYTHON = [text for language, _, text in BLOCKS if language == "python"]
BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
LINES_MAX = 120
WORDS_BEFORE_COMMAND_MAX = 90


def test_a_reader_reaches_the_first_command_quickly():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= LINES_MAX
    assert len(text.split("```")[0].split()) <= WORDS_BEFORE_COMMAND_MAX


def test_the_first_commands_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    environment, install, start = INSTALL.splitlines()
    assert environment.startswith("python3 -m venv .venv")
    assert install == f"pip install {project['name']}"
    assert start in project["scripts"]


def test_the_ready_line_is_the_real_one(brokerd):
    def fields(line: str) -> list[str]:
        return re.findall(r"[\w.]+(?==)", line)

    assert fields(READY) == fields(brokerd.output.read_text())


def test_the_commands_run_and_show_the_lag(brokerd, tmp_path):
    session = Session(tmp_path, brokerd.port)
    ran = subprocess.run(["bash", "-euo", "pipefail", "-c", COMMANDS], cwd=tmp_path, text=True,
                         env=session.environment(), stdout=subprocess.PIPE, timeout=100)
    assert ran.returncode == 0
    assert missing(LAG, ran.stdout) == [], ran.stdout
    assert "400 records" in ran.stdout and "400 records" in LAG


@pytest.mark.parametrize("code", [code for code in PYTHON if "def test_" not in code])
def test_the_python_examples_run(brokerd, code):
    exec(code.replace("localhost:9092", brokerd.bootstrap), {"__name__": "readme"})


def test_the_pytest_example_passes(pytester, monkeypatch):
    for name, value in Session(pytester.path).environment().items():
        monkeypatch.setenv(name, value)
    code, = [code for code in PYTHON if "def test_" in code]
    pytester.makepyfile(code)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-q")
    result.assert_outcomes(passed=1)
