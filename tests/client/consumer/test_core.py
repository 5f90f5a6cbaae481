"""Background work of a poll, without a broker."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client.consumer.core import Consuming
from pylog.client.consumer.subscription_state import NO_POLL
from pylog.client.errors import KafkaTimeoutError


async def done() -> None:
    pass


def test_event_after_the_last_check_wakes_the_poll():
    """An out-of-range offset is detected on the application's thread while the event loop is
    closing.
    """
    async def scenario() -> list[str]:
        told: list[str] = []
        core = Consuming.__new__(Consuming)
        core.woken = core.closed = core._closing = False
        core.membership, core.queue = None, SimpleNamespace(items=[])
        core._check_open, core._notify = lambda: None, lambda: told.append("look")
        for core.dirty in (False, True):
            core._pending_work = asyncio.ensure_future(done())
            await core._pending_work
            await core.run_pending_work(1.0)
            assert core._pending_work is None
            told.append("attended")
        return told

    assert asyncio.run(scenario()) == ["attended", "look", "attended"]


def test_unknown_position_ends_the_call_at_its_timeout():
    async def scenario() -> None:
        core = Consuming.__new__(Consuming)
        core.subscription = SimpleNamespace(state=lambda tp: SimpleNamespace(
            position_before=lambda poll: (None, -1)))
        core.collector = SimpleNamespace(undelivered_poll=NO_POLL)
        core._in_callback, core._rests, core.run_pending_work = None, False, lambda left_s: done()
        async with asyncio.timeout(20):
            with pytest.raises(KafkaTimeoutError, match="the position of t-0 is not known"):
                await core.position("t-0", 0.01)

    asyncio.run(scenario())
