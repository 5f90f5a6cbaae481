"""What the system allows this process, and who may take how much of it: descriptors, memory.

Owns: nothing.
Invariants: (1) connections leave the descriptors that files need; (2) a limit that the system does
  not have is NO_LIMIT.
Source: getrlimit(2), cgroups(7).
"""

import os
import resource

NO_LIMIT = (1 << 32) - 1
# Of the descriptors, for segments: a partition that is written has one, and who writes to more
# partitions than may be open opens and closes one with each request, for twice the CPU. Half of
# the maps that Linux gives a process, since the index of an open segment may be one.
SEGMENT_FILES_PART = 0.4
SEGMENT_FILES_MAX, SEGMENT_FILES_LOW = 32_768, 512
# Listeners, LMDB, locks, the small files that come and go; and what connections never touch.
OTHER_FILES, FILES_RESERVED = 64, 64
# Of the memory there is, for requests that arrive; more than that makes nothing faster.
INPUT_PART, INPUT_BYTES_MAX, INPUT_BYTES_MIN = 10, 1 << 30, 4 << 20
CGROUPS = "/sys/fs/cgroup"


def descriptors() -> int:
    """How many the process may have, or NO_LIMIT."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return NO_LIMIT if limit == resource.RLIM_INFINITY else min(limit, NO_LIMIT)


def segment_files(directories: int) -> int:
    """How many segments each of so many log directories may keep open."""
    limit = descriptors()
    if limit == NO_LIMIT:
        return SEGMENT_FILES_MAX
    return max(1, min(SEGMENT_FILES_MAX, int(limit * SEGMENT_FILES_PART) // directories))


def connections(directories: int) -> tuple[int, int]:
    """(most connections, the number of a descriptor from which on all are for files). Keeps (1)."""
    limit = descriptors()
    if limit == NO_LIMIT:
        return NO_LIMIT, NO_LIMIT
    files = segment_files(directories) * directories + min(OTHER_FILES, limit // 4)
    return max(1, limit - files), max(1, limit - min(FILES_RESERVED, limit // 8))


def input_bytes() -> int:
    """Bytes of requests in hand that the memory allows."""
    return max(INPUT_BYTES_MIN, min(INPUT_BYTES_MAX, memory_bytes() // INPUT_PART))


def memory_bytes(cgroups: str = CGROUPS, membership: str = "/proc/self/cgroup") -> int:
    """The memory there is: the machine's, or less where a cgroup or RLIMIT_AS says so."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft != resource.RLIM_INFINITY:
        found.append(soft)
    for path, name in _memory_groups(cgroups, membership):
        # A group above may have the lower limit; in a container only the top one may be there.
        while True:
            limit = _read_limit(os.path.join(path, name))
            if limit is not None:
                found.append(limit)
            if len(path) <= len(cgroups):
                break
            path = os.path.dirname(path)
    return min(found)


def _memory_groups(cgroups: str, membership: str):
    """(folder, name of the file with the limit) of the groups that count this process's memory."""
    try:
        with open(membership, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield os.path.join(cgroups, path.lstrip("/")).rstrip("/"), "memory.max"
        elif "memory" in controllers.split(","):
            yield (os.path.join(cgroups, "memory", path.lstrip("/")).rstrip("/"),
                   "memory.limit_in_bytes")


def _read_limit(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):   # It is not there, or "max".
        return None
