"""The examples of docs/howto/testing.md work as described."""

import re

from tests.testing.conftest import REPOSITORY

EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_example_passes(run_pytest, pytester):
    text = (REPOSITORY / "docs/howto/testing.md").read_text()
    examples = EXAMPLE.findall(text)
    assert len(examples) >= 5
    for number, source in enumerate(examples):
        pytester.makepyfile(**{f"test_example_{number}": source})
    result = run_pytest("", "-o", "timeout=100")
    assert result.ret == 0
    result.assert_outcomes(passed=sum(source.count("def test_") for source in examples))
