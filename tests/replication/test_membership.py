"""Periodic work of a broker in a cluster."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.config import Settings
from pylog.replication.membership import Membership
from tests.metadata.virtual import run


def test_isr_is_checked_again_after_any_result(caplog):
    looks = []

    def tick():
        looks.append(len(looks))
        if len(looks) == 2:
            raise RuntimeError("nobody expects it")

    async def go(loop):
        ticking = loop.create_task(Membership._tick(SimpleNamespace(
            _settings={"replica.lag.time.max.ms": 1000},
            leadership=SimpleNamespace(tick=tick))))
        await asyncio.sleep(10)
        ticking.cancel()

    run(go)
    assert len(looks) > 3
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == [
        "nobody expects it"]


@pytest.mark.parametrize("enabled", [True, False])
def test_broker_leaves_in_an_orderly_way_only_if_configured(enabled):
    asked = []

    async def leave(task, seconds, needed):
        asked.append(needed)

    asyncio.run(Membership.leave(SimpleNamespace(
        _tasks=["heartbeats"], channel=SimpleNamespace(leave=leave),
        _settings=Settings({"controlled.shutdown.enable": str(enabled).lower()}))))
    assert len(asked) == enabled
