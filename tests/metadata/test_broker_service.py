"""A broker's use of the image of a cluster with remote controllers."""

from pylog.config import Settings
from pylog.metadata.broker_service import MemberMetadata
from pylog.metadata.image.image import apply
from pylog.protocol import messages
from tests.metadata.controller.partitions.test_topics import cluster, create, topic


def member(node_id):
    return MemberMetadata(Settings({
        "node.id": str(node_id), "process.roles": "broker", "controller.quorum.voters": "9@c:1",
        "controller.listener.names": "CONTROLLER"}), None, node_id, None)


def in_force(metadata, image):
    metadata.tail.newest = metadata.tail.published = image


def roles(metadata):
    return [(role.leads, role.leader_epoch) for role in metadata.local_roles(
        metadata.tail.published.topics["t"])]


def test_a_broker_that_is_no_controller_decides_nothing():
    assert member(1).controller is None


def test_nothing_is_led_in_the_name_of_the_run_before():
    image, _ = create(cluster(3), topic("t", -1, -1, assignments=[(0, [1, 2]), (1, [2, 1])]))
    metadata = member(1)
    in_force(metadata, image)
    metadata._take_newest()
    assert roles(metadata) == [(False, 0), (False, 0)]
    registered = apply(image, [messages.RegisterBrokerRecord(
        broker_id=1, broker_epoch=image.offset + 1, incarnation_id=bytes(16))],
        image.offset + 1, image.epoch)
    in_force(metadata, registered)
    assert roles(metadata) == [(True, 0), (False, 0)]


def test_a_broker_that_is_new_leads_once_it_is_registered():
    image, _ = create(cluster(2), topic("t", -1, -1, assignments=[(0, [1, 2])]))
    metadata = member(3)
    in_force(metadata, image)
    metadata._take_newest()
    assert metadata.local_roles(image.topics["t"]) == [None]
