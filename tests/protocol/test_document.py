"""docs/reference/protocol.md agrees with the tables."""

from pathlib import Path

from pylog.protocol.document import document

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/protocol.md"


def test_page_agrees_with_the_tables():
    assert PAGE.read_text() == document(), "run `make docs`"
