"""Ids of 16 bytes and their text form."""

import random

import pytest

from pylog.metadata.image.uuids import id_from_text, id_text, random_id


def test_id_is_a_random_uuid_that_is_never_mistaken_for_an_option():
    class Source(random.Random):
        def randbytes(self, n):
            found = super().randbytes(n)
            return b"\xf8" + found[1:] if self.random() < 0.9 else found

    source = Source(3)
    for _ in range(50):
        made = random_id(source)
        assert made[6] >> 4 == 4 and made[8] >> 6 == 2
        assert not id_text(made).startswith("-")
        assert id_from_text(id_text(made)) == made
    for text in ("", "AAAA", "A" * 23, "A" * 24):
        with pytest.raises(ValueError):
            id_from_text(text)


@pytest.mark.parametrize("text", ["", "A", "!" * 22, "A" * 21 + "!", "A" * 24, "A" * 20])
def test_invalid_text_is_rejected(text):
    with pytest.raises(ValueError):
        id_from_text(text)
