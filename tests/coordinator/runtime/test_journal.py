"""The end of a coordinator's partition: written records, and the time of responses."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog._native.log.log import LogError
from pylog._native.records import batch
from pylog.coordinator.runtime.journal import Journal, MissingOffsets, replay
from pylog.protocol.errors import ErrorCode
from tests.native.log.test_compaction import RETENTION_MS, append, cleaned, directory, fill, opened
from tests.native.log.test_log import NOW

__all__ = ["directory"]  # a fixture


class Log:
    topic, partition, failed, start_offset = "__consumer_offsets", 0, 0, 0

    def __init__(self):
        self.batches, self.end_offset, self.flushed_offset = [], 0, 0

    def append(self, data, now_ms, leader_epoch, trusted):
        self.batches.append(data)
        self.end_offset += 1


class Waits:
    """Flushes only when the test requests it."""

    def wait_acknowledged(self, slot, log, offset):
        return log.flushed_offset > offset


class Token(SimpleNamespace):
    is_request = True

    def respond(self, message):
        self.got = message

    def refuse(self, error):
        self.got = error


def with_journal(scenario, **options):
    async def run():
        log = Log()
        await scenario(log, Journal(log, lambda: 5, Waits(), 0, **options))
    asyncio.run(run())


@pytest.mark.parametrize("codec", range(5))
def test_batches_have_the_codec_of_the_setting(codec):
    async def scenario(log, journal):
        journal.write([(b"key", b"value" * 100)])
        journal.append_now()
        assert next(batch.walk(log.batches[0]))[1].attributes & 7 == codec
        assert [row[2:4] for row in batch.records(log.batches[0])] == [(b"key", b"value" * 100)]
    with_journal(scenario, codec=codec)


def test_a_reply_waits_for_the_flush():
    async def scenario(log, journal):
        token = Token(got=None)
        journal.write([(b"key", b"value")])
        journal.after(token, "done")
        await asyncio.sleep(0.01)
        assert token.got is None
        log.flushed_offset = 1
        journal.woken()
        assert token.got == "done"
    with_journal(scenario)


def test_timed_out_flush_fails_its_replies_but_not_later_ones():
    async def scenario(log, journal):
        late, later = Token(got=None), Token(got=None)
        journal.write([(b"key", b"value")])
        journal.after(late, "done")
        while late.got is None:
            await asyncio.sleep(0.01)
        assert late.got == ErrorCode.COORDINATOR_NOT_AVAILABLE
        journal.write([(b"key", b"value")])
        journal.after(later, "done")
        journal.append_now()
        log.flushed_offset = 2
        journal.woken()
        assert later.got == "done" and late.got == ErrorCode.COORDINATOR_NOT_AVAILABLE
    with_journal(scenario, late_s=0.05)


def test_responses_wait_for_a_flush_of_any_duration():
    async def scenario(log, journal):
        late, own, next_own = Token(got=None), Token(got=None), Token(got=None)
        own.is_request = next_own.is_request = False
        journal.write([(b"key", b"prepared")])
        journal.after(late, "done")
        journal.after(own, "markers")
        await asyncio.sleep(0)
        journal.write([(b"other", b"prepared")])
        journal.after(next_own, "others")
        async with asyncio.timeout(20):
            while late.got is None:
                await asyncio.sleep(0.01)
        assert own.got is None and next_own.got is None
        log.flushed_offset = 1
        journal.woken()
        assert own.got == "markers" and next_own.got is None
        log.flushed_offset = 2
        journal.woken()
        assert next_own.got == "others"
    with_journal(scenario, late_s=0.05)


def test_requests_during_a_hanging_flush_are_rejected_too():
    async def scenario(log, journal):
        journal.write([(b"key", b"value")])
        await asyncio.sleep(0)
        for _ in range(3):
            later = Token(got=None)
            journal.write([(b"key", b"value")])
            journal.after(later, "done")
            async with asyncio.timeout(20):
                while later.got is None:
                    await asyncio.sleep(0.01)
            assert later.got == ErrorCode.COORDINATOR_NOT_AVAILABLE
        log.flushed_offset = 4
        journal.woken()
        assert not journal.failed
    with_journal(scenario, late_s=0.05)


def test_failed_log_rejects_its_waiting_requests():
    async def scenario(log, journal):
        held, later = Token(got=None), Token(got=None)
        journal.write([(b"key", b"value")])
        journal.after(held, "done")
        await asyncio.sleep(0.01)
        journal.write([(b"key", b"value")])
        journal.after(later, "done")
        log.failed = -102
        journal.woken()
        assert (held.got, later.got) == (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR)
        assert journal.failed and journal.broken.is_set()
    with_journal(scenario)


@pytest.mark.parametrize("error", [MemoryError(), TypeError("planted"), LogError(-109, 56, "full")])
def test_unappendable_records_are_rejected_and_dropped_for_any_reason(error):
    async def scenario(log, journal):
        def refused(*_, **__):
            raise error

        log.append, append = refused, log.append
        token, again = Token(got=None), Token(got=None)
        journal.write([(b"lost", b"value")])
        journal.after(token, "done")
        await asyncio.sleep(0.01)
        assert token.got == ErrorCode.NOT_COORDINATOR
        journal.write([(b"lost too", b"value")])
        log.append = append
        journal.reopen()
        journal.write([(b"key", b"value")])
        journal.after(again, "done")
        await asyncio.sleep(0.01)
        log.flushed_offset = 1
        journal.woken()
        assert again.got == "done"
        assert [row[2] for data in log.batches for row in batch.records(data)] == [b"key"]
    with_journal(scenario)


def test_replies_after_a_failure_wait_for_the_flush_in_progress():
    async def scenario(log, journal):
        token = Token(got=None)
        journal.write([(b"key", b"value")])
        await asyncio.sleep(0.01)
        journal.fail("planted")
        journal.reopen()
        journal.after(token, "done")
        assert token.got is None
        log.flushed_offset = 1
        journal.woken()
        assert token.got == "done"
    with_journal(scenario)


def test_undeliverable_reply_does_not_block_others():
    class Broken(Token):
        def respond(self, message):
            raise RuntimeError("planted")

    async def scenario(log, journal):
        token = Token(got=None)
        journal.write([(b"key", b"value")])
        journal.after(Broken(), "done")
        journal.after(token, "done")
        await asyncio.sleep(0.01)
        log.flushed_offset = 1
        journal.woken()
        assert token.got == "done"
    with_journal(scenario)


def test_records_of_earlier_leaders_are_pending_until_durable():
    async def scenario(log, journal):
        log.end_offset, token = 3, Token(got=None)
        journal.close()
        journal.reopen(1)
        assert journal.is_settling
        journal.after(token, "of what is loaded")
        journal.woken()
        assert journal.is_settling and token.got is None
        log.flushed_offset = 3
        journal.woken()
        assert not journal.is_settling and token.got == "of what is loaded"
        journal.close()
        journal.reopen(2)
        assert not journal.is_settling
    with_journal(scenario)


def test_response_waits_for_records_written_during_a_completed_flush():
    async def scenario(log, journal):
        token = Token(got=None)
        journal.write([(b"key", b"value")])
        journal.append_now()
        journal.write([(b"key", b"value")])
        journal.append_now()
        log.flushed_offset = 1
        journal.woken()
        journal.after(token, "done")
        assert token.got is None
        log.flushed_offset = 2
        journal.woken()
        assert token.got == "done" and journal.is_idle
    with_journal(scenario)


def test_a_replay_finds_that_tombstones_after_its_first_offset_were_compacted_away(directory):
    log = opened(directory)
    append(log, [(b"group", b"members")])
    append(log, [(b"group", None), (b"other", b"1")])
    fill(log)
    assert list(replay(log, 1, contiguous=True))[:2] == [(b"group", None), (b"other", b"1")]
    end = cleaned(log)["end_offset"]
    fill(log)
    cleaned(log, first_dirty=end, now_ms=NOW + RETENTION_MS)
    with pytest.raises(MissingOffsets):
        list(replay(log, 1, contiguous=True))
    assert {key for key, _ in replay(log, 0)} == {b"other", b"filler"}
    last = log.end_offset - 1
    assert list(replay(log, last, contiguous=True)) == [(b"filler", b"x" * 100)]
