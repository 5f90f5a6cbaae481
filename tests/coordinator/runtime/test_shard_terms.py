"""A shard's terms: leadership, rejected requests at the end of a term, and the delay of a reload.
"""

from types import SimpleNamespace

import pytest

from pylog.coordinator.runtime.shard import Shard
from pylog.protocol.errors import ErrorCode


class Journal:
    """A log that is always open."""

    def __init__(self):
        self.log = SimpleNamespace(failed=False)
        self.failed = self.is_settling = self.appended = False
        self.done = []

    def close(self):
        self.done.append("close")

    def reopen(self, epoch):
        self.done.append(epoch)


class Token(SimpleNamespace):
    def refuse(self, error):
        self.got = error


def state_machine(*open_tokens, responses=()):
    return SimpleNamespace(open_tokens=lambda: open_tokens,
                           responses=[(token, "answer") for token in responses])


@pytest.fixture
def shard():
    return Shard(3, state_machine, Journal(), None)


def serving(shard, epoch=1, made=None):
    shard.lead(epoch)
    made = made or state_machine()
    shard.loaded(made, epoch)
    return made


def test_a_shard_serves_between_the_load_and_the_end_of_its_term(shard):
    assert not shard.serves(1) and not shard.runs
    assert shard.error == ErrorCode.NOT_COORDINATOR
    shard.lead(1)
    assert shard.serves(1) and not shard.serves(0) and not shard.serves(2)
    assert shard.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and not shard.runs
    made = state_machine()
    shard.loaded(made, 1)
    assert shard.state_machine is made and shard.runs and shard.error == ErrorCode.NONE
    assert shard.journal.done == [1]
    shard.resign(2)
    assert (shard.epoch, shard.leads, shard.ready, shard.runs) == (2, False, False, False)
    assert shard.state_machine is not made and shard.journal.done == [1, "close"]
    assert shard.error == ErrorCode.NOT_COORDINATOR


def test_partition_on_a_lost_disk_answers_not_coordinator(shard):
    serving(shard)
    shard.journal.log.failed = True
    assert shard.error == ErrorCode.NOT_COORDINATOR and not shard.runs


def test_unreadable_log_serves_no_requests_until_it_is_readable(shard):
    shard.lead(1)
    shard.unreadable()
    assert shard.error == ErrorCode.NOT_COORDINATOR and not shard.runs
    shard.loaded(state_machine(), 1)
    assert shard.error == ErrorCode.NONE
    shard.unload()
    shard.unreadable()
    shard.lead(2)
    assert shard.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_end_of_a_term_rejects_waiting_and_unanswered_requests(shard):
    waiting, unsent = Token(got=None), Token(got=None)
    serving(shard, made=state_machine(waiting, responses=[unsent]))
    shard.halfway = 2
    shard.lead(2)
    assert waiting.got == unsent.got == ErrorCode.NOT_COORDINATOR
    assert (shard.epoch, shard.leads, shard.ready, shard.halfway) == (2, True, False, 0)


def test_terms_go_forward(shard):
    serving(shard, 4)
    for epoch in (3, 4):
        with pytest.raises(AssertionError):
            shard.lead(epoch)
    with pytest.raises(AssertionError):
        shard.resign(3)
    shard.resign(4)
    assert shard.epoch == 4 and not shard.leads


@pytest.mark.parametrize("epoch", [0, 2])
def test_state_machine_of_another_term_is_not_used(shard, epoch):
    shard.lead(1)
    with pytest.raises(AssertionError):
        shard.loaded(state_machine(), epoch)


def test_reloads_are_further_and_further_apart_while_nothing_can_be_appended(shard):
    shard.lead(1)
    assert [shard.next_pause_s() for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    shard.journal.appended = True
    assert shard.next_pause_s() == 0.1 and shard.journal.appended is False
    assert shard.next_pause_s() == 0.2
    shard.lead(2)
    assert shard.next_pause_s() == 0.1
