"""Waiting for the disk without a thread: group commits told through one descriptor.

Owns: one native waiter per slot, and the mailbox that their letters come to.
Called by: coordinator.store, on the event loop.
Invariants: (1) a slot waits for one offset of one log at a time; (2) a log with a linked waiter is
  kept alive by its slot; (3) a slot has at most one letter under way, so that the mailbox never
  overflows.
Source: csrc/log.h (log_wait), csrc/mailbox.h.
"""

import cython
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free

from pylog._native.log cimport Log
from pylog._native cimport csrc as c

cdef enum:
    LETTERS = 32
    # LETTER_WAKEs may take half of a mailbox.
    ROOM_PER_SLOT = 4


# No GC here: clearing a cycle's fields in any order would empty `logs`, and free one of them,
# before __dealloc__ takes back what still waits (2). Nothing that it holds leads back to it.
@cython.final
@cython.no_gc
cdef class FlushWaits:
    """Slots 0 to count - 1. fileno() is readable when take() has something to tell."""

    cdef c.mailbox *box
    cdef c.log_waiter *waiters
    cdef readonly int count
    cdef list logs

    def __cinit__(self, int count):
        assert count > 0, count
        self.count = count
        self.logs = [None] * count
        self.waiters = <c.log_waiter *>calloc(count, sizeof(c.log_waiter))
        self.box = c.mailbox_new(<uint32_t>count * ROOM_PER_SLOT)
        if self.waiters == NULL or self.box == NULL:
            raise MemoryError("flush waiters")
        c.mailbox_arm(self.box)

    def __dealloc__(self):
        cdef int slot
        cdef Log log
        if self.waiters != NULL:
            for slot in range(self.count):
                if self.logs[slot] is not None:
                    log = self.logs[slot]
                    c.log_unwait(log.ptr, &self.waiters[slot])
            free(self.waiters)
        if self.box != NULL:
            c.mailbox_free(self.box)

    def fileno(self) -> int:
        return c.mailbox_fd(self.box)

    def wait(self, int slot, Log log not None, int64_t offset) -> bool:
        """Asks for everything up to and including `offset` to be flushed. True: it is already.
        Else the slot turns up in take(): when it is done, or when the log fails or goes."""
        cdef c.log_waiter *waiter
        cdef bint done
        assert 0 <= slot < self.count, slot
        assert self.logs[slot] is None, slot
        log.use()
        waiter = &self.waiters[slot]
        waiter.mailbox = self.box
        waiter.token = <uint32_t>slot
        waiter.offset = offset
        waiter.wait_for = c.LOG_WAIT_FLUSHED
        self.logs[slot] = log
        with nogil:
            done = c.log_wait(log.ptr, waiter)
        if done:
            self.logs[slot] = None
        return done

    def take(self) -> list:
        """The slots that were woken since the last call. The caller looks why."""
        cdef c.letter letters[LETTERS]
        cdef uint32_t taken, i
        cdef Log log
        cdef int slot
        found = []
        c.mailbox_disarm(self.box)
        while True:
            taken = c.mailbox_take(self.box, letters, LETTERS)
            for i in range(taken):
                slot = <int>letters[i].token
                log = self.logs[slot]
                assert log is not None, slot
                # Whoever posted may still be about to unlink it: that must not hit the next wait.
                c.log_unwait(log.ptr, &self.waiters[slot])
                self.logs[slot] = None
                found.append(slot)
            if taken == 0 and c.mailbox_arm(self.box):
                return found
