"""Broker requests that a controller rejects, and its responses to the others."""

import asyncio
import logging

import pytest

from pylog._native.log.log import StorageError
from pylog.metadata.controller.partitions import topics
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.test_controller_upkeep import World

REGISTRATION = messages.BrokerRegistrationRequest
REQUESTS = {
    "alter_partition": messages.AlterPartitionRequest,
    "assign_directories": messages.AssignReplicasToDirsRequest,
    "allocate_producer_ids": messages.AllocateProducerIdsRequest}
STALE = [{"broker_id": 2, "broker_epoch": 1}, {"broker_id": 2, "broker_epoch": 3},
         {"broker_id": 9, "broker_epoch": 9}]


def registration(id_=4, cluster_id="c", incarnation=1):
    return REGISTRATION(
        broker_id=id_, cluster_id=cluster_id, incarnation_id=bytes([incarnation]) * 16,
        listeners=[REGISTRATION.Listener(name="PLAINTEXT", host="h", port=id_)],
        features=[REGISTRATION.Feature(name=name, min_supported_version=0, max_supported_version=99)
                  for name in topics.FEATURES],
        log_dirs=[bytes([100 + id_]) * 16])


def answered(monkeypatch, *calls, prepare=lambda world: None):
    """Return the responses. calls: functions of the controller to coroutines, executed in order."""
    world, answers = World(monkeypatch), []

    async def go():
        prepare(world)
        answers.extend([await call(world.controller) for call in calls])
    world.run(go)
    return answers


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("fields", STALE)
def test_unregistered_broker_is_rejected_and_logged(
        monkeypatch, caplog, name, fields):
    caplog.set_level(logging.INFO, "pylog.metadata")
    answer, = answered(monkeypatch, lambda made: getattr(made, name)(REQUESTS[name](**fields)))
    known = fields["broker_id"] == 2
    assert answer.error_code in ((E.STALE_BROKER_EPOCH,) if known else (
        E.STALE_BROKER_EPOCH, E.BROKER_ID_NOT_REGISTERED))
    assert [row.broker for row in caplog.records if row.getMessage() == "refused"] == [
        fields["broker_id"]]


@pytest.mark.parametrize("name", REQUESTS)
def test_unchanged_registration_is_answered(monkeypatch, name):
    answer, = answered(monkeypatch, lambda made: getattr(made, name)(
        REQUESTS[name](broker_id=2, broker_epoch=2)))
    assert not answer.error_code


def test_producer_id_blocks_do_not_overlap(monkeypatch):
    def allocate(made):
        return made.allocate_producer_ids(
            messages.AllocateProducerIdsRequest(broker_id=2, broker_epoch=2))
    first, second = answered(monkeypatch, allocate, allocate)
    assert (first.producer_id_start, first.producer_id_len) == (0, 1000)
    assert (second.producer_id_start, second.producer_id_len) == (1000, 1000)


def test_producer_ids_are_allocated_until_exhausted(monkeypatch):
    def allocate(made):
        return made.allocate_producer_ids(
            messages.AllocateProducerIdsRequest(broker_id=2, broker_epoch=2))

    def nearly_spent(made):
        async def spend():
            async with made._deciding:
                await made._commit([messages.ProducerIdsRecord(
                    broker_id=2, broker_epoch=2, next_producer_id=2**63 - 1 - 1000)])
        return spend()
    _, last, none = answered(monkeypatch, nearly_spent, allocate, allocate)
    assert (last.error_code, last.producer_id_start) == (0, 2**63 - 1 - 1000)
    assert none.error_code == E.UNKNOWN_SERVER_ERROR


def test_registration_returns_the_epoch_of_its_record(monkeypatch):
    def beat(made, offset):
        epoch = made._image.brokers[4].epoch
        return made.heartbeat(messages.BrokerHeartbeatRequest(
            broker_id=4, broker_epoch=epoch, current_metadata_offset=offset(epoch)), 7)
    first, amended, too_soon, seen = answered(
        monkeypatch, lambda made: made.register_broker(registration()),
        lambda made: made.register_broker(registration()),
        lambda made: beat(made, lambda epoch: epoch), lambda made: beat(
            made, lambda epoch: made._image.offset))
    assert (first.error_code, amended.error_code) == (0, 0)
    assert first.broker_epoch == amended.broker_epoch > 0
    # The newest record of the registration is the changed one.
    assert (too_soon.is_fenced, too_soon.is_caught_up) == (True, False)
    assert (seen.is_fenced, seen.is_caught_up) == (False, True)


def test_registration_in_another_cluster_is_rejected(monkeypatch):
    answer, = answered(monkeypatch, lambda made: made.register_broker(
        registration(cluster_id="other")))
    assert (answer.error_code, answer.broker_epoch) == (E.INCONSISTENT_CLUSTER_ID, -1)


def test_single_broker_rejects_other_registrations(monkeypatch):
    def alone(world):
        world.controller._heartbeats.local_id = 2
    other, = answered(monkeypatch, lambda made: made.register_broker(registration()),
                      prepare=alone)
    assert other.error_code == E.INVALID_REGISTRATION
    itself, gone = answered(
        monkeypatch,
        lambda made: made.unregister(messages.UnregisterBrokerRequest(broker_id=2)),
        lambda made: made.unregister(messages.UnregisterBrokerRequest(broker_id=3)), prepare=alone)
    assert itself.error_code == E.INVALID_REQUEST and "its own controller" in itself.error_message
    assert (gone.error_code, gone.error_message) == (0, "")


def test_unregistering_removes_a_broker_and_rejects_unknown_ones(monkeypatch):
    def unregister(made):
        return made.unregister(messages.UnregisterBrokerRequest(broker_id=3))
    first, second = answered(monkeypatch, unregister, unregister)
    assert first.error_code == 0
    assert second.error_code == E.BROKER_ID_NOT_REGISTERED
    assert "3 is not currently registered" in second.error_message


def test_failed_append_is_answered_with_an_error(monkeypatch):
    def without_disk(world):
        world.failure = StorageError(5, E.KAFKA_STORAGE_ERROR, "planted")
    answers = answered(
        monkeypatch, lambda made: made.register_broker(registration()),
        lambda made: made.unregister(messages.UnregisterBrokerRequest(broker_id=3)),
        lambda made: made.allocate_producer_ids(
            messages.AllocateProducerIdsRequest(broker_id=2, broker_epoch=2)),
        prepare=without_disk)
    assert all(answer.error_code for answer in answers)


def test_stopped_broker_frees_its_id_for_its_next_process_at_once(monkeypatch):
    world = World(monkeypatch)

    async def go():
        assert not (await world.beat(2)).error_code
        answer = await world.controller.register_broker(registration(2, incarnation=9))
        assert answer.error_code == E.DUPLICATE_BROKER_REGISTRATION
        assert (await world.beat(2, want_shut_down=True)).should_shut_down
        answer = await world.controller.register_broker(registration(2, incarnation=9))
        assert answer.error_code == 0

    world.run(go)


def test_leader_stops_after_others_are_notified(monkeypatch):
    world = World(monkeypatch)

    async def go():
        topic_id = b"t" * 16
        async with world.controller._deciding:
            await world.controller._commit([
                messages.TopicRecord(name="t", topic_id=topic_id), messages.PartitionRecord(
                    partition_id=0, topic_id=topic_id, replicas=[2, 3], isr=[2, 3], leader=2)])
        for _ in range(2):  # Broker 3 has replicated nothing so far.
            answer = await world.beat(2, want_shut_down=True)
            assert (answer.error_code, answer.should_shut_down) == (0, False)
        assert world.tail.newest.partition("t", 0).leader == 3
        tries = world.tries
        await world.beat(2)  # Whatever the request is.
        assert world.tries == tries
        await world.beat(3, 8)
        assert (await world.beat(2)).should_shut_down and world.fenced == [2]

    world.run(go)


def test_heartbeat_of_a_closed_connection_does_not_extend_the_session(monkeypatch):
    world = World(monkeypatch)

    async def go():
        await world.beat(2)
        await world.at(1)
        world.judged.clear()
        world.controller.connection_closed(7)
        assert (await world.beat(2)).error_code == E.NETWORK_EXCEPTION
        await world.at(2)
        assert world.judged == [2, 2] and world.fenced == []
        assert (await world.beat(2, connection=8)).error_code == 0
        await asyncio.sleep(0)

    world.run(go)


def test_broker_unfenced_by_a_closing_connection_is_not_fenced_for_silence(
        monkeypatch):
    world = World(monkeypatch)

    async def go():
        controller = world.controller
        await world.beat(2)
        controller._known().end(2)
        await controller._fence(2, "planted")
        decide = controller._decided_in_turn

        async def decided_and_cut(decision):
            found = await decide(decision)
            controller.connection_closed(9)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(controller, "_decided_in_turn", decided_and_cut)
            assert (await world.beat(2, connection=9)).error_code == E.NETWORK_EXCEPTION
        assert not world.tail.newest.brokers[2].fenced
        await controller._fence_silent()
        assert not world.tail.newest.brokers[2].fenced

    world.run(go)
