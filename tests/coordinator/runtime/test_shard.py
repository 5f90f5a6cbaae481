"""Behaviour of a coordinator's partition, by the state of its log."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.coordinator.runtime.shard import Shard
from pylog.protocol.errors import ErrorCode


@pytest.mark.parametrize("settling, failed, runs, error", [
    (False, False, True, ErrorCode.NONE),
    (True, False, True, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    (False, True, False, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)])
def test_timers_run_while_a_log_settles_and_requests_are_rejected(
        settling, failed, runs, error):
    """A timer that came due during another step must be set again."""
    async def scenario() -> None:
        journal = SimpleNamespace(log=SimpleNamespace(failed=False), failed=failed,
                                  is_settling=settling)
        shard: Shard = Shard(0, SimpleNamespace, journal, None)
        assert (shard.runs, shard.error) == (False, ErrorCode.NOT_COORDINATOR)
        shard.leads = shard.ready = True
        assert (shard.runs, shard.error) == (runs, error)

    asyncio.run(scenario())
