"""Log directories: DescribeLogDirs (35), AlterReplicaLogDirs (34).

Owns: nothing.
Invariants: a failed directory is reported as offline, without its partitions.
Source: KIP-113, KIP-827 (space), KIP-1066 (cordoned ones); responses as in Kafka 4.4.
"""

from __future__ import annotations

import asyncio
import itertools
import os

from pylog._native.log.log import LogError
from pylog.metadata.image.image import is_internal
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.log.manager import LogManager
    from pylog.metadata.service import MetadataService

PART_PARTITIONS = 500


class LogDirsApi:
    """The log directories of this broker."""

    def __init__(self, logs: LogManager, metadata: MetadataService):
        self._logs = logs
        self._metadata = metadata

    def handlers(self) -> dict[int, Handler]:
        return {
            api.ALTER_REPLICA_LOG_DIRS: self.alter_replica_log_dirs,
            api.DESCRIBE_LOG_DIRS: self.describe_log_dirs,
        }

    async def describe_log_dirs(
            self, context: RequestContext, request: Message) -> AsyncIterator[Message | None]:
        """Yield the log directories with their partitions' sizes, and space, in bytes (KIP-827).

        Errors: KAFKA_STORAGE_ERROR for an offline directory. Moving replicas are reported as future
        ones.
        """
        response = messages.DescribeLogDirsResponse
        wanted: dict[str, set[int]] | None = None if request.topics is None else {}
        for number, topic in enumerate(request.topics or ()):
            assert wanted is not None
            wanted.setdefault(topic.topic, set()).update(topic.partitions)
            if number % PART_PARTITIONS == 0:
                yield None
        loop = asyncio.get_running_loop()
        moves = self._logs.moves.all()
        yield response()
        for number, (path, offline, logs) in enumerate(self._logs.describe()):
            space = None if offline else await loop.run_in_executor(None, _space, path)
            if space is None:
                # A failed directory has no partitions.
                yield response(results=[response.DescribeLogDirsResult(
                    error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path, topics=[])])
                continue
            rows = _rows(logs, [move for move in moves if move.dir_index == number], wanted)
            for topics in _by_topic(rows):
                yield response(results=[response.DescribeLogDirsResult(
                    error_code=ErrorCode.NONE, log_dir=path, total_bytes=space[0],
                    usable_bytes=space[1], topics=topics,
                    is_cordoned=self._logs.disks.is_cordoned(number))])

    async def alter_replica_log_dirs(self, context: RequestContext, request: Message) -> Message:
        """Start moving replicas to other log directories of this broker (KIP-113).

        Errors: LOG_DIR_NOT_FOUND, INVALID_REPLICA_ASSIGNMENT (cordoned), KAFKA_STORAGE_ERROR
        (offline, or a coordinator's partition), UNKNOWN_TOPIC_OR_PARTITION, REPLICA_NOT_AVAILABLE.
        """
        response = messages.AlterReplicaLogDirsResponse
        paths = {path: (number, offline)
                 for number, (path, offline, _) in enumerate(self._logs.describe())}
        results: dict[str, dict[int, int]] = {}
        for directory in request.dirs:
            for topic in directory.topics:
                for index in topic.partitions:
                    results.setdefault(topic.name, {})[index] = await self._moved(
                        paths, directory.path, topic.name, index)
        return response(results=[
            response.AlterReplicaLogDirTopicResult(topic_name=name, partitions=[
                response.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error)
                for index, error in errors.items()])
            for name, errors in results.items()])

    async def _moved(self, paths: dict, path: str, name: str, index: int) -> int:
        if path not in paths:
            return ErrorCode.LOG_DIR_NOT_FOUND
        number, offline = paths[path]
        if self._logs.disks.is_cordoned(number):
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT
        if offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self._metadata.image.partition(name, index) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._logs.is_offline(name, index):
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self._logs.get(name, index) is None:
            return ErrorCode.REPLICA_NOT_AVAILABLE
        if is_internal(name) and self._logs.dir_index(name, index) != number:
            # Its coordinator keeps appending to the log that was open when its term began.
            return ErrorCode.KAFKA_STORAGE_ERROR
        try:
            await asyncio.get_running_loop().run_in_executor(
                None, self._logs.move, name, index, number)
        except LogError:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE


def _rows(logs, moves, wanted):
    """Yield (topic, a partition's row or None if it is not requested), by topic."""
    new = messages.DescribeLogDirsResponse.DescribeLogDirsPartition
    moved: dict[str, list] = {}
    for move in moves:
        moved.setdefault(move.topic, []).append(move)
    for name, rows in itertools.groupby(logs, lambda row: row[0]):
        for _, index, partition_log in rows:
            yield name, None if not _is_wanted(wanted, name, index) else new(
                partition_index=index, partition_size=partition_log.size_bytes, offset_lag=0,
                is_future_key=False)
        yield from _moving(name, moved.pop(name, ()), wanted)
    for name, of_topic in moved.items():
        yield from _moving(name, of_topic, wanted)


def _moving(name: str, moves, wanted):
    for move in moves:
        yield name, None if not _is_wanted(wanted, name, move.partition) else \
            messages.DescribeLogDirsResponse.DescribeLogDirsPartition(
                partition_index=move.partition, partition_size=move.target.size_bytes,
                offset_lag=move.lag, is_future_key=True)


def _is_wanted(wanted, name: str, index: int) -> bool:
    return wanted is None or index in wanted.get(name, ())


def _by_topic(rows):
    """Yield [topic], with PART_PARTITIONS rows each; at least one."""
    response = messages.DescribeLogDirsResponse
    rows = iter(rows)
    part = list(itertools.islice(rows, PART_PARTITIONS))
    while True:
        yield [response.DescribeLogDirsTopic(name=name, partitions=partitions)
               for name, found in itertools.groupby(part, lambda row: row[0])
               if (partitions := [row for _, row in found if row is not None])]
        part = list(itertools.islice(rows, PART_PARTITIONS))
        if not part:
            return


def _space(path: str):
    """Return (total bytes, usable bytes) of a file system, None if they are unavailable."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
