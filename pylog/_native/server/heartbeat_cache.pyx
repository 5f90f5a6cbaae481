"""Cached responses that reactors send themselves, to heartbeats that change nothing.

Owns: the native table and its entries.
Invariants: only responses that are currently offered are in the table; the table outlives its
  entries and the reactors, which hold references on it.
Source: csrc/tables/heartbeat_cache.h.
"""

import os

import cython
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pylog._native.server cimport csrc


# no_gc: it has no members.
@cython.final
@cython.no_gc
cdef class Repeats:
    """The table of one broker. Times are CLOCK_MONOTONIC in ms."""

    def __cinit__(self):
        self.ptr = csrc.repeats_new(int.from_bytes(os.urandom(4), "big"))
        if self.ptr == NULL:
            raise MemoryError("repeats")

    def __dealloc__(self):
        if self.ptr != NULL:
            csrc.repeats_free(self.ptr)

    def void(self):
        """Invalidate all entries, and the responses being prepared: rights or settings have
        changed.
        """
        self.voids += 1
        csrc.repeats_void(self.ptr)

    def __len__(self):
        return csrc.repeats_count(self.ptr)


# no_gc: its only member is a table, which has no members.
@cython.final
@cython.no_gc
cdef class Repeat:
    """One request whose response may be cached; it has no effect until offer() is called."""

    def __cinit__(self, Repeats table not None):
        self.table = table
        self.voids = table.voids

    def __dealloc__(self):
        if self.ptr != NULL:
            csrc.repeats_end(self.table.ptr, self.ptr)

    def offer(self, int64_t until_ms):
        """Allow the response to be cached until then, unless end() is called first."""
        self.until_ms = until_ms
        self.is_offered = True

    def end(self):
        """End the entry and return when it was last used, in ms; -1: never."""
        cdef int64_t last_ms = -1
        self.is_offered = False
        if self.ptr != NULL:
            last_ms = csrc.repeats_end(self.table.ptr, self.ptr)
            self.ptr = NULL
        return last_ms

    def last_ms(self, int64_t after_ms):
        """Return when the entry was last used, in ms; -1: never. End it unless that is later than
        `after_ms`.
        """
        if self.ptr == NULL:
            return -1
        return csrc.repeats_last_ms(self.table.ptr, self.ptr, after_ms)

    cdef int add(self, uint32_t principal, int api_key, int api_version, const uint8_t *address,
                 str client_id, bytes body, bytes frame) except -1:
        """Cache `frame` as the response if it is still offered."""
        cdef csrc.repeat_key key
        cdef bytes encoded
        # A response that waited for the disk may be older than a change of rights or settings.
        if not self.is_offered or self.ptr != NULL or self.voids != self.table.voids:
            return 0
        key.principal, key.address = principal, address
        key.api_key, key.api_version = api_key, api_version
        key.client_id, key.client_id_len = NULL, -1
        if client_id is not None:
            encoded = client_id.encode()
            key.client_id, key.client_id_len = <const uint8_t *>encoded, len(encoded)
        key.body, key.body_len = <const uint8_t *>body, len(body)
        self.ptr = csrc.repeats_add(self.table.ptr, &key, <const uint8_t *>frame, len(frame),
                                    self.until_ms)
        return 0
