"""The examples of a page run in their order. A page that starts no brokerd gets an empty one."""

import pytest

from pylog.testing import Broker
from tests.docs.session import Session, blocks, missing, pages

SETTINGS = {"auto.create.topics.enable": "true", "group.initial.rebalance.delay.ms": "0",
            "group.share.min.heartbeat.interval.ms": "100",
            "group.share.heartbeat.interval.ms": "100"}
# Its tests run in a pytest of their own: tests/testing/test_docs.py.
PYTEST_PAGE = "docs/howto/testing.md"
# Their tests need Java and minutes: tests/spark/test_pages.py.
SPARK_PAGES = ["docs/tutorial/spark.md", "docs/howto/spark.md", "docs/howto/spark-pipeline.md",
               "docs/howto/spark-validate.md"]
PAGES = [page for page in pages("tutorial", "howto", "migrate", "reference", "explain")
         if page not in (PYTEST_PAGE, *SPARK_PAGES)
         and any(language in ("console", "python") for language, _, _ in blocks(page))]


def starts_brokers(page: str) -> bool:
    return any(language == "console" and "$ brokerd" in text for language, _, text in blocks(page))


def test_pages_have_examples():
    assert len(PAGES) >= 8


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_run(page, tmp_path):
    broker = None if starts_brokers(page) else Broker(settings=SETTINGS).start()
    session = Session(tmp_path, 0 if broker is None else int(broker.bootstrap.split(":")[1]))
    try:
        assert session.run(page) > 0
    finally:
        session.close()
        if broker is not None:
            broker.close()


def test_a_line_that_the_output_lacks_is_found():
    output = "orders created\nlag  400 records, 7.5 s behind\n"
    assert missing("orders created\n  lag 12 records, 1 s behind", output) == []
    assert missing("orders ...\n", output) == []
    assert missing("lag 1 records, 1 s behind\norders created", output) == ["orders created"]
    assert missing("payments created", output) == ["payments created"]
