"""The states of share partitions, and their records."""


from pylog.coordinator.share.partition_state import NO_OFFSET, Batch, ShareKey, is_key
from pylog.coordinator.share.shard import ShareStates
from pylog.protocol.errors import ErrorCode
from tests.coordinator.world import Clock, loaded

KEY = ShareKey("g", bytes(range(16)), 3)


def state_machine(updates_max=500, cold_ms=1000, clock=None, partitions=4):
    made = ShareStates(clock or Clock(), lambda topic, index: 0 if index < partitions else None,
                       updates_max, cold_ms)
    made.loaded()
    return made


def started(**fields):
    made = state_machine(**fields)
    assert made.initialize(KEY, 1, 10) == (ErrorCode.NONE, None)
    return made


def reloaded(old):
    made = state_machine()
    made.states.clear()
    loaded(made, old.records)
    return made


def write(made, *batches, state=1, leader=0, start=NO_OFFSET, key=KEY):
    return made.write(key, state, leader, start, 0, [Batch(*row) for row in batches])[0]


def test_a_key_is_found_by_the_text_that_clients_compute():
    assert KEY.text == "g:AAECAwQFBgcICQoLDA0ODw:3" and is_key(KEY.text)
    for text in ("", "g", "g:3", ":AAECAwQFBgcICQoLDA0ODw:3", "g:AAEC:3",
                 "g:AAECAwQFBgcICQoLDA0ODw:x"):
        assert not is_key(text)


def test_written_state_is_read_after_a_load():
    made = started()
    assert write(made, (10, 19, 2, 1), (25, 29, 0, 2), start=10) == ErrorCode.NONE
    assert write(made, (20, 24, 4, 1), start=15) == ErrorCode.NONE
    (error, _), state = reloaded(made).read(KEY, -1)
    assert error == ErrorCode.NONE and (state.state_epoch, state.start_offset) == (1, 15)
    assert state.batches == [(15, 19, 2, 1), (20, 24, 4, 1), (25, 29, 0, 2)]


def test_an_older_leader_or_state_epoch_is_fenced():
    made = started()
    assert made.read(KEY, 5)[0][0] == ErrorCode.NONE
    assert write(made, leader=4) == ErrorCode.FENCED_LEADER_EPOCH
    assert made.read(KEY, 4)[0][0] == ErrorCode.FENCED_LEADER_EPOCH
    assert write(made, leader=5, state=0) == ErrorCode.FENCED_STATE_EPOCH
    assert made.initialize(KEY, 0, 0)[0] == ErrorCode.FENCED_STATE_EPOCH
    assert write(reloaded(made), leader=4) == ErrorCode.FENCED_LEADER_EPOCH


def test_missing_state_is_rejected():
    made = state_machine()
    assert write(made) == ErrorCode.INVALID_REQUEST
    assert made.read(KEY, 1)[0][0] == ErrorCode.INVALID_REQUEST
    assert made.initialize(KEY._replace(partition=4), 0, 0)[0] \
        == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert made.initialize(KEY._replace(partition=-1), 0, 0)[0] == ErrorCode.INVALID_REQUEST
    assert made.summary(KEY) == ((ErrorCode.NONE, None), None)
    assert made.delete(KEY)[0] == ErrorCode.NONE and not made.records
    assert write(started(), (9, 8, 2, 1)) == ErrorCode.INVALID_REQUEST


def test_snapshot_follows_the_configured_number_of_updates():
    made = started(updates_max=3)
    for offset in range(10, 18):
        write(made, (offset, offset, 2, 1))
    kinds = [key[1] for key, _ in made.records]
    assert kinds == [0, 1, 1, 1, 0, 1, 1, 1, 0]
    assert reloaded(made).states[KEY].batches == [(10, 17, 2, 1)]


def test_deleted_state_stays_deleted_after_a_load():
    made = started()
    made.delete(KEY)
    assert reloaded(made).states == {}


def test_earlier_records_are_not_needed_when_each_share_partition_has_a_later_snapshot():
    clock = Clock()
    made = started(clock=clock, updates_max=2)
    other = KEY._replace(partition=1)
    made.initialize(other, 0, 0)
    made.mark()
    before = len(made.records)
    clock.ms += 2000
    write(made, (10, 10, 2, 1), start=11)
    assert made.unsaved == {KEY, other}
    list(made.save_cold())
    assert not made.unsaved
    made.records = made.records[before:]
    found = reloaded(made)
    assert found.states[KEY].start_offset == 11 and found.states.keys() == {KEY, other}


def test_share_partitions_of_a_deleted_topic_are_removed():
    made = started()
    made._leader_epoch_of = lambda topic, index: None
    made.forget_gone()
    assert not made.states and made.records[-1][1] is None
