"""The state of one consumer group does not depend on the order of its records."""

import pytest

from pylog.coordinator.groups.consumer.group import ConsumerGroup, ConsumerMember

TOPIC = b"t" * 16


def member(id_, *partitions):
    made = ConsumerMember(id_)
    made.assigned = {TOPIC: dict.fromkeys(partitions, 1)} if partitions else {}
    return made


@pytest.mark.parametrize("leave", [
    lambda group: group.remove("a"),
    lambda group: group.put(member("a"))], ids=["it goes", "it stays"])
def test_member_whose_topic_was_replaced_has_nothing_left_to_revoke(leave):
    group = ConsumerGroup("g")
    group.put(member("a", 0))
    group.put(member("b", 0))
    assert group.owner(TOPIC, 0) == "b"
    group.remove("b")
    assert group.owner(TOPIC, 0) is None
    leave(group)
    assert group.owners == {}
    group.check()
