/* The state of each log's last segment after this process last changed it, stored in a tmpfs
 * file, so that it survives the process but not a power loss.
 *
 * If it shows that a segment is exactly as the previous process wrote it, recovery reads only
 * its headers. A slot's statement stays true permanently: file `inode` held `bytes` bytes of
 * whole batches, `flushed` was on disk, and every change of the file up to `time_ns` was made by
 * the broker. Any later change moves the file's ctime (or the broker records it here).
 *
 * Threads: a slot has one owner, a log, which writes it under its append lock; other threads may
 * advance `time_ns` and `flushed`. Taking and returning slots is locked here. A kill between any
 * two stores leaves the old entry, none, or one that does not match the file. Ordering the
 * stores is enough, because the memory outlives the process. */
#ifndef PYLOG_RESTART_CHECKPOINT_H
#define PYLOG_RESTART_CHECKPOINT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "os/clock.h"

enum {
    RESTART_CHECKPOINT_SLOT_BYTES = 64, /* one cache line per log */
    RESTART_CHECKPOINT_HEADER_BYTES = 4096,
    RESTART_CHECKPOINT_SLOTS_MAX = 1 << 20 /* logs of one directory; others are not recorded */
};

struct restart_checkpoint;
struct restart_checkpoint_slot {
    _Atomic uint64_t inode; /* 0: empty */
    _Atomic int64_t base_offset, bytes, time_ns, flushed;
    int64_t unused[3];
};
/* The previous process's record of one file. */
struct restart_checkpoint_found {
    uint64_t inode;
    int64_t base_offset, bytes, time_ns, flushed;
};

/* Reads the records of a previous process for the directory open as `dir_fd`, and creates this
 * process's file in the directory `where` with the same content. Returns NULL if `where` is not
 * a tmpfs or is full, if the directory's file system is not known to keep the required state, or
 * if the kernel (before 6.8) does not distinguish mounts. */
struct restart_checkpoint *restart_checkpoint_new(int dir_fd, const char *where);
/* On clean shutdown: removes the file while its owner still holds the directory; afterwards the
 * name belongs to the next owner. NULL does nothing. */
void restart_checkpoint_forget(struct restart_checkpoint *w);
void restart_checkpoint_free(struct restart_checkpoint *w); /* also forgets, unless already done */
/* After a disk failure: invalidates all records, because the page cache may differ from the
 * disk. */
void restart_checkpoint_void(struct restart_checkpoint *w);
/* Finds the previous process's record of a file. Returns false if there is none, or if the file
 * is on another file system. */
bool restart_checkpoint_find(struct restart_checkpoint *w, const struct stat *file,
                             struct restart_checkpoint_found *out);
/* Number of files that the previous process recorded. */
uint32_t restart_checkpoint_found_count(struct restart_checkpoint *w);

/* Returns an empty slot, or the existing slot of a file that the previous process recorded.
 * NULL: no slot is free, or the file is on another file system. */
struct restart_checkpoint_slot *restart_checkpoint_acquire_slot(struct restart_checkpoint *w,
                                                                const struct stat *file);
void restart_checkpoint_release_slot(struct restart_checkpoint *w,
                                     struct restart_checkpoint_slot *slot);

static inline int64_t restart_checkpoint_ctime_ns(const struct stat *file) {
    return (int64_t)file->st_ctim.tv_sec * 1000000000 + file->st_ctim.tv_nsec;
}
/* Records the file's current state. */
void restart_checkpoint_record(struct restart_checkpoint_slot *slot, const struct stat *file,
                               int64_t base_offset, int64_t bytes, int64_t flushed);
static inline void restart_checkpoint_clear(struct restart_checkpoint_slot *slot) {
    atomic_store(&slot->inode, 0);
}
/* Call after the bytes are in the file. */
static inline void restart_checkpoint_grown(struct restart_checkpoint_slot *slot, int64_t bytes) {
    atomic_store_explicit(&slot->bytes, bytes, memory_order_release);
    /* The clock of ctimes. */
    atomic_store_explicit(&slot->time_ns, clock_read_ns(CLOCK_REALTIME), memory_order_release);
}
/* Call after any other change of the file by the broker. */
void restart_checkpoint_touched(struct restart_checkpoint_slot *slot);

#endif
