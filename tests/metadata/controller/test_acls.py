"""Decisions on ACLs, and matching of ACL filters."""

import random

import pytest

from pylog.metadata.controller import acls
from pylog.metadata.image.image import Image, apply
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
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
from tests.fixtures.steps import steps_in
from tests.metadata.controller.partitions.test_topics import decided

RULE = Rule(TOPIC, LITERAL, "t", "User:a", "*", READ, ALLOW)


def image_with(*rules) -> Image:
    records, results = decided(acls.create(Image(), rules, random.Random(1)))
    assert not any(result.error for result in results)
    return apply(Image(), records, len(records) - 1, 1)


def wanted(**changed) -> acls.Filter:
    return acls.Filter(ANY, None, ANY, None, None, ANY, ANY)._replace(**changed)


def test_repeated_acl_is_stored_once():
    records, results = decided(acls.create(
        image_with(RULE), [RULE, RULE, RULE._replace(host="h")], random.Random(2)))
    assert len(records) == 1 and [result.error for result in results] == [ErrorCode.NONE] * 3


@pytest.mark.parametrize("changed", [
    {"resource_type": 1}, {"resource_type": 9}, {"pattern_type": MATCH}, {"operation": 1},
    {"permission": ANY}, {"resource_name": ""}, {"principal": "nobody"},
    {"resource_type": CLUSTER, "resource_name": "other"}, {"host": "127.0.0.0/33"},
    {"host": "nonsense/x", "permission": DENY}, {"host": ""}])
def test_invalid_acl_is_rejected_separately(changed):
    records, results = decided(acls.create(
        Image(), [RULE._replace(**changed), RULE], random.Random(1)))
    assert len(records) == 1
    assert [result.error for result in results] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]


@pytest.mark.parametrize(("level", "error"), [
    (acls.SUBNETS - 1, ErrorCode.UNSUPPORTED_VERSION), (acls.SUBNETS, ErrorCode.NONE)])
def test_acl_for_a_subnet_needs_brokers_that_apply_it(level, error):
    image = Image(features={"metadata.version": level})
    records, [result] = decided(acls.create(
        image, [RULE._replace(host="10.0.0.0/8")], random.Random(1)))
    assert result.error == error and len(records) == (error == ErrorCode.NONE)


@pytest.mark.parametrize(("changed", "count"), [
    ({}, 4), ({"resource_type": TOPIC}, 4), ({"resource_type": CLUSTER}, 0),
    ({"resource_name": "t1"}, 0), ({"resource_name": "t", "pattern_type": LITERAL}, 1),
    ({"resource_name": "t1", "pattern_type": MATCH}, 2), ({"pattern_type": PREFIXED}, 1),
    ({"resource_name": "t", "pattern_type": MATCH}, 3), ({"principal": "User:b"}, 1),
    ({"operation": WRITE}, 1), ({"permission": DENY}, 1), ({"host": "h"}, 1)])
def test_acl_filter_matches(changed, count):
    image = image_with(
        RULE, RULE._replace(pattern_type=PREFIXED, operation=WRITE),
        RULE._replace(resource_name="*", principal="User:b", permission=DENY),
        RULE._replace(resource_name="x", host="h"))
    assert len(decided(acls.found(image, wanted(**changed)))) == count
    records, (deleted,) = decided(acls.delete(image, [wanted(**changed)]))
    assert len(records) == len(deleted.rules) == count


def test_acl_matched_by_two_filters_is_deleted_once_and_returned_to_both():
    records, results = decided(acls.delete(image_with(RULE), [wanted(), wanted()]))
    assert len(records) == 1 and [len(result.rules) for result in results] == [1, 1]


@pytest.mark.parametrize("changed", [
    {"resource_type": 0}, {"resource_type": 50}, {"pattern_type": 7}, {"operation": 0},
    {"permission": 9}])
def test_acl_filter_with_unknown_types_is_rejected(changed):
    with pytest.raises(Refusal):
        decided(acls.found(Image(), wanted(**changed)))


def exactly(rule: Rule) -> acls.Filter:
    return acls.Filter(rule.resource_type, rule.resource_name, rule.pattern_type, rule.principal,
                       rule.host, rule.operation, rule.permission)


def test_fully_specified_acl_filter_matches_one_rule():
    image = image_with(RULE, RULE._replace(resource_name="*"), RULE._replace(host="h"))
    assert decided(acls.found(image, exactly(RULE))) == [RULE]
    assert decided(acls.found(image, exactly(RULE._replace(resource_name="u")))) == []
    records, results = decided(acls.delete(image, [exactly(RULE), exactly(RULE)]))
    assert len(records) == 1 and [result.rules for result in results] == [[RULE], [RULE]]


def test_cost_of_an_acl_change_does_not_depend_on_the_acl_count():
    few = image_with(RULE)
    many = image_with(RULE, *[RULE._replace(resource_name=f"t{number}") for number in range(5000)])
    other = RULE._replace(resource_name="other")
    for decide in (lambda image: acls.create(image, [other], random.Random(2)),
                   lambda image: acls.delete(image, [exactly(RULE)])):
        assert lines_of(acls, decide, few) == lines_of(acls, decide, many)


def lines_of(module, decide, image) -> int:
    with steps_in(module) as counted:
        list(decide(image))
    return counted.lines


def test_acl_stored_by_two_records_is_removed_with_both():
    """Kafka's controller may leave duplicates: it checks for equal ACLs, but an old version did
    not.
    """
    record = decided(acls.create(Image(), [RULE], random.Random(1)))[0][0]
    second = messages.AccessControlEntryRecord(**{
        field: getattr(record, field) for field in record.__slots__})
    second.id = bytes(16)
    twice = apply(Image(), [record, second], 1, 1)
    assert decided(acls.found(twice, wanted())) == [RULE]
    records, (deleted,) = decided(acls.delete(twice, [wanted()]))
    assert len(records) == 2 and deleted.rules == [RULE]
    left = apply(twice, records[:1], 2, 1)
    assert decided(acls.found(left, wanted())) == [RULE]
    assert not decided(acls.found(apply(left, records[1:], 3, 1), wanted()))
