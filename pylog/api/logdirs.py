"""Log directories: DescribeLogDirs (35), AlterReplicaLogDirs (34).

Owns: nothing.
Called by: dispatch through api.HANDLERS.
Invariants: (1) a directory that failed is told of as offline and nothing else.
Source: KIP-113, KIP-827 (space); answers as Kafka 4.3's.
"""

import asyncio
import os

from pylog._native.log import LogError
from pylog.coordinator.service import TOPIC
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

# Their coordinator appends to the log that it found at its start.
COORDINATED = (TOPIC,)


async def describe_log_dirs(broker, context, request):
    wanted = None if request.topics is None else {
        (topic.topic, index) for topic in request.topics for index in topic.partitions}
    loop = asyncio.get_running_loop()
    moves = broker.logs.moves.all()
    return messages.DescribeLogDirsResponse(results=[
        await loop.run_in_executor(None, _described, path, offline, logs, wanted, [
            move for move in moves if move.place == number])
        for number, (path, offline, logs) in enumerate(broker.logs.describe())])


def _described(path: str, offline: bool, logs, wanted, moves):
    response = messages.DescribeLogDirsResponse
    space = None if offline else _space(path)
    if space is None:
        # Keeps (1).
        return response.DescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path, topics=[])
    topics = {}
    for name, index, log in logs:
        if wanted is None or (name, index) in wanted:
            topics.setdefault(name, []).append(response.DescribeLogDirsPartition(
                partition_index=index, partition_size=log.size_bytes, offset_lag=0,
                is_future_key=False))
    for move in moves:
        if wanted is None or (move.topic, move.partition) in wanted:
            topics.setdefault(move.topic, []).append(response.DescribeLogDirsPartition(
                partition_index=move.partition, partition_size=move.target.size_bytes,
                offset_lag=move.lag, is_future_key=True))
    return response.DescribeLogDirsResult(
        error_code=ErrorCode.NONE, log_dir=path, total_bytes=space[0], usable_bytes=space[1],
        topics=[response.DescribeLogDirsTopic(name=name, partitions=partitions)
                for name, partitions in topics.items()])


def _space(path: str):
    """(total bytes, bytes that we may use) of a file system, None when it cannot tell."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


async def alter_replica_log_dirs(broker, context, request):
    response = messages.AlterReplicaLogDirsResponse
    paths = {path: (number, offline)
             for number, (path, offline, _) in enumerate(broker.logs.describe())}
    results = {}
    for wanted in request.dirs:
        for topic in wanted.topics:
            for index in topic.partitions:
                results.setdefault(topic.name, {})[index] = await _moved(
                    broker, paths, wanted.path, topic.name, index)
    return response(results=[
        response.AlterReplicaLogDirTopicResult(topic_name=name, partitions=[
            response.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error)
            for index, error in told.items()])
        for name, told in results.items()])


async def _moved(broker, paths: dict, path: str, name: str, index: int) -> int:
    if path not in paths:
        return ErrorCode.LOG_DIR_NOT_FOUND
    number, offline = paths[path]
    if offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if broker.image.partition(name, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if broker.logs.is_offline(name, index):
        return ErrorCode.KAFKA_STORAGE_ERROR
    if broker.logs.get(name, index) is None:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    if name in COORDINATED and broker.logs.place(name, index) != number:
        return ErrorCode.KAFKA_STORAGE_ERROR
    try:
        await asyncio.get_running_loop().run_in_executor(
            None, broker.logs.move, name, index, number)
    except LogError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NONE


HANDLERS = {api.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
            api.DESCRIBE_LOG_DIRS: describe_log_dirs}
