"""Client quotas, as the reactors enforce them.

Owns: the native tables of clients and of the rates that their requests count against.
Invariants: void() makes every client unknown; a rate keeps its samples if its limit changes.
Source: csrc/tables/quotas.h; KIP-13, KIP-124, KIP-219.
"""

import cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pylog._native.server cimport csrc as c

PRODUCE = c.QUOTA_PRODUCE
FETCH = c.QUOTA_FETCH
REQUEST = c.QUOTA_REQUEST
KINDS = c.QUOTA_KINDS


@cython.final
cdef class Quotas:
    """Clients by principal and client id. A rate consists of samples of window_ms each.

    now_ms is CLOCK_MONOTONIC in milliseconds.
    """

    def __cinit__(self, uint32_t samples, int64_t window_ms):
        assert samples > 0 and window_ms > 0, (samples, window_ms)
        self.ptr = c.quotas_new(samples, window_ms)
        if self.ptr == NULL:
            raise MemoryError("quotas")

    def __dealloc__(self):
        if self.ptr != NULL:
            c.quotas_free(self.ptr)

    def void(self, bint enabled):
        """Make every client unknown. enabled: False if no quota is set; requests are then not
        counted.
        """
        c.quotas_void(self.ptr, enabled)

    def install(self, uint32_t principal, bytes client_id, tuple limits, int64_t now_ms):
        """Add a client. limits: per kind (the rate's key, its limit per second) or None.

        Clients with the same key share a rate. Limits are bytes for PRODUCE and FETCH, percent of a
        thread for REQUEST. Raises MemoryError.
        """
        cdef c.quota_limit made[c.QUOTA_KINDS]
        cdef bytes key
        assert len(limits) == c.QUOTA_KINDS, limits
        for kind in range(c.QUOTA_KINDS):
            made[kind].key = NULL
            if limits[kind] is not None:
                key, made[kind].per_second = limits[kind]
                made[kind].key = key
                made[kind].key_len = <uint32_t>len(key)
        if c.quotas_install(self.ptr, principal, client_id, <uint32_t>len(client_id), made,
                            now_ms) != 0:
            raise MemoryError("quotas")

    def set_addresses(self, dict limits, double others):
        """Limit new connections per second: limits by address (16 bytes, v4-mapped for IPv4);
        others: for each other address; 0 for no limit. Raises MemoryError.
        """
        cdef size_t count = len(limits)
        cdef c.quota_address *rows = <c.quota_address *>malloc(
            (count + 1) * sizeof(c.quota_address))
        cdef const uint8_t *ip
        cdef size_t i = 0
        cdef int failed
        if rows == NULL:
            raise MemoryError("quotas")
        for address, per_second in limits.items():
            assert len(address) == 16, address
            ip = address
            memcpy(rows[i].ip, ip, 16)
            rows[i].per_second = per_second
            i += 1
        failed = c.quotas_set_addresses(self.ptr, rows, <uint32_t>count, others)
        free(rows)
        if failed:
            raise MemoryError("quotas")

    def connection(self, bytes address, int64_t now_ms):
        """Count a connection from an address. Return 0 if it is accepted, or for how many ms to
        delay closing it.
        """
        assert len(address) == 16, address
        return c.quotas_connection(self.ptr, address, now_ms)

    def charge(self, uint32_t principal, bytes client_id, int kind, double value, int64_t now_ms,
               bint always=False):
        """Count `value` for the client. Return for how many ms to mute it, 0 if within its limit,
        None if the client is unknown.

        A FETCH over the limit is not counted, except with `always`.
        """
        cdef int32_t wait_ms
        cdef c.quota_client *client = c.quotas_client(
            self.ptr, principal, client_id, <uint32_t>len(client_id))
        if client == NULL:
            return None
        if kind == c.QUOTA_FETCH and not always:
            wait_ms = c.quota_client_charge_fetch(client, value, now_ms)
        else:
            wait_ms = c.quota_client_charge(client, <c.quota_kind>kind, value, now_ms)
        c.quota_client_release(client)
        return wait_ms

    def fetch_max(self, uint32_t principal, bytes client_id, int32_t most):
        """Return the bytes that one fetch may take, at most `most`; None for an unknown client."""
        cdef c.quota_client *client = c.quotas_client(
            self.ptr, principal, client_id, <uint32_t>len(client_id))
        if client == NULL:
            return None
        most = c.quota_client_fetch_max(client, most)
        c.quota_client_release(client)
        return most

    def throttled(self, bytes client_id, int64_t since_ms):
        """Return the total throttle time in ms of all clients with this id that were throttled
        since `since_ms`.
        """
        return c.quotas_throttled(self.ptr, client_id, <uint32_t>len(client_id), since_ms)

    def count(self):
        """Return (clients, rates) in the tables."""
        cdef uint32_t clients, rates
        c.quotas_count(self.ptr, &clients, &rates)
        return clients, rates
