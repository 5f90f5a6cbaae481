"""docs/protocol.md agrees with the tables."""

from pathlib import Path

from pylog.protocol.document import document

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"


def test_the_page_is_what_the_tables_generate():
    assert PAGE.read_text() == document(), "run `make docs`"
