"""The page of all messages: what it lists, and that it is current."""

import re
from pathlib import Path

from release.messages import Message, messages, native_messages, page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/messages.md"


def test_log_lines_errors_and_other_texts_are_listed_with_their_fields():
    source = '''
def f(error, wait_s):
    """This docstring is not a message."""
    log.warning("cannot reach %s; retrying", error, extra={"broker": 1, "reason": str(error)})
    raise StartError(f"no quorum within {wait_s:g} s: "
                     f"{error}")
    raise StateError(f"the producer is {state}", remedy="call begin() first")
WORDS = {1: "left the group", 2: "a"}
'''
    assert messages(source) == [
        Message("StartError", "no quorum within {wait_s} s: {error}"),
        Message("StateError", "the producer is {state}: call begin() first"),
        Message("log warning", "cannot reach %s; retrying", ("broker", "reason")),
        Message("text", "left the group")]


def test_native_texts_are_listed_without_assertions_and_docstrings():
    source = '''
cdef f():
    """Return the first batch of the log."""
    assert(x && "a slot is read as an entry");
    return refuse(why, "the private key does not "
                  "belong to the certificate");
'''
    assert native_messages(source) == [
        Message("text", "the private key does not belong to the certificate")]


def test_the_page_is_current():
    assert PAGE.read_text() == page(ROOT), "run `make docs`"


def test_messages_do_not_repeat_words():
    found = [line for line in PAGE.read_text().splitlines()
             if re.search(r"\b([A-Za-z]+) \1\b", line.partition("``")[2])]
    assert found == []
