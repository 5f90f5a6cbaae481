"""Waits for group commits without a thread: completions arrive through one descriptor.

Owns: one native waiter per slot, and the mailbox for their messages.
Invariants: a slot waits for one offset of one log at a time; a waiting slot has a reference on its
  log, which may be closed during the wait; a slot has at most one message in flight, so that the
  mailbox never overflows.
Source: csrc/log/log.h (log_wait), csrc/os/mailbox.h.
"""

import cython
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free

from pylog._native.log.log cimport Log
from pylog._native.log.log_dir cimport LogDir
from pylog._native.log cimport csrc as c

cdef enum:
    MESSAGES = 32
    # MESSAGE_WAKEs may use half of a mailbox.
    ROOM_PER_SLOT = 4


def syncs_each(LogDir directory not None):
    """Return why each log of the directory is synced separately, however many there are; None if
    groups use one syncfs.
    """
    cdef const char *why = c.log_dir_syncfs_problem(directory.dir)
    return why.decode() if why != NULL else None


# no_gc: clearing the fields of a cycle in any order would empty `directories`, and free the memory
# of the logs before __dealloc__ cancels the waits. Nothing here refers back to this object.
@cython.final
@cython.no_gc
cdef class FlushWaits:
    """Slots 0 to count - 1. fileno() is readable if take() has slots to return."""

    cdef c.mailbox *box
    cdef c.log_waiter *waiters
    cdef c.log_t **logs
    cdef readonly int count
    # Keeps the memory of the logs alive.
    cdef set directories

    def __cinit__(self, int count):
        assert count > 0, count
        self.count = count
        self.directories = set()
        self.logs = <c.log_t **>calloc(count, sizeof(c.log_t *))
        self.waiters = <c.log_waiter *>calloc(count, sizeof(c.log_waiter))
        self.box = c.mailbox_new(<uint32_t>count * ROOM_PER_SLOT)
        if self.waiters == NULL or self.logs == NULL or self.box == NULL:
            raise MemoryError("flush waiters")
        c.mailbox_arm(self.box)

    def __dealloc__(self):
        cdef int slot
        if self.waiters != NULL and self.logs != NULL:
            for slot in range(self.count):
                self.let_go(slot)
        free(self.waiters)
        free(self.logs)
        if self.box != NULL:
            c.mailbox_free(self.box)

    cdef void let_go(self, int slot) noexcept:
        # Another thread may still be unlinking this waiter; log_unwait waits for that, so that it
        # cannot unlink the next wait.
        cdef c.log_t *log = self.logs[slot]
        if log != NULL:
            self.logs[slot] = NULL
            with nogil:
                c.log_unwait(log, &self.waiters[slot])
                c.log_release(log)

    def fileno(self) -> int:
        return c.mailbox_fd(self.box)

    def wait(self, int slot, Log log not None, int64_t offset) -> bool:
        """Wait for everything up to and including `offset` to be flushed. Return True if it already
        is. Otherwise take() returns the slot when it is, or when the log fails or is closed.
        """
        return self.hold(slot, log, offset, c.LOG_WAIT_FLUSHED)

    def wait_acknowledged(self, int slot, Log log not None, int64_t offset) -> bool:
        """Same as wait(), for acks=all: replicated to the in-sync replicas, and flushed if the
        log's configuration requires it. Call it again after take() returned the slot: there may be
        another step.
        """
        if not self.hold(slot, log, offset, c.LOG_WAIT_HIGH_WATERMARK):
            return False
        return not c.log_flush_before_ack(log.ptr) or self.hold(
            slot, log, offset, c.LOG_WAIT_FLUSHED)

    def wait_visible(self, int slot, Log log not None, int64_t offset, bint committed) -> bool:
        """Wait for `offset` to be below the high watermark or, if committed, the last stable
        offset. Return as wait().
        """
        return self.hold(
            slot, log, offset, c.LOG_WAIT_LAST_STABLE if committed else c.LOG_WAIT_HIGH_WATERMARK)

    cdef bint hold(self, int slot, Log log, int64_t offset, c.log_wait_for kind) except -1:
        cdef c.log_waiter *waiter
        cdef c.log_t *held
        cdef bint done
        assert 0 <= slot < self.count, slot
        assert self.logs[slot] == NULL, slot
        log.use()
        waiter = &self.waiters[slot]
        waiter.mailbox = self.box
        waiter.token = <uint32_t>slot
        waiter.offset = offset
        waiter.wait_for = kind
        self.directories.add(log.log_dir)
        held = self.logs[slot] = log.ptr
        c.log_retain(held)
        with nogil:
            done = c.log_wait(held, waiter)
        if done:
            self.let_go(slot)
        return done

    def take(self) -> list:
        """Return the slots woken since the last call. The caller determines the reason."""
        cdef c.message messages[MESSAGES]
        cdef uint32_t taken, i
        cdef int slot
        found = []
        c.mailbox_disarm(self.box)
        while True:
            taken = c.mailbox_take(self.box, messages, MESSAGES)
            for i in range(taken):
                slot = <int>messages[i].token
                assert self.logs[slot] != NULL, slot
                self.let_go(slot)
                found.append(slot)
            if taken == 0 and c.mailbox_arm(self.box):
                return found
