"""kill -9 during transactions: an independent checker compares the acknowledged results.

The checker (tests.chaos.history) does not depend on the broker. It finds lost and duplicated
records, torn transactions, visible aborted ones, readers that go backwards or skip records, and
copies without the offsets that were committed with them.
"""

import time

import pytest

from tests.chaos.history import Final, History, Partition, problems
from tests.chaos.readers import OwnMember, Reader
from tests.chaos.soak import READERS, read_whole
from tests.chaos.transactors import Copier, LibrdkafkaTransactor, OwnTransactor
from tests.chaos.writers import LibrdkafkaSender, OwnSender
from tests.fixtures.brokers import Brokerd
from tests.fixtures.child_environment import NO_LIBRDKAFKA
from tests.wire.talk import create_topic

pytestmark = [pytest.mark.timeout(280), NO_LIBRDKAFKA]
TOPICS = {"orders": 2, "accounts": 2, "copies": 2}
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 4,
            "transaction.state.log.num.partitions": 4}
WAIT_S = 120


def _clients(history: History, bootstrap: str) -> list:
    given = history, bootstrap
    return [
        OwnSender("own", *given, "orders", 2, 100),
        LibrdkafkaSender("librdkafka", *given, "orders", 2, 100),
        OwnTransactor("own-transactor", *given, "accounts", 2, 20),
        LibrdkafkaTransactor("librdkafka-transactor", *given, "accounts", 2, 20),
        Reader("reader", *given, TOPICS, False), Reader("committed", *given, TOPICS, True),
        OwnMember("group", 0, *given, ["orders", "accounts"]),
        Copier("copier", *given, "orders", "copies")]


def _went_on(clients: list) -> None:
    """Wait until each client has one more acknowledgement."""
    before = {client: client.progress for client in clients}
    end_s = time.monotonic() + WAIT_S
    while stuck := [client.name for client in clients if client.progress <= before[client]]:
        failed = [client.failure for client in clients if client.failure is not None]
        assert not failed, failed
        assert time.monotonic() < end_s, f"{stuck} did not go on"
        time.sleep(0.02)


def _final(bootstrap: str, place: Partition) -> Final:
    return Final(read_whole(bootstrap, place, "read_uncommitted"),
                 set(read_whole(bootstrap, place, "read_committed")))


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=[
    pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_acknowledged_transactions_survive_kill_9(ram, random_source, kills):
    with Brokerd(ram, SETTINGS) as broker:
        for topic, partitions in TOPICS.items():
            create_topic(broker.port, topic, partitions)
        history = History()
        clients = _clients(history, broker.bootstrap)
        for client in clients:
            client.start()
        for _ in range(kills):
            _went_on(clients)
            time.sleep(random_source.uniform(0, 0.5))
            broker.kill()
            broker.start()
        _went_on(clients)
        # Readers stop last, so that all written records are read.
        for client in sorted(clients, key=lambda one: isinstance(one, READERS)):
            client.end(WAIT_S)
        finals = {place: _final(broker.bootstrap, place) for place in (
            Partition(topic, number) for topic, count in TOPICS.items() for number in range(count))}
        assert problems(history, finals, TOPICS) == []
        assert broker.alarms() == []
