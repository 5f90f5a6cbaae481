"""The table of permissions cached for the data plane.

Owns: the native grants table and, through it, references on topics and their logs.
Invariants: topics in the table are in the metadata image; rights carry a generation, and void()
  revokes all of them at once.
Source: csrc/tables/grants.h.
"""

import cython
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc

from pylog._native.log.log cimport Log
from pylog._native.server cimport csrc as c

READ = c.GRANT_READ
WRITE = c.GRANT_WRITE
FOLLOW = c.GRANT_FOLLOW


cdef int _name_leaders(c.topic *topic, list leaders) except -1:
    cdef Py_ssize_t count = len(leaders)
    cdef c.topic_leader *rows = <c.topic_leader *>malloc((count + 1) * sizeof(c.topic_leader))
    if rows == NULL:
        raise MemoryError("grants")
    try:
        if count != topic.partition_count:
            raise ValueError(f"{count} leaders of {topic.partition_count} partitions")
        for i in range(count):
            rows[i].id, rows[i].epoch = leaders[i]
        if not c.topic_set_leaders(topic, rows):
            raise MemoryError("grants")
    finally:
        free(rows)
    return 0


# no_gc: the collector must not clear the directories while the table refers to their logs. Cycles
# are impossible: the only members are directories, in a tuple, which the collector cannot clear
# either.
@cython.final
@cython.no_gc
cdef class Grants:
    """Topics by name and by id, with rights per principal.

    topics_max: limit of entries; above it, install() raises MemoryError.
    """

    def __cinit__(self, uint32_t topics_max=2_000_000):
        self.ptr = c.grants_new(topics_max)
        if self.ptr == NULL:
            raise MemoryError("grants")
        # Topics hold native references on logs, which must be released before their directories.
        self.directories = ()

    def __dealloc__(self):
        if self.ptr != NULL:
            c.grants_free(self.ptr)

    def install(self, str name, bytes topic_id, list logs, bint internal=False,
                bint disk_failed=False, *, list leaders=None):
        """Add or replace a topic. logs: one Log per partition, None without a replica here or, with
        disk_failed, if it cannot be opened. leaders: (broker id, leader epoch) per partition, for
        clients that contact the wrong broker (KIP-951). Raises MemoryError, ValueError.
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
                partitions[i] = NULL if log.closed else log.ptr
                if log.log_dir not in self.directories:
                    self.directories = (*self.directories, log.log_dir)
        topic = c.topic_new(encoded, <const uint8_t *>topic_id, internal, partitions, <int>count)
        free(partitions)
        if topic == NULL:
            raise MemoryError("grants")
        if disk_failed:
            topic.absent_error = c.log_error_code(c.LOG_E_OFFLINE)
        if leaders is not None:
            try:
                _name_leaders(topic, leaders)
            except BaseException:
                c.topic_release(topic)
                raise
        failed = c.grants_install(self.ptr, topic)
        c.topic_release(topic)
        if failed:
            raise MemoryError("the table of grants is full")

    def set_nodes(self, list listeners):
        """Set the brokers' endpoints: [(listener number, [(broker id, host, port, rack or None)])].
        Clients of that listener receive them (KIP-951); racks are used for KIP-392. Raises
        MemoryError.
        """
        cdef list rows = [(number, *row) for number, of in listeners for row in of]
        # Keeps the strings alive while C reads them.
        cdef list texts = [(host.encode(), None if rack is None else rack.encode())
                           for _, _, host, _, rack in rows]
        cdef Py_ssize_t count = len(rows)
        cdef c.node *made = <c.node *>malloc((count + 1) * sizeof(c.node))
        cdef c.nodes *nodes
        if made == NULL:
            raise MemoryError("nodes")
        for i in range(count):
            made[i].listener, made[i].id, made[i].port = rows[i][0], rows[i][1], rows[i][3]
            made[i].host = <bytes>texts[i][0]
            made[i].rack = NULL
            if texts[i][1] is not None:
                made[i].rack = <bytes>texts[i][1]
        nodes = c.nodes_new(made, <uint32_t>count)
        free(made)
        if nodes == NULL:
            raise MemoryError("nodes")
        c.grants_set_nodes(self.ptr, nodes)

    def remove(self, str name):
        """Remove a topic. Requests in progress keep the old one until they complete."""
        cdef bytes encoded = name.encode()
        c.grants_remove(self.ptr, encoded, <unsigned short>len(encoded))

    def allow(self, uint32_t principal, bytes topic_id, uint8_t rights):
        """Add a principal's rights (READ | WRITE) on a topic. Return False if not installed."""
        assert len(topic_id) == 16, topic_id
        return c.grants_allow(self.ptr, principal, <const uint8_t *>topic_id, rights) == 0

    def void(self):
        """Revoke every right: each principal's next request is a miss."""
        c.grants_void(self.ptr)

    def holder(self, uint32_t principal):
        """Return a number for the principal's current rights; void() changes it."""
        return c.grants_holder(self.ptr, principal)
