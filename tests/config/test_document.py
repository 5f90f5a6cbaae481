from pathlib import Path

from pylog.config.document import document

WRITTEN = Path(__file__).resolve().parents[2] / "docs/reference/settings.md"


def test_document_agrees_with_the_tables():
    assert WRITTEN.read_text() == document(), "run `make docs`"


def test_document_lists_every_kafka_setting():
    text = document()
    for name in ("log.segment.bytes", "log.flush.acks.all.enable", "retention.ms",
                 "ssl.keystore.location"):
        assert f"| {name} |" in text
    assert "internal.metadata.log.segment.bytes" not in text
