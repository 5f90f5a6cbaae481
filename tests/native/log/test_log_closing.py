"""A log is closed while other threads use it."""

import os
import threading

import pytest

from pylog._native.log import compaction, log, producer_state, replica_move
from pylog._native.records import batch

NOW = 1_700_000_000_000
ROUNDS = 30
RECORDS = [(None, bytes(100), NOW, [])]
USES = {
    "append": lambda one: one.append(batch.build(RECORDS), NOW, trusted=True),
    "read": lambda one: one.read(0),
    "flush": lambda one: one.flush(),
    "aborted": lambda one: one.aborted_between(0, 100),
    "time": lambda one: one.offset_for_time(NOW),
    "upkeep": lambda one: one.upkeep(NOW),
    "seal": lambda one: replica_move.seal(one, NOW),
    "producer": lambda one: producer_state.producer_of(one, 5),
    "clean": lambda one: compaction.look(one, now_ms=NOW, first_dirty=0),
}


def opened(directory, name="t"):
    one = log.Log.open(directory, name, 0, bytes(16), now_ms=NOW)
    one.become_leader(0)
    one.append(batch.build(RECORDS), NOW, trusted=True)
    return one


@pytest.mark.parametrize("end", ["close", "release"])
@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_closing_a_log_ends_calls_in_other_threads(tmp_path, use, end):
    directory = log.LogDir(tmp_path, 2)
    failures = []

    def work(one, begun):
        try:
            while True:
                use(one)
                begun.set()
        except log.LogDeleted:
            pass
        except BaseException as error:
            failures.append(error)
        begun.set()

    for number in range(ROUNDS):
        one = opened(directory, f"t{number}")
        begun = [threading.Event() for _ in range(2)]
        threads = [threading.Thread(target=work, args=(one, event)) for event in begun]
        for thread in threads:
            thread.start()
        assert all(event.wait(60) for event in begun)
        getattr(one, end)()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        with pytest.raises(log.LogDeleted):
            use(one)
    assert failures == []


@pytest.mark.parametrize("end", ["close", "release"])
def test_a_closed_log_has_no_open_files(tmp_path, end):
    directory = log.LogDir(tmp_path, 2)
    one = opened(directory)
    assert directory.stats()["open_files"] == 1
    getattr(one, end)()
    assert directory.stats()["open_files"] == 0
    assert not [target for target in map(_target, os.listdir("/proc/self/fd"))
                if target.startswith(str(tmp_path)) and target.endswith(".log")]
    again = opened(directory)
    assert again.end_offset == 2
    again.close()


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def test_a_cleaning_pass_can_be_closed_while_another_thread_is_in_a_step(tmp_path):
    directory = log.LogDir(tmp_path, 2)
    one = log.Log.open(directory, "t", 0, bytes(16), {"cleanup.policy": "compact"}, now_ms=NOW)
    one.become_leader(0)
    for number in range(300):
        one.append(batch.build([(b"%d" % (number % 7), bytes(10_000), NOW, [])]), NOW,
                   trusted=True)
    replica_move.seal(one, NOW)
    keys = compaction.OffsetMap(1 << 16)
    for _ in range(ROUNDS):
        begun = threading.Event()
        one_pass = compaction.CleaningPass(
            one, keys, now_ms=NOW, first_dirty=0, delete_retention_ms=0, segment_bytes=1 << 20)

        def work(one_pass=one_pass, begun=begun):
            while one_pass.step(50_000):
                begun.set()
            begun.set()

        thread = threading.Thread(target=work)
        thread.start()
        assert begun.wait(60)
        one_pass.close()
        thread.join(60)
        assert not thread.is_alive()
        assert one_pass.step(1) is False
        keys.clear()
    one.close()
