"""Divides the process's descriptors and memory between connections, segments and requests.

Owns: nothing.
Invariants: connections leave enough descriptors for files; NO_LIMIT means that the system has no
  such limit.
Source: getrlimit(2), cgroups(7).
"""

import os
import resource

NO_LIMIT = (1 << 32) - 1
# Share of descriptors for segments. A partition that is written to needs one. A client that writes
# to more partitions than may be open causes an open and a close per request, which doubles the CPU
# time. The maximum is half of Linux's mapping limit per process, because the index of an open
# segment may use one mapping.
SEGMENT_FILES_PART = 0.4
SEGMENT_FILES_MAX, SEGMENT_FILES_LOW = 32_768, 512
# For listeners, LMDB, locks and temporary files; and a reserve that connections never use.
OTHER_FILES, FILES_RESERVED = 64, 64
# Share of memory for incoming requests. More does not increase throughput.
INPUT_PART, INPUT_BYTES_MAX, INPUT_BYTES_MIN = 10, 1 << 30, 4 << 20
CGROUPS = "/sys/fs/cgroup"


def descriptors() -> int:
    """Return the maximum number of descriptors of the process, or NO_LIMIT."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return NO_LIMIT if limit == resource.RLIM_INFINITY else min(limit, NO_LIMIT)


def segment_files(directories: int) -> int:
    """Return the maximum number of open segments per log directory."""
    limit = descriptors()
    if limit == NO_LIMIT:
        return SEGMENT_FILES_MAX
    return max(1, min(SEGMENT_FILES_MAX, int(limit * SEGMENT_FILES_PART) // directories))


def connections(directories: int) -> tuple[int, int]:
    """Return (maximum number of connections, the descriptor number from which on all are for
    files).
    """
    limit = descriptors()
    if limit == NO_LIMIT:
        return NO_LIMIT, NO_LIMIT
    files = segment_files(directories) * directories + min(OTHER_FILES, limit // 4)
    return max(1, limit - files), max(1, limit - min(FILES_RESERVED, limit // 8))


def input_bytes() -> int:
    """Return the maximum size in bytes of all requests being received or processed."""
    return max(INPUT_BYTES_MIN, min(INPUT_BYTES_MAX, memory_bytes() // INPUT_PART))


def memory_bytes(cgroups: str = CGROUPS, membership: str = "/proc/self/cgroup") -> int:
    """Return the available memory: the machine's, or less if limited by a cgroup or RLIMIT_AS."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft != resource.RLIM_INFINITY:
        found.append(soft)
    for path, name in _memory_groups(cgroups, membership):
        # A parent group may have a lower limit; in a container possibly only the top group is
        # visible.
        while True:
            limit = _read_limit(os.path.join(path, name))
            if limit is not None:
                found.append(limit)
            if len(path) <= len(cgroups):
                break
            path = os.path.dirname(path)
    return min(found)


def _memory_groups(cgroups: str, membership: str):
    """Yield (folder, name of the limit file) of the cgroups that count this process's memory."""
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
    except (OSError, ValueError):  # missing, or "max"
        return None
