"""Verification of transactional writes: requests to coordinators, and the client's response."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.coordinator.transactions import verification
from pylog.coordinator.transactions.shard import Transactions
from pylog.coordinator.transactions.verification import (
    ABORTABLE,
    ADDING,
    OFFSETS_KINDS,
    PLAIN,
    PRODUCE_KINDS,
    Verification,
    kind_of,
)
from pylog.protocol.errors import ErrorCode

US, OTHER, NOBODY = 1, 2, -1
AT, MORE = ("t", 0), ("t", 1)
NONE, FENCED, EPOCH = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
BUSY, LATER = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS
UNPREPARED, STATE = ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE


class Cluster:
    """The coordinators: received requests, and their errors."""

    def __init__(self, leader=US, error=NONE, looked_up=None, verifies=True):
        self.leader, self.error, self.looked_up, self.asked = leader, error, looked_up, []
        self.verification = Verification(
            self, self, self, SimpleNamespace(holder=None),
            {"transaction.partition.verification.enable": verifies}, US)

    def leader_of(self, id_):
        return self.leader

    async def add(self, *arguments):
        self.asked.append(("add", *arguments))
        return self.error

    def query(self, id_, step, *arguments):
        assert step is Transactions.verify
        self.asked.append(("look", *arguments))
        return self.looked_up, self.error

    async def query_coordinator(self, leader, id_, producer_id, epoch, partitions, only_verify):
        self.asked.append(("ask", leader, id_, producer_id, epoch, partitions, only_verify))
        return dict.fromkeys(partitions, self.error)

    def of_produce(self, version, partitions=(AT,)):
        return asyncio.run(self.verification.of_produce("id", 7, 3, list(partitions), version))

    def verified(self, kind):
        return asyncio.run(self.verification.verified("id", 7, 3, [AT, MORE], kind))


@pytest.mark.parametrize("kinds, version, kind", [
    (PRODUCE_KINDS, 10, PLAIN), (PRODUCE_KINDS, 11, ABORTABLE), (PRODUCE_KINDS, 12, ADDING),
    (PRODUCE_KINDS, 13, ADDING), (OFFSETS_KINDS, 3, PLAIN), (OFFSETS_KINDS, 4, ABORTABLE),
    (OFFSETS_KINDS, 5, ADDING)])
def test_request_version_determines_the_clients_errors(kinds, version, kind):
    assert kind_of(version, kinds) == kind


@pytest.mark.parametrize("kind, asked", [
    (PLAIN, [("look", "id", 7, 3, [AT, MORE])]), (ABORTABLE, [("look", "id", 7, 3, [AT, MORE])]),
    (ADDING, [("add", "id", 7, 3, [AT, MORE], 2)])])
def test_local_coordinator_is_called_directly(kind, asked):
    cluster = Cluster(looked_up={AT: NONE, MORE: NONE})
    assert cluster.verified(kind) == {AT: NONE, MORE: NONE} and cluster.asked == asked


@pytest.mark.parametrize("kind, only_verify", [(PLAIN, True), (ABORTABLE, True), (ADDING, False)])
def test_remote_coordinator_is_called_over_the_network(kind, only_verify):
    cluster = Cluster(OTHER, FENCED)
    assert cluster.verified(kind) == {AT: EPOCH, MORE: EPOCH}
    assert cluster.asked == [("ask", OTHER, "id", 7, 3, [AT, MORE], only_verify)]


@pytest.mark.parametrize("kind", [PLAIN, ABORTABLE, ADDING])
def test_partition_without_a_leader_has_no_coordinator(kind):
    cluster = Cluster(NOBODY)
    assert cluster.verified(kind) == dict.fromkeys((AT, MORE), ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert cluster.asked == []


@pytest.mark.parametrize("kind, asks", [(PLAIN, False), (ABORTABLE, False), (ADDING, True)])
def test_a_broker_that_does_not_verify_still_adds(kind, asks):
    cluster = Cluster(verifies=False, error=NONE, leader=OTHER)
    assert cluster.verified(kind) == {AT: NONE, MORE: NONE}
    assert bool(cluster.asked) == asks


def test_errors_are_per_partition_but_a_moving_coordinator_fails_all():
    cluster = Cluster(looked_up={AT: NONE, MORE: UNPREPARED})
    assert cluster.verified(ABORTABLE) == {AT: NONE, MORE: UNPREPARED}
    cluster = Cluster(error=ErrorCode.NOT_COORDINATOR)
    assert cluster.verified(ABORTABLE) == dict.fromkeys((AT, MORE), ErrorCode.NOT_COORDINATOR)


@pytest.mark.parametrize("error, version, told", [
    (NONE, 10, NONE), (FENCED, 10, EPOCH), (FENCED, 12, EPOCH),
    (UNPREPARED, 10, STATE), (UNPREPARED, 11, UNPREPARED), (UNPREPARED, 12, UNPREPARED),
    (BUSY, 10, LATER), (BUSY, 11, LATER), (BUSY, 12, BUSY),
    (ErrorCode.NETWORK_EXCEPTION, 12, LATER),
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 10, LATER),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, 11, LATER), (ErrorCode.NOT_COORDINATOR, 12, LATER),
    (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 12, ErrorCode.INVALID_PRODUCER_ID_MAPPING)])
def test_producer_gets_errors_of_its_version(error, version, told):
    assert Cluster(OTHER, error).of_produce(version) == {AT: told}


@pytest.fixture
def noted(monkeypatch):
    """Return [(log, producer id, epoch, holder)] that need no verification."""
    found = []
    monkeypatch.setattr(verification, "verify_producer", lambda *said: found.append(said))
    return found


def added(cluster, **logs):
    """Add both partitions, for holder 9. logs: of partitions, by topic and number."""
    cluster.get = lambda topic, index: logs.get(f"{topic}{index}")
    cluster.verification.added("id", 7, 3, [AT, MORE], 9)
    return cluster.asked


def test_locally_led_partitions_are_verified_when_they_are_added(noted):
    assert added(Cluster(looked_up={AT: NONE, MORE: NONE}), t1="log") == [
        ("look", "id", 7, 3, [AT, MORE])]
    assert noted == [("log", 7, 3, 9)]


@pytest.mark.parametrize("found, error", [
    ({AT: NONE, MORE: UNPREPARED}, NONE), (None, BUSY), (None, ErrorCode.NOT_COORDINATOR)])
def test_partitions_of_an_ended_transaction_are_verified_again(noted, found, error):
    added(Cluster(looked_up=found, error=error), t1="log")
    assert noted == []


def asked(**fields):
    return SimpleNamespace(**{"transactional_id": b"id", "producer_id": 7, "epoch": 3,
                              "partitions": [(b"t", 1), (b"t", 0)], "api_version": 11, **fields})


def test_verdicts_come_in_the_order_of_the_partitions():
    cluster = Cluster(looked_up={AT: NONE, MORE: UNPREPARED})
    assert asyncio.run(cluster.verification.verdicts(asked())) == [UNPREPARED, NONE]


def test_a_fault_while_it_is_verified_is_every_partitions_unknown_error(caplog):
    cluster = Cluster(looked_up={})
    assert asyncio.run(cluster.verification.verdicts(asked())) \
        == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
    assert "not verified" in caplog.text


def test_undecodable_transactional_id_is_verified_too():
    cluster = Cluster(OTHER, FENCED)
    assert asyncio.run(cluster.verification.verdicts(asked(transactional_id=b"\xff"))) \
        == [EPOCH] * 2
    assert cluster.asked[0][2] == "\ufffd"
