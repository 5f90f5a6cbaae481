"""Subscription expressions: RE2 syntax, linear time."""

import time

from pylog.coordinator.groups.state import topic_regex


def test_a_match_is_of_the_whole_name():
    assert topic_regex.matches("a.*", ["ab", "ba", "a"]) == {"ab", "a"}
    assert topic_regex.matches("a|b", ["a", "b", "ab"]) == {"a", "b"}


def test_uncompilable_expression_has_an_error_and_matches_nothing():
    for text in ("(", "(?=a)", "\\1", "a{1000}{1000}", "\ud800", "a" * 5000):
        assert topic_regex.fault(text), text
    assert topic_regex.matches("(", ["("]) == frozenset()
    assert topic_regex.fault("(?i)a+") is None


def test_pathological_expression_costs_as_much_as_any_other():
    before_s = time.process_time()
    assert topic_regex.matches("(a*)*(a*)*b", ["a" * 249] * 50) == frozenset()
    assert time.process_time() - before_s < 1
