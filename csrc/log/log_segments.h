/* The segments of a log: references, the list, the directory on disk, and the record of the last
 * segment for the next process. */
#ifndef PYLOG_LOG_SEGMENTS_H
#define PYLOG_LOG_SEGMENTS_H

#include <dirent.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "log/log_struct.h"
#include "os/lock.h"
#include "segment/restart_checkpoint.h"
#include "segment/segment_path.h"

/* Takes a reference to a log found in dir->logs, under logs_lock. Returns false if its last
 * reference is gone. */
bool log_try_retain(struct log *log);
void log_path(struct log *log, const char *file, char path[SEGMENT_PATH_BYTES]);
int32_t log_find_segment(const struct log *log, int64_t offset)
    REQUIRES_SHARED(log->view.access); /* index of the last segment with base <= offset, -1 */
int log_add_segment(struct log *log, struct segment *s)
    LOG_APPENDING(log); /* takes the reference */
/* Renames a segment's files to delete them later. Readers that hold the descriptor can finish.
 * If a rename fails, takes the directory offline and returns false. */
bool log_remove_files(struct log *log, struct segment *s, int64_t delay_ms);
void log_drop_segments(struct log *log, uint32_t from, uint32_t count, int64_t delay_ms)
    LOG_APPENDING(log);

/* A copy of the segment list with references, because searches may block and hold no lock. */
struct log_lookup {
    struct segment **segments;
    uint32_t count;
    int64_t start, end;
};
int log_lookup_begin(struct log *log, struct log_lookup *l);
void log_lookup_end(struct log_lookup *l);
/* Returns the extension and the offset of a name "<20 digits>.<extension>"; NULL for other
 * names. */
const char *log_file_extension(const char *name, int64_t *offset);

struct log_offsets {
    int64_t *at;
    uint32_t count, capacity;
};
struct log_listing {
    struct log_offsets segments, snapshots;
};
/* Reads the next entry of a directory, NULL at its end. Returns 0 or -errno: an error must not
 * count as the end, because the remaining segments would be missing. */
int log_next_entry(DIR *entries, struct dirent **entry);
/* Opens the partition's directory. Returns its descriptor or -errno. */
int log_open_directory(struct log *log);
/* Lists a partition's directory, open as `fd`, which it closes. A negative `fd` is returned.
 * Returns 0 or -errno. */
int log_list(struct log *log, int fd, struct log_listing *listing);
void log_list_free(struct log_listing *listing);
/* Records that the next start can rely on the segment as it is now. `st` is its file's status
 * (NULL: read it here). Pinned. */
void log_restart_checkpoint_record(struct log *log, struct segment *s, const struct stat *st)
    LOG_APPENDING(log);
/* The next start must verify the segment unless it is recorded again. */
void log_restart_checkpoint_clear(struct log *log) LOG_APPENDING(log);
/* With append.lock: the last segment has grown to `bytes`. */
static inline void log_restart_checkpoint_grown(struct log *log, int64_t bytes) {
    struct restart_checkpoint_slot *slot =
        atomic_load_explicit(&log->restart_checkpoint, memory_order_relaxed);
    if (slot != NULL) restart_checkpoint_grown(slot, bytes);
}
/* Call after the recovery point has moved; files of sealed segments may have been trimmed
 * before. */
void log_restart_checkpoint_flushed(struct log *log);
void log_restart_checkpoint_release(struct log *log);

#endif
