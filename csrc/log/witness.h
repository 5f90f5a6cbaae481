/* What the last segment of each log looked like when this process changed it last, kept where it
 * outlives the process and nothing else: in a file of a tmpfs, gone after a loss of power.
 *
 * A recovery finds there that a segment is exactly what the process before had written, and reads
 * its headers only. The sentence that a slot holds stays true for ever: file `inode` held `bytes`
 * bytes of whole batches, `flushed` was on disk, and whatever changed the file by `time_ns` was the
 * broker. Who changes the file later moves its ctime (or is the broker and says so here).
 *
 * Threads: a slot has one owner, a log, which writes it under its append lock; `time_ns` and
 * `flushed` may be moved by others. Taking and giving back is locked here. A kill between any two
 * stores leaves the old sentence, none, or one that does not fit the file: order of the stores is
 * all that it takes, for the memory outlives the process.
 */
#ifndef PYLOG_WITNESS_H
#define PYLOG_WITNESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

enum {
    WITNESS_SLOT_BYTES = 64, /* a log's own cache line */
    WITNESS_HEADER_BYTES = 4096,
    WITNESS_SLOTS_MAX = 1 << 20 /* logs of one directory; more go without */
};

struct witness;
struct witness_slot {
    _Atomic uint64_t inode; /* 0: says nothing */
    _Atomic int64_t base_offset, bytes, time_ns, flushed;
    int64_t unused[3];
};
/* What was found of a process before. */
struct witness_told {
    uint64_t inode;
    int64_t base_offset, bytes, time_ns, flushed;
};

/* Reads what a process before left for the directory open as `dir_fd`, and begins a file of this
 * one's, with that in it, in the directory `where`. NULL: that is no tmpfs, or full, the directory
 * is on no file system that is known to keep what it needs, or the kernel (before 6.8) cannot tell
 * one mount from another. */
struct witness *witness_new(int dir_fd, const char *where);
/* A stop that is none of a crash: the file goes; while its owner has the directory, for the name is
 * the next one's then. NULL does nothing. */
void witness_forget(struct witness *w);
void witness_free(struct witness *w); /* forgets too, when that was not done */
/* The disk failed: from now on nothing that is told counts, for what the page cache holds may not
 * be what the disk has. */
void witness_void(struct witness *w);
/* Of a file: what the process before told. False: nothing, or it is on another file system. */
bool witness_find(struct witness *w, const struct stat *file, struct witness_told *out);
/* How many files the process before told of. */
uint32_t witness_told_count(struct witness *w);

/* A slot that says nothing; for the file of which the process before told, what it had. NULL: there
 * is no room, or the file is on another file system. */
struct witness_slot *witness_take(struct witness *w, const struct stat *file);
void witness_give_back(struct witness *w, struct witness_slot *slot);

static inline int64_t witness_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t); /* As ctimes. */
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static inline int64_t witness_ctime_ns(const struct stat *file) {
    return (int64_t)file->st_ctim.tv_sec * 1000000000 + file->st_ctim.tv_nsec;
}
/* The file is as the slot says from now on. */
void witness_say(struct witness_slot *slot, const struct stat *file, int64_t base_offset,
                 int64_t bytes, int64_t flushed);
static inline void witness_unsay(struct witness_slot *slot) { atomic_store(&slot->inode, 0); }
/* After the bytes are in the file. */
static inline void witness_grown(struct witness_slot *slot, int64_t bytes) {
    atomic_store_explicit(&slot->bytes, bytes, memory_order_release);
    atomic_store_explicit(&slot->time_ns, witness_now_ns(), memory_order_release);
}
/* After any other change of the file by the broker. */
void witness_touched(struct witness_slot *slot);

#endif
