from pathlib import Path

from pylog.client import document
from pylog.client.settings import TABLE

ROOT = Path(__file__).resolve().parents[2]


def test_the_written_reference_is_what_the_table_gives():
    assert (ROOT / "docs/client-settings.md").read_text() == document.page(), "run `make docs`"


def test_the_types_for_checkers_are_what_the_tables_give():
    here = ROOT / "pylog/client"
    assert (here / "options.pyi").read_text() == document.options_stub(), "run `make docs`"
    assert (here / "admin.pyi").read_text() == document.admin_stub(), "run `make docs`"


def test_every_setting_has_a_sentence_and_no_sentence_is_left_over():
    assert document._MEANINGS.keys() == {row.name for row in TABLE}
