"""The Python examples of README.md run as printed, on a broker at another port."""

import re
import textwrap

import pytest

from tests.fixtures.brokers import REPOSITORY

BLOCK = re.compile(r"(?:^    .*\n|^\n)+", re.MULTILINE)


def examples() -> list[str]:
    """Return blocks that begin with an import."""
    found = [textwrap.dedent(block).strip() for block in
             BLOCK.findall((REPOSITORY / "README.md").read_text())]
    return [block for block in found if block.startswith(("import ", "from "))]


def test_readme_contains_examples():
    assert len(examples()) >= 2


@pytest.mark.parametrize("number", range(len(examples())))
def test_an_example_runs_as_it_is_printed(brokerd, number):
    source = examples()[number].replace("localhost:9092", brokerd.bootstrap)
    exec(compile(source, f"README.md, example {number}", "exec"), {"__name__": "readme"})
