"""The Python examples of a page run in their order, each page on an empty broker."""

import pytest

from pylog.testing import Broker
from tests.docs.examples import ADDRESS, blocks, pages

SETTINGS = {"auto.create.topics.enable": "true", "group.initial.rebalance.delay.ms": "0",
            "group.share.min.heartbeat.interval.ms": "100",
            "group.share.heartbeat.interval.ms": "100"}
PAGES = [page for page in pages("tutorial", "howto", "migrate")
         if any("def test_" not in code for code in blocks(page, "python"))]


def test_pages_have_examples():
    assert len(PAGES) >= 8


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page):
    names: dict = {"__name__": page}
    with Broker(settings=SETTINGS) as broker:
        for number, code in enumerate(blocks(page, "python"), 1):
            code = code.replace(ADDRESS, broker.bootstrap)
            exec(compile(code, f"{page}, example {number}", "exec"), names)
