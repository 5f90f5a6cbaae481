"""Batches of records in a coordinator's partition, and reading them back."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog._native.log.log import LogError
from pylog._native.records import batch
from pylog.coordinator.runtime.journal import replay
from pylog.coordinator.runtime.transactional_batches import Marker, TransactionalRecords
from pylog.protocol.errors import ErrorCode
from tests.coordinator.runtime.test_journal import Token, with_journal

HEAD = 32  # maximum size of a record besides its key and value
BATCH_BYTES = 512 * 1024


def written(records) -> list[list[tuple]]:
    """Return the batches that one write makes, each as [(key, value)]."""
    found = []

    async def scenario(log, journal):
        journal.write(records)
        journal.append_now()
        found.extend([row[2:4] for row in batch.records(data)] for data in log.batches)
    with_journal(scenario)
    return found


@pytest.mark.parametrize("more, counts", [(0, [2]), (1, [1, 1])])
def test_a_batch_is_as_long_as_the_limit_and_no_longer(more, counts):
    first = b"k" * 10, b"v" * 1000
    second = b"l", b"w" * (BATCH_BYTES - 2 * HEAD - 1010 - 1 + more)
    assert [len(part) for part in written([first, second])] == counts


@pytest.mark.parametrize("count, counts", [(5000, [5000]), (5001, [5000, 1])])
def test_records_per_batch_are_limited(count, counts):
    rows = [(b"%d" % number, None) for number in range(count)]
    found = written(rows)
    assert [len(part) for part in found] == counts
    assert [row for part in found for row in part] == rows


def test_oversized_record_gets_its_own_batch_and_the_count_restarts():
    small = b"k", b"v" * (BATCH_BYTES // 2 - HEAD - 1)
    long = b"k", b"v" * BATCH_BYTES
    assert [len(part) for part in written([small, long, small, small, small])] == [1, 1, 2, 1]


def test_prepared_batches_are_not_split_or_reordered():
    plain = [(b"a", b"1"), (b"b", None)]
    mine = TransactionalRecords(7, 3, [(b"c", b"2"), (b"d", b"3")])
    assert [[row[0] for row in part] for part in written(
        [*plain, mine, *plain, Marker(7, 3, 5, True, 0), mine])] == [
            [b"a", b"b"], [b"c", b"d"], [b"a", b"b"], [b"\0\0\0\1"], [b"c", b"d"]]


def test_own_batches_are_not_validated_and_are_rejected_after_a_later_leader():
    async def scenario(log, journal):
        append, seen = log.append, []

        def noted(data, now_ms, **how):
            seen.append((now_ms, how))
            append(data, now_ms, **how)

        log.append = noted
        journal.close()
        journal.reopen(4)
        journal.write([(b"key", b"value")])
        journal.append_now()
        assert seen == [(5, {"leader_epoch": 4, "trusted": True})]
    with_journal(scenario)


# ---- event loop iterations ----------------------------------------------------------------------

def test_records_of_one_iteration_share_a_batch_with_a_correct_count():
    async def scenario(log, journal):
        for number in range(3):
            journal.write([(b"%d" % number, b"value")] * 2)
        assert journal.written == 6 and not journal.appended
        await asyncio.sleep(0)
        assert len(log.batches) == 1 and journal.appended
        await asyncio.sleep(0)
        assert len(log.batches) == 1
    with_journal(scenario)


def test_records_appended_early_are_not_flushed_twice():
    async def scenario(log, journal):
        asked = []
        journal._waits.wait_acknowledged = lambda slot, log, offset: asked.append((slot, offset))
        journal.write([(b"key", b"value")])
        journal.append_now()
        assert not journal.is_idle
        await asyncio.sleep(0)
        assert asked == [(0, 0)]
    with_journal(scenario)


def test_to_append_now_without_records_does_nothing():
    async def scenario(log, journal):
        journal.append_now()
        assert not log.batches and not journal.appended and journal.is_idle
    with_journal(scenario)


def test_reply_without_records_is_immediate():
    async def scenario(log, journal):
        token = Token(got=None)
        journal.after(token, "done")
        assert token.got == "done"
    with_journal(scenario)


def test_journal_that_fails_within_a_tick_appends_nothing():
    """Check that the next load waits no longer than the previous one."""
    async def scenario(log, journal):
        token, later = Token(got=None), Token(got=None)
        journal.write([(b"key", b"value")])
        journal.after(token, "done")
        journal.fail("planted")
        journal.after(later, "done")
        journal.write([(b"key", b"value")])
        await asyncio.sleep(0)
        assert (log.batches, journal.appended, journal.written) == ([], False, 1)
        assert token.got == later.got == ErrorCode.NOT_COORDINATOR
        assert journal.broken.is_set() and journal.is_idle
        journal.reopen()
        assert not journal.broken.is_set()
    with_journal(scenario)


def test_reply_without_flush_waits_follows_the_append():
    async def scenario(log, journal):
        journal._waits = None
        token = Token(got=None)
        journal.write([(b"key", b"value")])
        journal.after(token, "done")
        assert token.got is None
        await asyncio.sleep(0)
        assert token.got == "done" and journal.is_idle
        log.end_offset = 3
        journal.close()
        journal.reopen()
        assert not journal.is_settling
    with_journal(scenario)


@pytest.mark.parametrize("reason, is_bug", [
    ("text", False), (LogError(-109, 56, "full"), False), (MemoryError(), False),
    (TypeError("planted"), True)])
def test_a_failure_is_logged_once_and_a_bug_with_its_traceback(caplog, reason, is_bug):
    async def scenario(log, journal):
        journal.fail(reason)
        journal.fail(reason)
    with_journal(scenario)
    row, = caplog.records
    assert bool(row.exc_info) == is_bug and row.reason == str(reason)


# ---- flushes ------------------------------------------------------------------------------------

def test_flush_in_progress_at_a_failure_is_awaited_up_to_the_new_log_end():
    async def scenario(log, journal):
        journal.write([(b"key", b"value")])
        journal.append_now()
        journal.fail("planted")
        assert not journal.is_idle
        log.end_offset = 3
        journal.reopen()
        assert journal.is_settling
        log.flushed_offset = 2
        journal.woken()
        assert journal.is_settling
        log.flushed_offset = 3
        journal.woken()
        assert not journal.is_settling and journal.is_idle
    with_journal(scenario)


def test_a_log_without_records_has_nothing_to_settle():
    async def scenario(log, journal):
        log.start_offset = log.end_offset = 7
        journal.close()
        journal.reopen(1)
        assert not journal.is_settling and journal.is_idle
    with_journal(scenario)


def test_failed_flush_request_fails_the_journal():
    async def scenario(log, journal):
        def refused(slot, log, offset):
            raise LogError(-102, 56, "lost")

        journal._waits.wait_acknowledged = refused
        token = Token(got=None)
        journal.write([(b"key", b"value")])
        journal.after(token, "done")
        journal.append_now()
        assert token.got == ErrorCode.NOT_COORDINATOR and journal.failed and journal.is_idle
    with_journal(scenario)


def test_replies_of_the_next_flush_wait_for_their_own_records():
    async def scenario(log, journal):
        first, second = Token(got=None), Token(got=None)
        journal.write([(b"key", b"value")])
        journal.after(first, "first")
        journal.append_now()
        journal.write([(b"key", b"value")])
        journal.after(second, "second")
        journal.append_now()
        log.flushed_offset = 1
        journal.woken()
        assert (first.got, second.got) == ("first", None) and not journal.is_idle
        log.flushed_offset = 2
        journal.woken()
        assert second.got == "second" and journal.is_idle
    with_journal(scenario)


@pytest.mark.parametrize("end", ["flushed", "closed"])
def test_completed_late_flush_is_not_checked(end):
    async def scenario(log, journal):
        journal.write([(b"key", b"value")])
        journal.append_now()
        late = journal._late
        assert late is not None and not late.cancelled()
        log.flushed_offset = 1
        journal.woken() if end == "flushed" else journal.close()
        assert late.cancelled() and journal._late is None
    with_journal(scenario, late_s=1000)


def test_failed_rejection_does_not_block_other_tokens():
    class Broken(Token):
        def refuse(self, error):
            raise RuntimeError("planted")

    async def scenario(log, journal):
        token = Token(got=None)
        journal.write([(b"key", b"value")])
        journal.after(Broken(), "done")
        journal.after(token, "done")
        journal.close()
        assert token.got == ErrorCode.NOT_COORDINATOR
    with_journal(scenario)


# ---- replay -------------------------------------------------------------------------------------

class Read:
    """A log of whole batches; a read returns `many` of them."""

    def __init__(self, *batches, start_offset=0, many=1):
        self.start_offset, self.many, self.asked = start_offset, many, []
        self.batches, self.end_offset = [], 0
        for data in batches:
            head = next(batch.walk(data))[1]
            self.batches.append((self.end_offset + head.last_offset_delta,
                                 self.end_offset.to_bytes(8, "big") + data[8:]))
            self.end_offset += head.last_offset_delta + 1

    def read(self, offset, max_bytes):
        self.asked.append(offset)
        return b"".join([data for last, data in self.batches if last >= offset][:self.many])


def plain(*keys):
    return batch.build([(key, b"v", 5, ()) for key in keys])


@pytest.mark.parametrize("offset, keys", [
    (0, b"abcde"), (1, b"bcde"), (2, b"cde"), (3, b"de"), (4, b"e"), (5, b"")])
@pytest.mark.parametrize("many", [1, 2])
def test_replay_can_begin_within_a_batch(offset, keys, many):
    log = Read(plain(b"a", b"b", b"c"), plain(b"d"), plain(b"e"), many=many)
    assert b"".join(key for key, _ in replay(log, offset)) == keys
    assert bool(log.asked) == bool(keys)


def test_replay_begins_at_the_log_start():
    log = Read(plain(b"a", b"b"), plain(b"c"), start_offset=1)
    assert [key for key, _ in replay(log, 0)] == [b"b", b"c"] and log.asked[0] == 1


def test_empty_read_ends_a_replay():
    log = SimpleNamespace(start_offset=0, end_offset=5, read=lambda offset, max_bytes: b"")
    assert list(replay(log, 0)) == []


def test_records_without_a_key_are_skipped():
    log = Read(batch.build([(None, b"v", 5, ()), (b"a", None, 5, ())]))
    assert list(replay(log, 0)) == [(b"a", None)]


def test_batches_of_transactions_are_read_as_they_were_written():
    mine = TransactionalRecords(7, 3, [(b"c", b"2"), (b"d", None)])
    unknown = batch.build([(b"\0\0\0\7", b"", 5, ())], attributes=batch.CONTROL)
    log = Read(plain(b"a"), mine.batch(5, 0), Marker(7, 3, 5, False, 0).batch(5), unknown,
               Marker(8, 1, 5, True, 0).batch(5), plain(b"z"))
    assert list(replay(log, 0)) == [
        (b"a", b"v"), mine, Marker(7, 3, -1, False, 0), Marker(8, 1, -1, True, 0), (b"z", b"v")]
