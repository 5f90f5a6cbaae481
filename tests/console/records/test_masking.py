"""Masks of fields."""

import json

import pytest

from pylog.config.errors import ConfigError
from pylog.console.records import masking


def masks(tmp_path, text):
    path = tmp_path / "masks.toml"
    path.write_text(text)
    return masking.load(str(path))


def seen(mask, value):
    return json.loads(mask.value(json.dumps(value).encode()))


@pytest.mark.parametrize("action, shown", [
    ("hide", "(hidden)"), ("last4", "…1111"), ("replace", "…")])
def test_each_action_masks_the_field_and_nothing_else(tmp_path, action, shown):
    mask = masks(tmp_path, f'''
        [[rule]]
        topics = ["cards"]
        path = "$.card.number"
        action = "{action}"''').of("cards", "bob")
    found = seen(mask, {"card": {"number": "4111111111111111", "name": "B"}, "id": 7})
    assert found == {"card": {"number": shown, "name": "B"}, "id": 7}


def test_equal_values_have_equal_hashes(tmp_path):
    mask = masks(tmp_path, '[[rule]]\ntopics="*"\npath="$.a"\naction="hash"').of("t", "bob")
    one, same, other = (seen(mask, {"a": value})["a"] for value in ("x", "x", "y"))
    assert one == same != other and "x" not in one


def test_lists_and_numbers_are_masked(tmp_path):
    mask = masks(tmp_path, '''
        [[rule]]
        topics = "*"
        path = "$.cards[*].pan"
        [[rule]]
        topics = "*"
        path = "$.salary"''').of("any", "bob")
    assert seen(mask, {"cards": [{"pan": 1}, {"pan": [2]}], "salary": 12.5}) == {
        "cards": [{"pan": "(hidden)"}] * 2, "salary": "(hidden)"}
    # Without [*] in the rule, a list of such objects is masked too.
    assert seen(mask, [{"salary": 1}]) == [{"salary": "(hidden)"}]


def test_a_short_value_does_not_show_its_last_four_characters(tmp_path):
    mask = masks(tmp_path, '[[rule]]\ntopics="*"\npath="$.pin"\naction="last4"').of("t", "bob")
    assert seen(mask, {"pin": "1234"}) == {"pin": "…"}


@pytest.mark.parametrize("data", [b"\xff\x00", b"{broken", b"[" * 100_000, b""])
def test_a_value_that_is_no_json_shows_only_its_size(tmp_path, data):
    mask = masks(tmp_path, '[[rule]]\ntopics="*"\npath="$.a"').of("t", "bob")
    assert mask.value(data) == f"(hidden: {len(data)} bytes)".encode()
    assert mask.value(None) is None


def test_other_topics_and_exempt_users_see_plain_values(tmp_path):
    found = masks(tmp_path, '''
        [[rule]]
        topics = ["pay-*"]
        path = "$.iban"
        exempt = ["User:aud*"]''')
    data = b'{"iban": "DE00"}'
    assert found.of("pay-eu", "bob").value(data) != data
    assert found.of("pay-eu", "auditor").value(data) == data
    assert found.of("orders", "bob").value(data) == data
    assert found.of("pay-eu", "bob").hides("value") and not found.of("pay-eu", "bob").hides("key")


def test_a_rule_can_hide_the_whole_key(tmp_path):
    mask = masks(tmp_path, '[[rule]]\ntopics="*"\npart="key"').of("t", "bob")
    assert mask.key(b"secret") == b"(hidden: 6 bytes)"
    assert mask.value(b"open") == b"open"


@pytest.mark.parametrize("text", [
    "rule = 1", "[[rule]]\npath='$.a'", "[[rule]]\ntopics='*'\npath='a.b'",
    "[[rule]]\ntopics='*'\naction='blur'", "[[rule]]\ntopics='*'\nfield='x'", "[other]", "[[",
    "[[rule]]\ntopics='*'\npart='header'", "[[rule]]\ntopics='*'\npath='$.a[0]'"])
def test_a_damaged_file_is_rejected_with_its_place(tmp_path, text):
    with pytest.raises(ConfigError, match=r"console\.masking\.file=.*masks\.toml"):
        masks(tmp_path, text)
