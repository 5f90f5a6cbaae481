"""Masks of fields."""

import json
from pathlib import Path

import pytest

from pylog.config.errors import ConfigError
from pylog.client.columns.rows import Row
from pylog.console.records import masking
from pylog.console.records.decoding import decodings
from pylog.console.records.encoding import shown
from pylog.console.records.previews import preview, whole_text
from pylog.console.rendering import environment
from pylog.console.values.row_decoding import Decoded


def masks(tmp_path, text):
    path = tmp_path / "masks.toml"
    path.write_text(text)
    return masking.load(str(path))


def seen(mask, value):
    return json.loads(mask.value(json.dumps(value).encode()).data)


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
    assert mask.value(data).data == f"(hidden: {len(data)} bytes)".encode()
    assert mask.value(None).data is None


def test_other_topics_and_exempt_users_see_plain_values(tmp_path):
    found = masks(tmp_path, '''
        [[rule]]
        topics = ["pay-*"]
        path = "$.iban"
        exempt = ["User:aud*"]''')
    data = b'{"iban": "DE00"}'
    assert found.of("pay-eu", "bob").value(data).data != data
    assert found.of("pay-eu", "auditor").value(data).data == data
    assert found.of("orders", "bob").value(data).data == data
    assert found.of("pay-eu", "bob").hides("value") and not found.of("pay-eu", "bob").hides("key")


def test_a_rule_can_hide_the_whole_key(tmp_path):
    mask = masks(tmp_path, '[[rule]]\ntopics="*"\npart="key"').of("t", "bob")
    assert mask.key(b"secret").data == b"(hidden: 6 bytes)"
    assert mask.value(b"open").data == b"open"


@pytest.mark.parametrize("text", [
    "rule = 1", "[[rule]]\npath='$.a'", "[[rule]]\ntopics='*'\npath='a.b'",
    "[[rule]]\ntopics='*'\naction='blur'", "[[rule]]\ntopics='*'\nfield='x'", "[other]", "[[",
    "[[rule]]\ntopics='*'\npart='trailer'", "[[rule]]\ntopics='*'\npath='$.a[0]'"])
def test_a_damaged_file_is_rejected_with_its_place(tmp_path, text):
    with pytest.raises(ConfigError, match=r"console\.masking\.file=.*masks\.toml"):
        masks(tmp_path, text)


def test_a_rule_hides_headers_by_their_names(tmp_path):
    mask = masks(tmp_path, '''
        [[rule]]
        topics = "*"
        part = "header"
        header = ["auth*", "cookie"]''').of("t", "bob")
    assert mask.header("authorization", b"secret").data == b"(hidden: 6 bytes)"
    assert mask.header("trace", b"7").data == b"7"
    assert mask.hides("header") and not mask.hides("value") and mask.hides_something


def test_a_decoded_value_is_masked_by_its_fields(tmp_path):
    mask = masks(tmp_path, '[[rule]]\ntopics="*"\npath="$.pin"').of("t", "bob")
    seen = mask.value(b"\0\0\0\0\7...", Decoded('{"pin": "1234", "id": 7}', "Avro, schema 7"))
    assert json.loads(seen.data) == {"pin": "(hidden)", "id": 7} and seen.raw is None
    failed = mask.value(b"\0pin", Decoded(None, "Avro, schema 7", "no such symbol: 1234"))
    assert failed.data == b"(hidden: 4 bytes)" and "1234" not in failed.error


def test_bytes_that_no_mask_has_passed_are_never_shown():
    for show in (preview, whole_text, decodings, shown):
        with pytest.raises(TypeError):
            show(b"secret")
    for hostile in (b"secret", Row(0, 1, 2, b"secret", None, [])):
        with pytest.raises(TypeError):
            environment().from_string("{{ value }}").render(value=hostile)
    with pytest.raises(TypeError):
        environment().from_string("{{ value|visible }}").render(value=b"secret")
    # Only masks decide what is visible.
    made = [path for path in Path(masking.__file__).parents[1].rglob("*.py")
            if "Visible(" in path.read_text().replace("class Visible", "")]
    assert made == [Path(masking.__file__)]
