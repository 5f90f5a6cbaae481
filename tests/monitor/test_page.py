"""Label values of a scrape: escaped, bounded and distinct."""

import pytest

from pylog.monitor import page


def shown(group: str) -> str:
    text = page.labels("pylog_group_members", group).decode()
    assert text.startswith('group="') and text.endswith('"'), text
    return text[len('group="'):-1]


@pytest.mark.parametrize(("group", "text"), [
    ("billing", "billing"), ('say "x"', 'say \\"x\\"'), ("two\nlines", "two\\nlines"),
    ("grüße", "grüße"),
])
def test_ordinary_label_values_are_only_escaped(group, text):
    assert shown(group) == text


def test_control_characters_never_reach_a_scrape():
    text = shown("evil\x1b[2J\x07")
    assert text.isprintable() and text.startswith("evil\ufffd[2J\ufffd~")


def test_long_label_values_are_cut_and_stay_distinct():
    one, other = shown("g" * 32_000 + "1"), shown("g" * 32_000 + "2")
    assert one != other and max(len(one), len(other)) < 300
    assert shown("a\x1b") != shown("a\x1c")
