import pytest

from pylog.config import ConfigError, properties


@pytest.mark.parametrize(("text", "key", "value"), [
    ("a=b", "a", "b"),
    ("a : b", "a", "b"),
    ("a b", "a", "b"),
    ("  a\t=\tb c ", "a", "b c "),
    ("a", "a", ""),
    ("a=", "a", ""),
    ("a==b", "a", "=b"),
    ("a\\=b=c", "a=b", "c"),
    ("a\\ b=c", "a b", "c"),
    ("a=b\\\n   c", "a", "bc"),
    ("a=b\\\\", "a", "b\\"),
    ("a=\\u0041\\t\\x", "a", "A\tx"),
    ("a=b\\\r\nc", "a", "bc"),
    ("a=b # no comment", "a", "b # no comment"),
])
def test_an_entry_is_read_as_java_reads_it(text, key, value):
    assert {name: entry[0] for name, entry in properties.parse(text, "f").items()} == {key: value}


def test_comments_and_blank_lines_are_skipped_and_the_last_duplicate_counts():
    entries = properties.parse("# x\n! y\n\n  # z\na=1\na=2\n", "f")
    assert entries == {"a": ("2", 6)}
    assert properties.parse("\\\n# still a comment\n\\\n\nb=3", "f") == {"b": ("3", 5)}


def test_a_continued_entry_has_the_number_of_its_first_line():
    assert properties.parse("\na=1\\\n2\nb=3", "f") == {"a": ("12", 2), "b": ("3", 4)}


def test_a_broken_unicode_escape_is_rejected_with_its_line():
    with pytest.raises(ConfigError, match=r"\\u00g1.*\(f:2\)"):
        properties.parse("a=1\nb=\\u00g1", "f")
