/* What the last segment of each log looked like when this process last changed it, stored where it
 * outlives the process but not a loss of power: in a file of a tmpfs.
 *
 * A recovery finds there that a segment is exactly what the process before had written, and reads
 * its headers only. What a slot says stays true for ever: file `inode` held `bytes` bytes of whole
 * batches, `flushed` was on disk, and whatever changed the file by `time_ns` was the broker. Who
 * changes the file later moves its ctime (or is the broker and records it here).
 *
 * Threads: a slot has one owner, a log, which writes it under its append lock; `time_ns` and
 * `flushed` may be moved by others. Taking and giving back is locked here. A kill between any two
 * stores leaves the old entry, none, or one that does not fit the file: order of the stores is
 * all that it takes, for the memory outlives the process.
 */
#ifndef PYLOG_CRASH_STATE_H
#define PYLOG_CRASH_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

enum {
    CRASH_STATE_SLOT_BYTES = 64, /* a log's own cache line */
    CRASH_STATE_HEADER_BYTES = 4096,
    CRASH_STATE_SLOTS_MAX = 1 << 20 /* logs of one directory; more go without */
};

struct crash_state;
struct crash_state_slot {
    _Atomic uint64_t inode; /* 0: empty */
    _Atomic int64_t base_offset, bytes, time_ns, flushed;
    int64_t unused[3];
};
/* What the previous process left about one file. */
struct crash_state_found {
    uint64_t inode;
    int64_t base_offset, bytes, time_ns, flushed;
};

/* Reads what a previous process left for the directory open as `dir_fd`, and begins this one's file
 * in the directory `where` with the same content. NULL: `where` is no tmpfs, or full, the directory
 * is on no file system that is known to keep what is needed, or the kernel (before 6.8) does not
 * distinguish mounts. */
struct crash_state *crash_state_new(int dir_fd, const char *where);
/* On clean shutdown: removes the file, while its owner still has the directory: afterwards the name
 * is the next owner's. NULL does nothing. */
void crash_state_forget(struct crash_state *w);
void crash_state_free(struct crash_state *w); /* forgets too, when that was not done */
/* The disk failed: from now on nothing recorded counts, for what the page cache holds may not
 * be what the disk has. */
void crash_state_void(struct crash_state *w);
/* What the previous process recorded of a file. False: nothing, or it is on another file system. */
bool crash_state_find(struct crash_state *w, const struct stat *file,
                      struct crash_state_found *out);
/* How many files the previous process recorded. */
uint32_t crash_state_found_count(struct crash_state *w);

/* An empty slot; of a file that the previous process recorded, its entry's slot. NULL: there is no
 * room, or the file is on another file system. */
struct crash_state_slot *crash_state_take(struct crash_state *w, const struct stat *file);
void crash_state_give_back(struct crash_state *w, struct crash_state_slot *slot);

static inline int64_t crash_state_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t); /* As ctimes. */
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static inline int64_t crash_state_ctime_ns(const struct stat *file) {
    return (int64_t)file->st_ctim.tv_sec * 1000000000 + file->st_ctim.tv_nsec;
}
/* The file is as the slot says from now on. */
void crash_state_record(struct crash_state_slot *slot, const struct stat *file, int64_t base_offset,
                        int64_t bytes, int64_t flushed);
static inline void crash_state_clear(struct crash_state_slot *slot) {
    atomic_store(&slot->inode, 0);
}
/* After the bytes are in the file. */
static inline void crash_state_grown(struct crash_state_slot *slot, int64_t bytes) {
    atomic_store_explicit(&slot->bytes, bytes, memory_order_release);
    atomic_store_explicit(&slot->time_ns, crash_state_now_ns(), memory_order_release);
}
/* After any other change of the file by the broker. */
void crash_state_touched(struct crash_state_slot *slot);

#endif
