"""The published table matches the driver's clients, and it may only grow."""

import re
import tomllib

from tests.compat.__main__ import DOCUMENT, KNOWN, surprises
from tests.compat.clients import CLIENTS, Client
from tests.compat.scenario import Result
from tests.compat.table import COLUMNS, SECURITY, document, passes

LIBRARY = Client("some library", "1.2", list, ("codecs", "group", "seek", "tls", "plain"))
LOOSE = Client("loose", "9 (found here)", list, ("group",), pinned=False)
TOOLS = Client("The tools", "4.3.1", list, ("kafka-topics", "kafka-configs"))
MADE_UP = (LIBRARY, LOOSE, TOOLS)
RESULTS = [
    Result(LIBRARY, "codecs", True, "none gzip"), Result(LIBRARY, "group", True, ""),
    Result(LIBRARY, "seek", False, "offset 3,\nnot 7"), Result(LIBRARY, "tls", True, ""),
    Result(LOOSE, "group", True, ""),
    Result(TOOLS, "kafka-topics", True, "create"), Result(TOOLS, "kafka-configs", False, "no"),
]
PASSING = {"some library 1.2/codecs", "some library 1.2/group", "some library 1.2/tls",
           "loose/group",
           "The tools 4.3.1/kafka-topics"}


def _known() -> dict[str, str]:
    return tomllib.loads(KNOWN.read_text())


def test_document_lists_passing_and_failing_rows_with_reasons():
    text = document(RESULTS, {"The tools 4.3.1/kafka-configs": "a reason"})
    assert re.search(r"^\| some library \| 1\.2 \| pass \| - \| pass \|.* \| none gzip \|$", text,
                     re.MULTILINE)
    assert "| kafka-topics | 4.3.1 | pass | create |" in text
    assert "- some library 1.2/seek: offset 3, not 7" in text
    assert "- The tools 4.3.1/kafka-configs: a reason" in text


def test_passing_rows_are_parsed_from_the_document():
    assert passes(document(RESULTS, {}), MADE_UP) == PASSING


def test_row_with_a_machine_dependent_version_keeps_its_key():
    text = document(RESULTS, {}).replace("9 (found here)", "10 (found there)")
    assert "loose/group" in passes(text, MADE_UP)


def test_row_of_a_removed_client_keeps_its_key():
    assert passes(document(RESULTS, {}), (TOOLS,)) >= {"some library 1.2/codecs"}


def test_unknown_failure_is_reported():
    told = list(surprises(RESULTS, {"The tools 4.3.1/kafka-configs": "why"}, set(), False))
    assert told == ["some library 1.2/seek failed: offset 3,\nnot 7"]


def test_passing_known_failure_is_reported():
    told = list(surprises(RESULTS[:1], {"some library 1.2/codecs": "why"}, set(), False))
    assert told == ["some library 1.2/codecs passes: take it out of known_failures.toml"]


def test_passing_row_may_not_become_a_known_failure():
    known = {"some library 1.2/seek": "why"}
    told = list(surprises(RESULTS[:3], known, {"some library 1.2/seek"}, False))
    assert told == ["some library 1.2/seek passed before: offset 3,\nnot 7"]


def test_passing_row_may_not_be_missing_from_a_full_run():
    before = PASSING | {"some library 1.2/resume"}
    assert list(surprises(RESULTS[:2], {}, before, False)) == []
    told = list(surprises(RESULTS[:2], {}, before, True))
    assert told == [f"{key} passed before and was not run" for key in sorted(
        before - {"some library 1.2/codecs", "some library 1.2/group"})]


def test_every_scenario_of_every_client_passes_in_the_document_or_is_a_known_failure():
    expected = {f"{client.key}/{scenario}" for client in CLIENTS for scenario in client.scenarios}
    passing = passes(DOCUMENT.read_text(), CLIENTS)
    assert passing | _known().keys() == expected
    assert not passing & _known().keys()


def test_every_column_of_the_document_is_a_scenario_of_a_client():
    scenarios = {scenario for client in CLIENTS for scenario in client.scenarios}
    assert set(COLUMNS) | set(SECURITY) <= scenarios
