"""The end of a coordinator's partition: what is written, and when replies leave."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog._native import batch
from pylog.coordinator.store import Journal
from pylog.protocol.errors import ErrorCode


class Log:
    topic, partition, failed = "__consumer_offsets", 0, 0

    def __init__(self):
        self.batches, self.end_offset, self.flushed_offset = [], 0, 0

    def append(self, data, now_ms, trusted):
        self.batches.append(data)
        self.end_offset += 1


class Waits:
    """Nothing is flushed until the test says so."""

    def wait(self, slot, log, offset):
        return log.flushed_offset > offset


class Token(SimpleNamespace):
    def answer(self, message):
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


def test_a_flush_that_takes_too_long_leaves_its_replies_refused_and_later_ones_answered():
    async def scenario(log, journal):
        late, later = Token(got=None), Token(got=None)
        journal.write([(b"key", b"value")])
        journal.after(late, "done")
        await asyncio.sleep(0.2)
        assert late.got == ErrorCode.COORDINATOR_NOT_AVAILABLE
        journal.write([(b"key", b"value")])
        journal.after(later, "done")
        await asyncio.sleep(0.01)
        log.flushed_offset = 2
        journal.woken()
        assert later.got == "done" and late.got == ErrorCode.COORDINATOR_NOT_AVAILABLE
    with_journal(scenario, late_s=0.05)
