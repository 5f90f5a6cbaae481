from pathlib import Path

from pylog.client import docs as client_docs
from pylog.client.config.settings import TABLE

ROOT = Path(__file__).resolve().parents[2]


def test_reference_agrees_with_the_table():
    page = ROOT / "docs/reference/client-settings.md"
    assert page.read_text() == client_docs.page(), "run `make docs`"


def test_option_types_agree_with_the_tables():
    here = ROOT / "pylog/client"
    assert (here / "options.pyi").read_text() == client_docs.options_stub(), "run `make docs`"
    assert (here / "admin/blocking.pyi").read_text() == client_docs.admin_stub(), "run `make docs`"


def test_client_settings_and_descriptions_match():
    assert client_docs._MEANINGS.keys() == {row.name for row in TABLE}


def test_each_rated_setting_exists_and_has_one_importance():
    names = {row.name for row in TABLE}
    assert client_docs.HIGH <= names and client_docs.LOW <= names
    assert not client_docs.HIGH & client_docs.LOW
    assert client_docs.importance("acks") == "high"
    assert client_docs.importance("session.timeout.ms") == "medium"
    assert client_docs.importance("check.crcs") == "low"
