"""Write records that share groups gave up to a dead-letter topic, then archive them.

Owns: one task for each share partition with such records.
Invariants: a failed write is retried with backoff while the share partition is served here; at most
  WRITES_MAX share partitions write at a time; failures are logged when they begin, when the reason
  changes and when they end.
Source: KIP-1191. Kafka archives a record even if its dead letter cannot be written. Here the record
  stays in flight, which limits the number (share.partition.max.record.locks), until it is written
  or the group has no dead-letter topic.
"""

import asyncio
import logging
from collections.abc import Callable

from pylog import supervisor
from pylog.share.dead_letters import DeadLetters
from pylog.share.share_partition import SharePartition

WRITES_MAX = 8
PAUSE_SECONDS = 0.5, 30.0  # Backoff: first, maximum.

log = logging.getLogger("pylog.sharing")


class Archiving:
    """Writes dead letters in the background.

    idle: called when a share partition has nothing left to write. pauses_s: see PAUSE_SECONDS.
    """

    def __init__(self, letters: DeadLetters, idle: Callable[[SharePartition], object],
                 pauses_s: tuple[float, float] = PAUSE_SECONDS):
        self._letters = letters
        self._idle = idle
        self._pauses_s = pauses_s
        self._tasks: dict[SharePartition, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(WRITES_MAX)

    def archive_due(self, partition: SharePartition) -> None:
        """Start writing if the share partition has something to write."""
        in_flight = partition.in_flight
        if in_flight is not None and partition not in self._tasks and in_flight.is_archiving:
            task = asyncio.get_running_loop().create_task(
                supervisor.reporting("dead letters", self._run(partition)))
            self._tasks[partition] = task
            task.add_done_callback(lambda _: self._done(partition))

    def is_busy(self, partition: SharePartition) -> bool:
        return partition in self._tasks

    def end(self, partition: SharePartition) -> None:
        """Stop writing for a fenced share partition. The next leader reads the rest."""
        task = self._tasks.get(partition)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, partition: SharePartition) -> None:
        del self._tasks[partition]
        self.archive_due(partition)
        if partition not in self._tasks:
            self._idle(partition)

    async def _run(self, partition: SharePartition) -> None:
        pause_s, pause_s_max = self._pauses_s
        error = None
        while partition.in_flight is not None and partition.in_flight.is_archiving:
            async with self._turns:
                # Limits the concurrent writes.
                why = await self._try(partition)
            # Log only changes.
            if why != error:
                log.log(logging.WARNING if why else logging.INFO, "dead letters %s",
                        "wait" if why else "are written again", extra={
                            "share_partition": partition.key.text, "reason": why})
            error = why
            if why is None:
                pause_s = self._pauses_s[0]
            else:
                # Retry with backoff.
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, pause_s_max)

    async def _try(self, partition: SharePartition) -> str | None:
        try:
            return await partition.archive(self._letters)
        except Exception as error:
            log.exception("cannot write dead letters", extra={
                "share_partition": partition.key.text})
            return repr(error)
