"""Names of subjects with and without contexts."""

import pytest

from pylog.registry import errors, subjects


@pytest.mark.parametrize("text, context, name", [
    ("a", ".", "a"), (":.c:a", ".c", "a"), (":.c:", ".c", ""), (":.:a", ".", "a"),
    (":.c:a:b", ".c", "a:b"), ("a:.c:b", ".", "a:.c:b"), (":a", ".", ":a")])
def test_names_are_split(text, context, name):
    assert subjects.parse(text) == (context, name)


def test_names_of_the_default_context_have_no_prefix():
    assert subjects.parse(":.:a").text == "a"
    assert subjects.parse(":.c:a").text == ":.c:a"


@pytest.mark.parametrize("text", ["", "a\nb", "__GLOBAL", "__EMPTY", ":.c:", ":.__GLOBAL:a"])
def test_invalid_names_are_refused(text):
    with pytest.raises(errors.RegistryError) as found:
        subjects.checked(text)
    assert found.value.code == errors.INVALID_SUBJECT


def test_settings_are_looked_up_from_the_subject_to_all_contexts():
    assert subjects.scopes(subjects.parse("a")) == ["a", "", ":.__GLOBAL:"]
    assert subjects.scopes(subjects.parse(":.c:a")) == [":.c:a", ":.c:", ":.__GLOBAL:"]
