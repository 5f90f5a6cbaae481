"""Decisions on access rules, and which rules a filter means."""

import random

import pytest

from pylog.metadata import acls
from pylog.metadata.image import Image, apply
from pylog.metadata.refusal import Refusal
from pylog.protocol.errors import ErrorCode
from pylog.security.authorizer import (
    ALLOW,
    ANY,
    CLUSTER,
    DENY,
    LITERAL,
    MATCH,
    PREFIXED,
    READ,
    TOPIC,
    WRITE,
    Rule,
)

RULE = Rule(TOPIC, LITERAL, "t", "User:a", "*", READ, ALLOW)


def image_with(*rules) -> Image:
    records, results = acls.create(Image(), rules, random.Random(1))
    assert not any(result.error for result in results)
    return apply(Image(), records, len(records) - 1, 1)


def wanted(**changed) -> acls.Filter:
    return acls.Filter(ANY, None, ANY, None, None, ANY, ANY)._replace(**changed)


def test_a_rule_is_kept_once():
    records, results = acls.create(image_with(RULE), [RULE, RULE, RULE._replace(host="h")],
                                   random.Random(2))
    assert len(records) == 1 and [result.error for result in results] == [ErrorCode.NONE] * 3


@pytest.mark.parametrize("changed", [
    {"resource_type": 1}, {"resource_type": 9}, {"pattern_type": MATCH}, {"operation": 1},
    {"permission": ANY}, {"resource_name": ""}, {"principal": "nobody"},
    {"resource_type": CLUSTER, "resource_name": "other"}])
def test_what_is_no_rule_is_refused_by_itself(changed):
    records, results = acls.create(Image(), [RULE._replace(**changed), RULE], random.Random(1))
    assert len(records) == 1
    assert [result.error for result in results] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]


@pytest.mark.parametrize(("changed", "count"), [
    ({}, 4), ({"resource_type": TOPIC}, 4), ({"resource_type": CLUSTER}, 0),
    ({"resource_name": "t1"}, 0), ({"resource_name": "t", "pattern_type": LITERAL}, 1),
    ({"resource_name": "t1", "pattern_type": MATCH}, 2), ({"pattern_type": PREFIXED}, 1),
    ({"resource_name": "t", "pattern_type": MATCH}, 3), ({"principal": "User:b"}, 1),
    ({"operation": WRITE}, 1), ({"permission": DENY}, 1), ({"host": "h"}, 1)])
def test_a_filter_means(changed, count):
    image = image_with(
        RULE, RULE._replace(pattern_type=PREFIXED, operation=WRITE),
        RULE._replace(resource_name="*", principal="User:b", permission=DENY),
        RULE._replace(resource_name="x", host="h"))
    assert len(acls.found(image, wanted(**changed))) == count
    records, (deleted,) = acls.delete(image, [wanted(**changed)])
    assert len(records) == len(deleted.rules) == count


def test_a_rule_that_two_filters_mean_goes_once_and_is_told_to_both():
    records, results = acls.delete(image_with(RULE), [wanted(), wanted()])
    assert len(records) == 1 and [len(result.rules) for result in results] == [1, 1]


@pytest.mark.parametrize("changed", [
    {"resource_type": 0}, {"resource_type": 50}, {"pattern_type": 7}, {"operation": 0},
    {"permission": 9}])
def test_a_filter_of_another_version_is_refused(changed):
    with pytest.raises(Refusal):
        acls.found(Image(), wanted(**changed))
