from pylog import cli
from release import brokerd_page
from tests.checks import tidy


def test_page_agrees_with_the_arguments():
    written = tidy.ROOT / "docs/reference/brokerd.md"
    assert written.read_text() == brokerd_page.page(), "run `make docs`"


def test_page_lists_every_command():
    assert all(f"`brokerd {name}`" in brokerd_page.page() for name in cli.COMMANDS)
