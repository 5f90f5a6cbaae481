from pathlib import Path

from pylog.config import catalogue, groups
from pylog.config.document import IMPORTANT, document, topics

REFERENCE = Path(__file__).resolve().parents[2] / "docs/reference"


def test_pages_agree_with_the_tables():
    assert (REFERENCE / "settings.md").read_text() == document(), "run `make docs`"
    assert (REFERENCE / "topic-settings.md").read_text() == topics(), "run `make docs`"


def test_pages_list_every_kafka_setting():
    for name in ("log.segment.bytes", "log.flush.acks.all.enable", "ssl.keystore.location"):
        assert f"| {name} |" in document()
    assert "| retention.ms |" in topics()
    assert "internal.metadata.log.segment.bytes" not in document()


def test_important_settings_exist():
    known = {*catalogue.broker_names(), *catalogue.topic_names(), *groups.names()}
    assert IMPORTANT - known == set()
