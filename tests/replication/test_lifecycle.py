"""A broker's state at its controller: registration, fencing, shutdown."""

from itertools import count

import pytest

from pylog.protocol.errors import ErrorCode
from pylog.replication.lifecycle import Heartbeat, Lifecycle, Register, Stage


def fresh(previous_epoch: int = -1) -> Lifecycle:
    numbers = count()
    return Lifecycle(lambda: next(numbers).to_bytes(16, "big"), previous_epoch)


def running(epoch: int = 10) -> Lifecycle:
    made = fresh()
    made.registered(0, epoch)
    made.on_heartbeat_response(made.next(epoch, True), 0, False, False)
    assert made.stage is Stage.RUNNING
    return made


def test_first_request_is_a_registration_with_the_last_clean_epoch():
    assert fresh(7).next(-1, False) == Register(bytes(16), 7)


@pytest.mark.parametrize(("offset", "ready", "fenced"), [
    (9, True, True), (10, False, True), (10, True, False), (11, True, False)])
def test_broker_requests_fencing_until_registered_and_recovered(offset, ready, fenced):
    made = fresh()
    made.registered(0, 10)
    assert made.next(offset, ready) == Heartbeat(10, offset, fenced, False)


def test_rejected_registration_is_retried_with_the_same_incarnation():
    made = fresh()
    first = made.next(-1, True)
    made.registered(ErrorCode.DUPLICATE_BROKER_REGISTRATION, -1)
    assert made.refusal == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert made.next(-1, True) == first
    made.registered(0, 3)
    assert made.refusal is None


def test_a_broker_runs_once_the_controller_has_unfenced_it_and_not_sooner():
    made = fresh()
    made.registered(0, 10)
    made.on_heartbeat_response(made.next(10, True), 0, True, False)
    assert made.stage is Stage.CATCH_UP
    made.on_heartbeat_response(made.next(10, True), 0, False, False)
    assert made.stage is Stage.RUNNING


def test_fenced_broker_requests_only_unfencing():
    made = running()
    made.on_heartbeat_response(made.next(20, True), 0, True, False)
    assert made.next(20, True) == Heartbeat(10, 20, False, False)


@pytest.mark.parametrize("error", [
    ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_stale_epoch_triggers_registration_as_a_new_incarnation(error):
    made = running()
    made.on_heartbeat_response(made.next(20, True), error, True, False)
    assert made.next(20, True) == Register((1).to_bytes(16, "big"), -1)
    assert not made.is_registered


def test_an_answer_of_an_older_epoch_changes_nothing():
    made = running()
    made.on_heartbeat_response(Heartbeat(4, 20, False, False), ErrorCode.STALE_BROKER_EPOCH, True,
                               True)
    assert made.stage is Stage.RUNNING


@pytest.mark.parametrize("error", [ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_unrelated_error_changes_nothing(error):
    made = running()
    made.on_heartbeat_response(made.next(20, True), error, True, True)
    assert made.stage is Stage.RUNNING


def test_shutdown_is_requested_until_granted():
    made = running()
    made.stop()
    assert made.next(20, True) == Heartbeat(10, 20, False, True)
    made.on_heartbeat_response(made.next(20, True), 0, False, False)
    assert made.next(21, True) == Heartbeat(10, 21, False, True)
    made.on_heartbeat_response(made.next(21, True), 0, True, True)
    assert made.next(21, True) is None


def test_a_heartbeat_from_before_the_stop_does_not_undo_it():
    made = running()
    sent = made.next(20, True)
    made.stop()
    made.on_heartbeat_response(sent, 0, False, False)
    assert made.stage is Stage.STOPPING


def test_a_broker_that_is_not_registered_may_stop_at_once():
    made = fresh()
    made.stop()
    assert made.next(0, True) is None
    made.registered(0, 10)
    assert made.next(0, True) is None


def test_stop_with_a_stale_epoch_completes():
    made = running()
    made.stop()
    made.on_heartbeat_response(made.next(20, True), ErrorCode.STALE_BROKER_EPOCH, True, False)
    assert made.next(20, True) is None


def test_changed_properties_are_registered_without_a_state_change():
    made = running()
    first = made.next(20, True)
    made.amend()
    again = made.next(20, True)
    assert again == Register(bytes(16), -1)
    made.registered(ErrorCode.NOT_CONTROLLER, -1)
    assert made.next(20, True) == again
    made.registered(0, 10)
    assert (made.stage, made.next(20, True)) == (Stage.RUNNING, first)


@pytest.mark.parametrize("is_known", [False, True])
def test_changes_during_a_registration_are_registered_too(is_known):
    """It was sent with the broker's previous state."""
    made = running() if is_known else fresh()
    if is_known:
        made.amend()
    again = made.next(20, True)
    made.amend()
    made.registered(0, 10)
    assert made.next(20, True) == again and made.broker_epoch == 10
    made.registered(0, 10)
    assert isinstance(made.next(20, True), Heartbeat)


def test_unregistered_or_stopping_broker_does_not_reregister():
    made = fresh()
    made.amend()
    made.next(-1, True)
    made.registered(0, 10)
    assert isinstance(made.next(10, True), Heartbeat)
    made.amend()
    made.stop()
    assert made.next(10, True).want_shut_down
    made.registered(0, 30)
    assert made.broker_epoch == 10
