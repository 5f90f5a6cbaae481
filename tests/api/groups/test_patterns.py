"""Clients' expressions: matches, and linear time."""

import random
import re

import pytest

from pylog.api.groups.patterns import CHARACTERS_MAX, Pattern

ALIKE = (
    "", "a", "ab*", "a+b?", "(ab)*", "(a|b)*a", "a{2,3}", "a{2,}b", "[ab]c", "[^a]*", ".*", "a.*b",
    "^ab$", "(^a|b)$", "a|^$", "(a*)*b", "(a|ab)(c|bcd)?", r"\w+-\d", r"\S\s?\W*", "a*?b",
    "(?:a|)b+", r"\Aab\Z", "a^b", "a$b", "(a?){3}a{3}", "[a-c]{1,2}")


def test_expression_matches_the_same_as_pythons():
    draw = random.Random(7)
    texts = ["", *("".join(draw.choices("abc-1 d", k=draw.randrange(1, 8))) for _ in range(400))]
    texts += ["a" * count for count in range(8)] + ["ab", "aab", "abab", "abcd"]
    for expression in ALIKE:
        ours, pythons = Pattern(expression), re.compile(expression)
        for text in texts:
            assert ours.matches(text) == (pythons.fullmatch(text) is not None), (expression, text)


def test_expressions_that_would_go_back_for_ever_are_matched_at_once():
    text = "a" * 30_000 + "!"
    for expression in (
            "(a*)*b", "(a+)+b", "(a|a)*b", "(a|aa)+b", ".*.*.*.*.*b", "(a?){60}a{60}b"):
        assert not Pattern(expression).matches(text)


@pytest.mark.parametrize("expression", [
    "(", "[", "a{2,1}", "*", r"(a)\1", "(?=a)", "(?<!a)b", "(?i)a", "(?i:a)", r"a\b", "(?>a)",
    "a{1000}", "((a{9}){9}){9}", "((){60000}){60000}", "a{99999999999999}", "(" * 499 + ")" * 499,
    "a" * (CHARACTERS_MAX + 1), "(?P<x", "(a)(?(1)b|c)", "a*+", "a" * 600])
def test_expression_that_needs_backtracking_is_rejected(expression):
    with pytest.raises(re.error):
        Pattern(expression)
