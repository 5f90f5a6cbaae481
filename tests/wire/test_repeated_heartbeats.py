"""Heartbeats of KIP-848 that change nothing: reactors answer them from a cache until the group's
state changes.
"""

import time

import pytest

from tests.fixtures.brokers import Brokerd
from tests.monitor import scrape
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.talk import create_topic, unique

pytestmark = pytest.mark.timeout(120)
BEAT, FIND, CONFIGURE, CREATE_ACLS = 68, 10, 44, 30
GROUP_CONFIG, GROUP, DENY, ALL, LITERAL = 32, 3, 2, 2, 3
RETRIABLE, GROUP_AUTHORIZATION_FAILED = (14, 15, 16), 30
USUAL_MS, WAIT_S = 5000, 20
NAME = "ConsumerGroupHeartbeat"


@pytest.fixture(scope="module")
def brokerd(tmp_path_factory):
    broker = Brokerd(tmp_path_factory.mktemp("repeated"), {
        "metrics.listener": "127.0.0.1:0", "num.network.threads": 2,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true"}).start()
    yield broker
    assert broker.stop() == 0 and not broker.alarms()


class Member:
    """A member of a group, on one connection. beat() returns the response."""

    def __init__(self, port: int, group: str, topic: str):
        self.connection, self.group, self.epoch = Connection(port), group, 0
        self.name = unique("member")
        self.joining = {"rebalance_timeout": 60_000, "topic_partitions": [],
                        "subscribed_topic_names": [topic]}
        end_s = time.monotonic() + WAIT_S
        while (answer := self.beat(**self.joining))["error_code"] in RETRIABLE:
            assert time.monotonic() < end_s, answer
            # The first coordinator lookup creates the topic.
            ask(self.connection, FIND, 4, coordinator_keys=[group], key_type=0)
            time.sleep(0.05)
        assert answer["error_code"] == 0, answer

    def beat(self, **fields) -> dict:
        answer = ask(self.connection, BEAT, 1, **{
            "group_id": self.group, "member_id": self.name, "member_epoch": self.epoch,
            "instance_id": None, "rack_id": None, "rebalance_timeout": -1,
            "subscribed_topic_names": None, "subscribed_topic_regex": None,
            "server_assignor": None, "topic_partitions": None, **fields})
        if answer["error_code"] == 0:
            self.epoch = answer["member_epoch"]
        return answer

    def settle(self) -> None:
        """Repeat until the response has the usual interval."""
        end_s = time.monotonic() + WAIT_S
        while (answer := self.beat())["heartbeat_interval"] != USUAL_MS:
            assert answer["error_code"] == 0 and time.monotonic() < end_s, answer
            time.sleep(0.05)


def heard(brokerd) -> int:
    """Return the number of heartbeats that the control plane has answered."""
    return int(scrape.value(scrape.address_of(brokerd), "pylog_request_queue_seconds_count",
                            api=NAME))


@pytest.fixture
def member(brokerd):
    topic = unique("topic")
    create_topic(brokerd.port, topic, 2)
    made = Member(brokerd.port, unique("group"), topic)
    made.settle()
    yield made
    made.connection.close()


def test_of_a_group_at_rest_reactors_answer_all_but_the_first(brokerd, member):
    member.beat()
    before = heard(brokerd)
    answers = [member.beat() for _ in range(10)]
    assert heard(brokerd) == before
    assert all(answer == answers[0] for answer in answers) and answers[0]["error_code"] == 0
    total = scrape.value(scrape.address_of(brokerd), "pylog_request_seconds_count", api=NAME)
    assert total >= before + 10


def test_next_heartbeat_reports_a_new_member(brokerd, member):
    member.beat()
    epoch = member.epoch
    other = Member(brokerd.port, member.group, member.joining["subscribed_topic_names"][0])
    answer = member.beat()
    assert answer["assignment"] is not None, "one of its two partitions is the other's"
    assert other.epoch > epoch
    other.connection.close()


def test_next_heartbeat_returns_a_changed_group_setting(brokerd, member):
    member.beat()
    answer = ask(member.connection, CONFIGURE, 1, resources=[{
        "resource_type": GROUP_CONFIG, "resource_name": member.group, "configs": [
            {"name": "consumer.heartbeat.interval.ms", "config_operation": 0, "value": "6000"}]}])
    assert answer["responses"][0]["error_code"] == 0, answer
    assert member.beat()["heartbeat_interval"] == 6000


def test_next_heartbeat_fails_after_its_permission_is_revoked(brokerd, member):
    member.beat()
    answer = ask(member.connection, CREATE_ACLS, 3, creations=[{
        "resource_type": GROUP, "resource_name": member.group, "resource_pattern_type": LITERAL,
        "principal": "User:ANONYMOUS", "host": "*", "operation": ALL, "permission_type": DENY}])
    assert answer["results"][0]["error_code"] == 0, answer
    assert member.beat()["error_code"] == GROUP_AUTHORIZATION_FAILED


def test_member_that_left_is_unknown_to_its_next_heartbeat(member):
    epoch = member.epoch
    assert member.beat()["error_code"] == 0
    assert member.beat(member_epoch=-1)["error_code"] == 0
    assert member.beat(member_epoch=epoch)["error_code"] == 25
