"""Type checkers find twelve planted errors of the client's users, and no error in correct programs.

The programs are in tests/client/typing.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "typing"
PLANTED, CORRECT = HERE / "planted.py", HERE / "correct.py"
MYPY_CODES = HERE / "mypy_codes.py"
REPOSITORY = HERE.parents[2]
CHECK_S = 110.0
# ty does not read the names in Unpack[…], so it accepts a misspelt keyword.
MISSED = {"ty": {"misspelt_keyword"}}
COLON_LINE = re.compile(r"^(\S+?\.py):(\d+):.*\berror\b", re.MULTILINE)


def tool(name: str) -> str:
    """Return the program of a checker beside this Python, or on the path; skip without it."""
    own = Path(sys.executable).with_name(name)
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: pip install {name}")
    return found


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=CHECK_S,
                          cwd=REPOSITORY).stdout


def by_colon(text: str) -> set[tuple[str, int]]:
    return {(Path(name).name, int(line)) for name, line in COLON_LINE.findall(text)}


def mypy() -> set[tuple[str, int]]:
    return by_colon(output(tool("mypy"), "--strict", "--no-error-summary", str(PLANTED),
                           str(CORRECT), str(MYPY_CODES)))


def pyright(name: str = "pyright") -> set[tuple[str, int]]:
    found = json.loads(output(tool(name), "--outputjson", "--level", "error", "--pythonpath",
                              sys.executable, str(PLANTED), str(CORRECT)))
    assert found["summary"]["filesAnalyzed"] == 2, found["summary"]
    return {(Path(row["file"]).name, row["range"]["start"]["line"] + 1)
            for row in found["generalDiagnostics"]}


def basedpyright() -> set[tuple[str, int]]:
    return pyright("basedpyright")


def ty() -> set[tuple[str, int]]:
    return by_colon(output(tool("ty"), "check", "--output-format", "concise", "--python",
                           sys.prefix, str(PLANTED), str(CORRECT)))


def pyrefly() -> set[tuple[str, int]]:
    found = json.loads(output(tool("pyrefly"), "check", "--output-format", "json",
                              "--python-interpreter-path", sys.executable, str(PLANTED),
                              str(CORRECT)))
    return {(Path(row["path"]).name, row["line"]) for row in found["errors"]}


def planted() -> dict[str, int]:
    """Return the line of the error in each function."""
    found, function = {}, ""
    for number, line in enumerate(PLANTED.read_text().splitlines(), 1):
        if line.startswith("def "):
            function = line[4:line.index("(")]
        elif line.endswith("# error"):
            assert function not in found
            found[function] = number
    return found


def test_twelve_errors_are_planted():
    assert len(planted()) == 12


@pytest.mark.parametrize("check", [mypy, basedpyright, ty, pyright, pyrefly],
                         ids=lambda check: check.__name__)
def test_a_type_checker_finds_the_planted_errors_and_no_others(check):
    expected = {(PLANTED.name, line) for name, line in planted().items()
                if name not in MISSED.get(check.__name__, ())}
    assert check() == expected
