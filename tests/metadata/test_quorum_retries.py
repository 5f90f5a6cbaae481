"""Retries of quorum calls, reads after uncertain results, and metrics: the clock and the keys are
simulated.
"""

import json
import random
from types import SimpleNamespace

import pytest

from pylog.metadata.log.metadata_log import Conflict
from pylog.metadata.quorum import quorum_state
from pylog.metadata.quorum.key_value import Get, Is, KeysError, Put, Unknown, Unreachable
from pylog.metadata.quorum.quorum_state import (
    Batch,
    Holder,
    Quorum,
    QuorumLost,
    TooLong,
    Trimmed,
    View,
)
from tests.metadata.memory_keys import MemoryKeys, memory_store

TIMEOUT_S, TTL_S = 5.0, 30


class Doubtful(MemoryKeys):
    """`failures`: raised by the next calls, in order; None: this call succeeds. `calls`: their
    names. `applies`: True if a failing change is applied.
    """

    def __init__(self, store):
        super().__init__(store)
        self.failures, self.calls, self.applies = [], [], False

    def _called(self, name, call):
        self.calls.append(name)
        failure = self.failures.pop(0) if self.failures else None
        if failure is None or self.applies:
            result = call()
        if failure is not None:
            raise failure
        return result

    def read_keys(self, looks):
        return self._called("look", lambda: super(Doubtful, self).read_keys(looks))

    def transact(self, *arguments):
        return self._called("transact", lambda: super(Doubtful, self).transact(*arguments))

    def drop(self, *arguments):
        return self._called("drop", lambda: super(Doubtful, self).drop(*arguments))

    def grant(self, ttl_s):
        return self._called("grant", lambda: super(Doubtful, self).grant(ttl_s))


class Time:
    """Advances while a quorum waits to retry."""

    def __init__(self):
        self.now, self.pauses = 100.0, []

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def quorum(clock):
    made = Quorum(Doubtful(memory_store(clock)), "/p/", TIMEOUT_S, clock)
    made._pause = SimpleNamespace(wait=clock.wait)
    return made


def in_office(quorum, node_id=1):
    return quorum.campaign(node_id, "host", 9093, TTL_S, quorum.read_view())


@pytest.mark.parametrize("failure", [Unreachable("away"), Unknown("cut")])
def test_call_is_retried_until_its_timeout(
        quorum, clock, failure):
    quorum.keys.failures = [failure] * 1000
    with pytest.raises(QuorumLost, match=f"memory: {failure}"):
        quorum.read_view()
    assert 100 + TIMEOUT_S <= clock.now < 100 + TIMEOUT_S + 0.05
    assert set(clock.pauses) == {0.02} and len(clock.pauses) == len(quorum.keys.calls) - 1
    assert (quorum.is_responding, quorum.is_full, quorum.failures) == (False, False, 1)
    quorum.keys.failures = []
    assert quorum.read_view() == View(0, 0, None) and quorum.is_responding and quorum.failures == 1


def test_request_rejected_by_a_member_is_not_retried(quorum, clock):
    quorum.keys.failures = [KeysError("no")]
    with pytest.raises(QuorumLost, match="no"):
        quorum.read_view()
    assert clock.pauses == [] and not quorum.is_full


def test_untested_quorum_counts_as_available_with_space(quorum):
    assert (quorum.is_responding, quorum.is_full, quorum.failures) == (True, False, 0)


def test_closing_a_quorum_closes_its_connections(quorum, monkeypatch):
    closed = []
    monkeypatch.setattr(quorum.keys, "close", lambda: closed.append(1))
    quorum.close()
    assert closed == [1]


def test_an_empty_quorum_has_no_epoch_no_end_and_no_holder(quorum):
    assert quorum.read_view() == View(0, 0, None) and quorum.read(0) == []
    assert quorum.known_cluster_id() is None and quorum.load_snapshot(-1) is None


def test_term_contains_its_epoch_and_the_logs_end(quorum):
    first = in_office(quorum, 4)
    assert (first.epoch, first.end, first.holder) == (1, 0, Holder(4, 1, "host", 9093))
    quorum.append(first, 0, 3, b"abc")
    second = in_office(quorum, 5)
    assert (second.epoch, second.end) == (2, 3)
    assert quorum.read_view() == View(2, 3, Holder(5, 2, "host", 9093))
    assert first.text != second.text and second.text.split()[:2] == [b"2", b"5"]


@pytest.mark.parametrize("applies", [False, True])
@pytest.mark.parametrize("at", range(4))
def test_campaign_with_lost_responses_wins_one_epoch(quorum, applies, at):
    """at: number of calls that succeed first."""
    quorum.keys.failures, quorum.keys.applies = [None] * at + [Unknown("cut")] * 3, applies
    term = quorum.campaign(1, "host", 9093, TTL_S, View(0, 0, None))
    assert term.epoch == 1 and quorum.read_view() == View(1, 0, term.holder)
    quorum.append(term, 0, 1, b"a")


@pytest.mark.parametrize("epoch", [0, 2])
def test_candidate_with_an_outdated_view_does_not_win(quorum, epoch):
    in_office(quorum)
    with pytest.raises(Conflict, match="epoch 1 has begun"):
        quorum.campaign(2, "host", 9093, TTL_S, View(epoch, 0, None))


def test_second_of_two_simultaneous_candidates_is_notified(quorum, monkeypatch):
    get = quorum.keys.get

    def overtaken(key):
        row = get(key)
        monkeypatch.undo()
        in_office(quorum, 2)
        return row
    view = quorum.read_view()
    monkeypatch.setattr(quorum.keys, "get", overtaken)
    with pytest.raises(Conflict, match="another node"):
        quorum.campaign(1, "host", 9093, TTL_S, view)
    assert quorum.read_view().holder.node_id == 2


def test_lease_renewal_keeps_a_live_lease_and_replaces_an_expired_one(quorum, clock):
    term = in_office(quorum)
    clock.now += TTL_S - 1
    assert quorum.renew(term, TTL_S) is term
    clock.now += TTL_S - 1
    assert quorum.read_view().holder == term.holder
    clock.now += 1
    assert quorum.read_view().holder is None
    renewed = quorum.renew(term, TTL_S)
    assert renewed.lease != term.lease and renewed._replace(lease=term.lease) == term
    assert quorum.read_view().holder == term.holder


def test_controller_lease_of_another_holder_is_not_renewed(quorum, clock):
    term = in_office(quorum)
    in_office(quorum, 2)
    with pytest.raises(Conflict):
        quorum.renew(term, TTL_S)
    quorum.resign(term)
    assert quorum.read_view().holder.node_id == 2


def test_controller_lease_lost_during_renewal_is_not_held(quorum, clock, monkeypatch):
    term = in_office(quorum)
    clock.now += TTL_S + 1
    grant = quorum.keys.grant

    def overtaken(ttl_s):
        monkeypatch.undo()
        in_office(quorum, 2)
        return grant(ttl_s)
    monkeypatch.setattr(quorum.keys, "grant", overtaken)
    with pytest.raises(Conflict):
        quorum.renew(term, TTL_S)
    assert quorum.read_view().holder.node_id == 2


@pytest.mark.parametrize("failure", [Unreachable("away"), Unknown("cut"), KeysError("no")])
def test_resignation_ignores_failures(quorum, failure):
    term = in_office(quorum)
    quorum.keys.failures = [failure]
    quorum.resign(term)
    assert quorum.read_view().holder == term.holder
    quorum.resign(term)
    assert quorum.read_view().holder is None


def test_appends_are_counted_and_timed(quorum, clock):
    term = in_office(quorum)
    quorum.is_full = True
    quorum.keys.failures = [Unknown("cut")] * 3
    quorum.append(term, 0, 1, b"a")
    quorum.append(term, 1, 1, b"b")
    assert (quorum.appends, quorum.is_full) == (2, False)
    assert quorum.append_seconds == pytest.approx(0.06)


@pytest.mark.parametrize(("base", "text"), [
    (1, "the log ends at 0, not at 1"), (0, "the log ends at 3, not at 0"),
    (4, "the log ends at 3, not at 4")])
def test_append_at_a_wrong_offset_returns_the_logs_end(quorum, base, text):
    term = in_office(quorum)
    if "at 3" in text:
        quorum.append(term, 0, 3, b"a")
    with pytest.raises(Conflict, match=text):
        quorum.append(term, base, 1, b"b")
    in_office(quorum, 2)
    with pytest.raises(Conflict, match="epoch 1 is over"):
        quorum.append(term, base, 1, b"b")


def test_a_value_is_as_long_as_the_keys_allow_and_no_longer(quorum, monkeypatch):
    term, data = in_office(quorum), random.Random(1).randbytes(4000)
    monkeypatch.setattr(quorum.keys, "value_bytes_max", 4000)
    with pytest.raises(TooLong, match="^(?!.*7 records).*8 records"):
        quorum.append(term, 0, 8, data)
    monkeypatch.setattr(quorum.keys, "value_bytes_max", 4001)
    quorum.append(term, 0, 8, data)
    assert quorum.read(0) == [Batch(0, data)]


@pytest.mark.parametrize(("size", "is_deflated"), [(4096, False), (4097, True)])
def test_long_batch_is_stored_compressed(quorum, size, is_deflated):
    term = in_office(quorum)
    quorum.append(term, 0, 1, bytes(size))
    kept = quorum.keys.get(quorum._slot(0)).value
    assert (len(kept) < size) == is_deflated and quorum.read(0) == [Batch(0, bytes(size))]


def test_so_many_batches_are_read_at_once(quorum, monkeypatch):
    monkeypatch.setattr(quorum_state, "SLOTS_PER_READ", 3)
    term = in_office(quorum)
    for base in range(0, 10, 2):
        quorum.append(term, base, 2, b"%d" % base)
    assert [base for base, _ in quorum.read(0)] == [0, 2, 4]
    assert [base for base, _ in quorum.read(6)] == [6, 8] and quorum.read(10) == []
    with pytest.raises(Trimmed, match="from 3 on"):
        quorum.read(3)


@pytest.mark.parametrize(("size", "count"), [(0, 0), (1, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_snapshot_is_split_into_value_sized_chunks(quorum, monkeypatch, size, count):
    monkeypatch.setattr(quorum_state, "CHUNK_BYTES", 10)
    term, data = in_office(quorum), bytes(range(size))
    quorum.save_snapshot(term, 7, 3, data)
    assert json.loads(quorum.keys.get("/p/at/snapshot").value) == [7, 3, count]
    assert quorum.load_snapshot(6) == (7, 3, data)
    assert quorum.load_snapshot(7) is None


def test_snapshot_replaced_during_loading_is_loaded_again(quorum):
    term = in_office(quorum)
    quorum.save_snapshot(term, 7, 1, b"old")
    quorum.save_snapshot(term, 9, 1, b"new")
    old, new = json.dumps([7, 1, 1]).encode(), quorum.keys.get("/p/at/snapshot").value
    quorum.keys.transact([], [Put("/p/at/snapshot", old)])
    quorum.keys.store.keys.pop(quorum._chunk(7, 0))
    quorum._pause = SimpleNamespace(wait=lambda seconds: quorum.keys.transact(
        [], [Put("/p/at/snapshot", new)]))
    assert quorum.load_snapshot(0) == (9, 1, b"new")


def test_former_controller_cannot_write_or_delete(quorum):
    old = in_office(quorum)
    quorum.append(old, 0, 1, b"a")
    quorum.save_snapshot(old, 1, 1, b"all")
    in_office(quorum, 2)
    before = dict(quorum.keys.store.keys)
    for call in (lambda: quorum.save_snapshot(old, 1, 1, b"late"), lambda: quorum.trim(old, 1)):
        with pytest.raises(Conflict, match="newer epoch"):
            call()
    assert quorum.keys.store.keys == before


def test_log_is_trimmed_only_up_to_its_snapshot(quorum):
    term = in_office(quorum)
    for base in range(4):
        quorum.append(term, base, 1, b"x")
    quorum.trim(term, 3)
    assert quorum.read(0)[0].base == 0
    quorum.save_snapshot(term, 2, 1, b"old")
    quorum.save_snapshot(term, 3, 1, b"new")
    quorum.trim(term, 3)
    assert [base for base, _ in quorum.read(3)] == [3]
    assert [key for key in quorum.keys.store.keys if "snapshots/" in key] == [quorum._chunk(3, 0)]


def test_quorum_is_created_once_despite_lost_responses(quorum, monkeypatch):
    monkeypatch.setattr(quorum_state, "CHUNK_BYTES", 4)
    # Two parts of the snapshot, the cluster's id, and then the marker of the new cluster.
    quorum.keys.failures, quorum.keys.applies = [None, None, None, Unknown("cut")], True
    assert quorum.found("c", 7, 3, b"snapshot")
    assert quorum.read_view() == View(3, 7, None) and quorum.load_snapshot(0) == (7, 3, b"snapshot")
    with pytest.raises(Conflict):
        quorum.found("c", 8, 4, b"another")
    assert quorum.read_view() == View(3, 7, None)
    with pytest.raises(Trimmed):
        quorum.read(0)
    assert quorum.read(7) == []


def test_members_are_queried_again_after_an_interval(quorum, clock, monkeypatch):
    asked = []

    def state_of(address):
        asked.append(address)
        return MemoryKeys.state_of(quorum.keys, address)
    monkeypatch.setattr(quorum.keys, "state_of", state_of)
    first = quorum.members()
    clock.now += quorum_state.MEMBERS_S - 0.01
    assert quorum.members() is first and len(asked) == 3
    clock.now += 0.01
    assert quorum.members() is not first and len(asked) == 6


def test_members_status_contains_the_duration(quorum, clock, monkeypatch):
    def state_of(address):
        clock.now += 0.25
        return MemoryKeys.state_of(quorum.keys, address)
    quorum.keys.addresses = ["m1"]
    monkeypatch.setattr(quorum.keys, "state_of", state_of)
    assert [state.seconds for state in quorum.members()] == [0.25]


def test_a_condition_is_of_the_term_as_it_is(quorum):
    term = in_office(quorum)
    assert quorum._in_term(term) == Is("/p/at/epoch", term.text)
    assert quorum.keys.read_keys([Get("/p/at/epoch")])[0][0].value == term.text
