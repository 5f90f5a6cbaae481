"""Finds the log directory of each partition at startup.

Owns: nothing; renames directories that do not belong to a partition.
Invariants: a partition is in one directory: of two directories with its name, one is set aside or
  startup fails; nothing is deleted here.
Source: Kafka's directory names; KIP-113 (moves), KIP-516 (partition.metadata).
"""

import logging
import os
import re

from pylog.log import partition_logs
from pylog.log.errors import StartError
from pylog.log.replica_moves import FUTURE, furthest

METADATA_PARTITION = "__cluster_metadata-0"

log = logging.getLogger("pylog.log")

_PARTITION_DIRECTORY = re.compile(r"[a-zA-Z0-9._-]{1,249}-\d+")


def is_partition(name: str) -> bool:
    """Return True if a directory with this name contains a partition of a topic."""
    return _PARTITION_DIRECTORY.fullmatch(name) is not None and name != METADATA_PARTITION


def find(disks, ids: dict, clean=frozenset()) -> tuple[dict, list]:
    """Return (partition directory -> number of its log directory, paths to delete).

    disks: Directories, with their listings. ids: topic -> id. clean: numbers of directories whose
    partition.metadata files need not be checked. Raises StartError.
    """
    found_in: dict[str, int] = {}
    for number, listing in enumerate(disks.listings):
        for name in filter(is_partition, listing):
            if number not in clean and _is_of_another(disks, number, name, ids):
                # The current topic's partition may be in an offline directory.
                disks.set_aside(number, name)
            else:
                found_in[name] = number if name not in found_in else _the_topics(
                    disks, name, (found_in[name], number), ids)
    return found_in, _complete_moves(disks, found_in, ids)


def _is_of_another(disks, number: int, name: str, ids: dict, partition: str = "") -> bool:
    """Return True if a directory belongs to a deleted topic whose name is in use again."""
    wanted = ids.get((partition or name).rpartition("-")[0])
    found = None if wanted is None else partition_logs.topic_id_in(
        os.path.join(disks.paths[number], name))
    return found is not None and found != wanted


def make_way(disks, number: int, name: str, topic_id: bytes) -> None:
    """Set aside a directory of a deleted topic with the same name, which must not become this
    topic's.
    """
    if _is_of_another(disks, number, name, {name.rpartition("-")[0]: topic_id}):
        disks.set_aside(number, name)


def _the_topics(disks, name: str, numbers: tuple, ids: dict) -> int:
    """Return the number of the current topic's directory, and set the other one aside.

    Two exist if the topic was deleted and created again while a disk was offline. Raises StartError
    if neither can be excluded.
    """
    wanted = ids.get(name.rpartition("-")[0])
    found = [partition_logs.topic_id_in(os.path.join(disks.paths[number], name))
             for number in numbers]
    for at in (1, 0):
        if found[at] is not None and found[at] != wanted:
            disks.set_aside(numbers[at], name)
            return numbers[1 - at]
    raise StartError(f"{name} is in both {disks.paths[numbers[0]]} and {disks.paths[numbers[1]]}")


def _complete_moves(disks, found_in: dict, ids: dict) -> list:
    """Complete interrupted moves: if only a copy remains, it becomes the partition."""
    left_over: list[str] = []
    copies: dict[str, dict[str, int]] = {}
    all_here = len(disks.usable()) == len(disks.paths)
    for number, listing in enumerate(disks.listings):
        for found in filter(None, map(FUTURE.fullmatch, listing)):
            if found[1] in found_in or not is_partition(found[1]) or _is_of_another(
                    disks, number, found[0], ids, found[1]):
                left_over.append(_abandon(disks, number, found[0]))
            elif all_here:
                # Otherwise the partition may be in an offline directory, and this copy may be
                # incomplete.
                copies.setdefault(found[1], {})[found[0]] = number
    for name, numbers in copies.items():
        paths = {os.path.join(disks.paths[number], copy): copy for copy, number in numbers.items()}
        best = paths[furthest(list(paths))]
        found_in[name] = numbers[best]
        if not disks.rename_only_copy(numbers[best], best, name):
            # The partition stays offline. Keep the other copies: they may be all that is left of
            # it.
            log.error("a moved replica could not be renamed; all copies of it are kept", extra={
                "directory": os.path.join(disks.paths[numbers[best]], best), "partition": name})
            continue
        left_over += [_abandon(disks, number, copy) for copy, number in numbers.items()
                      if copy != best]
    return left_over


def _abandon(disks, number: int, copy: str) -> str:
    """Rename a copy for deletion, so that it never becomes the partition after a power failure.
    Return its path.
    """
    gone = copy.removesuffix("future") + "delete"
    return os.path.join(disks.paths[number], gone if disks.rename(number, copy, gone) else copy)
