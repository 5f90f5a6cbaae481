"""What a broker sees to each second, on stand-ins."""

import asyncio
from types import SimpleNamespace

from pylog.broker import Broker
from pylog.config import Settings


def test_partitions_of_a_failed_disk_are_let_go_of_until_that_is_written(tmp_path):
    broker = Broker(Settings({"log.dirs": str(tmp_path)}))
    told, asked = [[("a", 0)], [], [("b", 1)], []], []
    broker.logs = SimpleNamespace(
        take_failed=lambda: told.pop(0), disks=SimpleNamespace(fatal=lambda: None))

    async def leave_offline(offline):
        asked.append(list(offline))
        if len(asked) == 2:
            raise OSError("something else")
        return len(asked) == 3

    broker.metadata.controller = SimpleNamespace(leave_offline=leave_offline)

    async def tend():
        for _ in range(4):
            try:
                await broker._leave_failed_disks()
            except OSError:
                pass

    asyncio.run(tend())
    assert asked == [[("a", 0)], [("a", 0)], [("a", 0), ("b", 1)]]
