"""The guide's examples run, in their order."""

import re

from tests.brokers import REPOSITORY

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


def test_the_examples_of_the_guide_run(brokerd):
    text = (REPOSITORY / "docs/howto/client.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 8
    names: dict = {}
    for number, block in enumerate(blocks):
        code = block.replace("localhost:9092", brokerd.bootstrap)
        exec(compile(code, f"client.md, example {number + 1}", "exec"), names)
