"""Random histories of one log, compared with a plain model (history.py).

The disk loses unsynced data, tears writes, is full, fails or crashes between any two calls. A
failure prints the steps and how to reproduce them (`--hypothesis-seed`, `@reproduce_failure`). The
long run is `make soak-log SECONDS=600`.
"""

import errno
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.durability.conftest import RAM
from tests.durability.history import DIE, FAIL_ONCE, FULL, NOTHING, SHORT, History

CONFIGS = [
    {"internal.segment.bytes": 3_000, "index.interval.bytes": 200},
    {"internal.segment.bytes": 1_200, "index.interval.bytes": 1},
    {"internal.segment.bytes": 20_000, "index.interval.bytes": 1000, "segment.index.bytes": 120},
]
SEEDS = st.integers(0, 1 << 30)


class LogHistory(RuleBasedStateMachine):
    """hypothesis chooses the steps. `library`: the compiled shim."""

    library = None

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(
            prefix="pylog-test-", dir=RAM if RAM.is_dir() else None))
        self.history = None
        self.steps = []

    @initialize(config=st.sampled_from(CONFIGS), compacted=st.booleans(), seed=SEEDS)
    def begin(self, config, compacted, seed):
        self.steps.append(str((config, compacted, seed)))
        self.history = History(self.library, self.folder, config, compacted, seed)

    def _do(self, step, *arguments):
        self.steps.append(f"{step.__name__}{arguments}")
        try:
            if not self.history.step(step, *arguments):
                self.steps.append("it died of that")
        except Exception as error:
            error.add_note("\n".join(self.steps))
            raise

    @rule(batches=st.integers(1, 12), count=st.integers(1, 6),
          size=st.sampled_from([1, 50, 400]), codec=st.integers(0, 4),
          producer=st.integers(-1, 2), skew=st.integers(0, 9))
    def append(self, batches, count, size, codec, producer, skew):
        self._do(self.history.append_some, batches, count, size, codec, producer, skew)

    @rule(batches=st.integers(1, 6), count=st.integers(1, 6), size=st.sampled_from([1, 50, 400]),
          codec=st.integers(0, 4), producer=st.integers(0, 2))
    def append_in_a_transaction(self, batches, count, size, codec, producer):
        self._do(self.history.append_some, batches, count, size, codec, producer, 5, True)

    @rule(number=st.integers(0, 5), commit=st.booleans())
    def end_a_transaction(self, number, commit):
        self._do(self.history.end_transaction, number, commit)

    @rule(producer=st.integers(0, 2))
    def skip_a_sequence(self, producer):
        self._do(self.history.skip_a_sequence, producer)

    @rule(whole=st.booleans())
    def flush(self, whole):
        self._do(self.history.flush, whole)

    @rule()
    def save(self):
        self._do(self.history.save)

    @rule(back=st.integers(0, 60))
    def truncate(self, back):
        self._do(self.history.truncate, back)

    @rule(count=st.integers(0, 40))
    def delete_records(self, count):
        self._do(self.history.delete_records, count)

    @rule(age_ms=st.integers(0, 200))
    def retain_by_time(self, age_ms):
        self._do(self.history.retain, age_ms, -1)

    @rule(size=st.integers(0, 20_000))
    def retain_by_size(self, size):
        self._do(self.history.retain, -1, size)

    @rule(step=st.sampled_from([1, 700, 1 << 20]))
    def clean(self, step):
        self._do(self.history.clean, step)

    @rule()
    def move(self):
        self._do(self.history.move)

    @rule()
    def restart_clean(self):
        self._do(self.history.restart_clean)

    @rule()
    def kill(self):
        self._do(self.history.crash, False, 0)

    @rule(seed=SEEDS)
    def power_cut(self, seed):
        self._do(self.history.crash, True, seed)

    @rule(calls=st.integers(0, 40))
    def die_soon(self, calls):
        self._do(self.history.arm, DIE, calls, 0)

    @rule(calls=st.integers(0, 20))
    def fail_soon(self, calls):
        self._do(self.history.arm, FAIL_ONCE, calls, errno.EIO)

    @rule(calls=st.integers(0, 12), what=st.sampled_from([FULL, SHORT]))
    def fill_up(self, calls, what):
        self._do(self.history.arm, what, 0 if what == SHORT else calls, 0)

    @rule()
    def make_room(self):
        self._do(self.history.arm, NOTHING, 0, 0)

    def teardown(self):
        if self.history is not None and self.history.log is not None:
            self.history.arm(NOTHING, 0, 0)
            self.history.log.release()
        self.history = None
        shutil.rmtree(self.folder, ignore_errors=True)


def _run(library, examples: int) -> None:
    machine = type("LogHistoryOnDisk", (LogHistory,), {"library": library})
    run_state_machine_as_test(machine, settings=settings(
        max_examples=examples, stateful_step_count=40, deadline=None, database=None,
        print_blob=True, report_multiple_bugs=False, suppress_health_check=list(HealthCheck)))


@pytest.mark.timeout(300)
def test_random_history_with_faults_keeps_its_guarantees(preload):
    _run(preload, 60)


@pytest.mark.parametrize("between", [(), ("restart_clean",), ("crash", False, 0)])
def test_move_preserves_producer_state_of_deleted_batches(
        preload, tmp_path, between):
    history = History(preload, tmp_path, CONFIGS[0], False, 0)
    one_batch = history.append_some, 1, 1, 1, 0, 0, 5, True
    assert history.step(*one_batch)
    assert history.step(history.delete_records, 1)
    assert history.step(history.move)
    assert history.log.last_stable_offset == history.log.start_offset == 1
    for name, *arguments in [between] if between else ():
        history.step(getattr(history, name), *arguments)
    assert history.step(history.end_transaction, 0, False)
    assert history.step(*one_batch)
    history.log.release()


@pytest.mark.parametrize("calls", range(48))
def test_move_with_one_failed_disk_call_leaves_the_partition_in_one_directory(
        preload, tmp_path, calls):
    history = History(preload, tmp_path, CONFIGS[0], False, calls)
    history.step(history.append_some, 1, 1, 1, 0, 0, 5, True)
    history.step(history.arm, FAIL_ONCE, calls, errno.EIO)
    history.step(history.move)
    history.step(history.crash, False, 0)
    history.log.release()


def test_start_after_a_kill_trusts_most_bytes(preload, tmp_path):
    if not RAM.is_dir():
        pytest.skip("needs /dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="pylog-test-", dir=RAM))
    try:
        history = History(preload, folder, CONFIGS[0], False, 1)
        history.append_some(9, 2, 50, 0, 0, 1)
        history.crash(False, 0)
        trusted = history.trusted_bytes
        history.append_some(1, 2, 50, 0, 0, 1)
        history.crash(True, 7)
        assert trusted > 0 and history.trusted_bytes == trusted
        history.log.release()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_long_random_history_with_faults(preload):
    end_s = time.monotonic() + int(os.environ.get("SECONDS", "600"))
    while time.monotonic() < end_s:
        _run(preload, 200)
