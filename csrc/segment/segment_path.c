/* Names of files below a log directory. files_lock guards them, because a deletion or a move
 * renames the partition's directory. */
#include "segment/segment_path.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os/lock.h"
#include "segment/log_dir.h"
#include "segment/segment.h"

struct partition_dir *partition_dir_new(struct log_dir *dir, const char *name) {
    struct partition_dir *partition = calloc(1, sizeof *partition);
    if (partition == NULL || (partition->name = strdup(name)) == NULL) {
        free(partition);
        return NULL;
    }
    partition->references = 1;
    partition->dir = dir;
    return partition;
}

void partition_dir_retain(struct partition_dir *partition) {
    uint32_t before = atomic_fetch_add_explicit(&partition->references, 1, memory_order_relaxed);
    assert(before > 0);
    (void)before;
}

void partition_dir_release(struct partition_dir *partition) {
    uint32_t before = atomic_fetch_sub_explicit(&partition->references, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before != 1) return;
    free(partition->name);
    free(partition);
}

void partition_dir_mark_lost(struct partition_dir *partition) {
    struct log_dir *dir = partition->dir;
    if (atomic_exchange(&partition->lost, true)) return;
    atomic_fetch_add(&dir->lost_logs, 1);
    atomic_store(&dir->losses_due, true);
    log_dir_signal_changed(dir);
}

void segment_path_locked(const struct segment *s, const char *extension,
                         char path[SEGMENT_PATH_BYTES]) {
    snprintf(path, SEGMENT_PATH_BYTES, "%s/%020lld.%s", s->partition->name,
             (long long)s->base_offset, extension);
}

void segment_path(struct segment *s, const char *extension, char path[SEGMENT_PATH_BYTES]) {
    lock_acquire(&s->partition->dir->files_lock);
    segment_path_locked(s, extension, path);
    lock_release(&s->partition->dir->files_lock);
}
