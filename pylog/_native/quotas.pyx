"""How fast clients may go, as the reactors count it.

Owns: the native tables of clients and of the rates that their requests count on.
Invariants: (1) a client that was installed before the last void() is unknown; (2) a rate keeps what
  it counted, whatever its limit becomes.
Source: csrc/serve/quotas.h; KIP-13, KIP-124, KIP-219.
"""

import cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pylog._native cimport csrc as c

PRODUCE = c.QUOTA_PRODUCE
FETCH = c.QUOTA_FETCH
REQUEST = c.QUOTA_REQUEST
KINDS = c.QUOTA_KINDS


@cython.final
cdef class Quotas:
    """Clients by principal and client id. samples of window_ms each make up a rate.

    Times, now_ms, are CLOCK_MONOTONIC in milliseconds.
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
        """Makes every client unknown (1). enabled: requests are to be counted at all."""
        c.quotas_void(self.ptr, enabled)

    def install(self, uint32_t principal, bytes client_id, tuple limits, int64_t now_ms):
        """Makes a client known. limits: for each kind (the rate's key, its limit per second) or
        None.

        Clients whose limits have the same key share a rate. Bytes for PRODUCE and FETCH, percent of
        a thread for REQUEST.
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
        """How many connections may begin in a second from each address, 16 bytes, v4-mapped for
        IPv4, and from any other one by itself; 0 without limit.
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
        """Counts a connection from an address; for how many ms it waits to be closed instead, 0
        when it may begin.
        """
        assert len(address) == 16, address
        return c.quotas_connection(self.ptr, address, now_ms)

    def charge(self, uint32_t principal, bytes client_id, int kind, double value, int64_t now_ms,
               bint always=False):
        """Counts `value` for the client; returns for how many ms it is to be left alone, 0 within
        its limit, None when the client is unknown.

        A FETCH that is over the limit counts nothing, unless it is to count always.
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
        """How many bytes a fetch may take at once, at most `most`; None for an unknown client."""
        cdef c.quota_client *client = c.quotas_client(
            self.ptr, principal, client_id, <uint32_t>len(client_id))
        if client == NULL:
            return None
        most = c.quota_client_fetch_max(client, most)
        c.quota_client_release(client)
        return most

    def throttled(self, bytes client_id, int64_t since_ms):
        """For how many ms in all clients of this id were throttled; 0 when none was since
        `since_ms`."""
        return c.quotas_throttled(self.ptr, client_id, <uint32_t>len(client_id), since_ms)

    def count(self):
        """(clients, rates) that are known."""
        cdef uint32_t clients, rates
        c.quotas_count(self.ptr, &clients, &rates)
        return clients, rates
