"""The table of what the data plane may do without asking.

Owns: the native grants table and, through it, references on topics and their logs.
Called by: broker (installs on a miss, removes on deletion), reactor (borrows the pointer for its
  threads).
Invariants: (1) a topic in the table is in the metadata image; (2) rights are stamped with a
  generation, and `void` makes
  all of them unknown at once.
Source: csrc/serve/grants.h.
"""

import cython
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc

from pylog._native.log cimport Log
from pylog._native cimport csrc as c

READ = c.GRANT_READ
WRITE = c.GRANT_WRITE


# no_gc: the collector must not clear the directories while the table refers to their logs. It can
# be in no cycle: its members are directories, in a tuple, which the collector cannot clear either.
@cython.final
@cython.no_gc
cdef class Grants:
    """Topics by name and by id, with rights per principal.

    topics_max: entries that the table may hold; install() raises MemoryError beyond.
    """

    def __cinit__(self, uint32_t topics_max=2_000_000):
        self.ptr = c.grants_new(topics_max)
        if self.ptr == NULL:
            raise MemoryError("grants")
        # Topics hold native references on logs, which must be gone before their directories.
        self.directories = ()

    def __dealloc__(self):
        if self.ptr != NULL:
            c.grants_free(self.ptr)

    def install(self, str name, bytes topic_id, list logs, bint internal=False,
                bint disk_failed=False):
        """Makes a topic known. logs: one Log per partition, None where no replica is here, or,
        disk_failed, where it cannot be opened.
        """
        cdef c.topic *topic
        cdef Log log
        cdef Py_ssize_t count = len(logs)
        cdef c.log_t **partitions = <c.log_t **>malloc((count + 1) * sizeof(c.log_t *))
        cdef bytes encoded = name.encode()
        cdef int failed
        if partitions == NULL:
            raise MemoryError("grants")
        if len(topic_id) != 16:
            free(partitions)
            raise ValueError(f"a topic id has 16 bytes, not {len(topic_id)}")
        for i in range(count):
            partitions[i] = NULL
            if logs[i] is not None:
                log = logs[i]
                partitions[i] = log.ptr
                if log.log_dir not in self.directories:
                    self.directories = (*self.directories, log.log_dir)
        topic = c.topic_new(encoded, <const uint8_t *>topic_id, internal, partitions, <int>count)
        free(partitions)
        if topic == NULL:
            raise MemoryError("grants")
        if disk_failed:
            topic.absent_error = c.log_error_code(c.LOG_E_OFFLINE)
        failed = c.grants_install(self.ptr, topic)
        c.topic_release(topic)
        if failed:
            raise MemoryError("the table of grants is full")

    def remove(self, str name):
        """Forgets a topic; requests in flight keep the old one until they are done."""
        cdef bytes encoded = name.encode()
        c.grants_remove(self.ptr, encoded, <unsigned short>len(encoded))

    def allow(self, uint32_t principal, bytes topic_id, uint8_t rights):
        """Sets a principal's rights (READ | WRITE) on a topic; False when it is not installed."""
        assert len(topic_id) == 16, topic_id
        return c.grants_allow(self.ptr, principal, <const uint8_t *>topic_id, rights) == 0

    def void(self):
        """Makes every right unknown: each principal's next request asks again."""
        c.grants_void(self.ptr)
