"""docs/reference/pylog.md agrees with the commands and the tour."""

from pathlib import Path

from pylog.tools.docs import TOUR, document

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_document_agrees_with_the_commands():
    tour = TOUR.read_text()
    assert (DOCS / "reference/pylog.md").read_text() == document(tour), "run `make docs`"


def test_every_command_of_the_tour_is_shown_once():
    tour = TOUR.read_text()
    text = document(tour)
    for line in tour.splitlines():
        if line.startswith("$ "):
            assert text.count(line) == tour.count(line), line
