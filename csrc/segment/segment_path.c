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

struct segment_home *segment_home_new(struct log_dir *dir, const char *name) {
    struct segment_home *home = calloc(1, sizeof *home);
    if (home == NULL || (home->name = strdup(name)) == NULL) {
        free(home);
        return NULL;
    }
    home->references = 1;
    home->dir = dir;
    return home;
}

void segment_home_retain(struct segment_home *home) {
    uint32_t before = atomic_fetch_add_explicit(&home->references, 1, memory_order_relaxed);
    assert(before > 0);
    (void)before;
}

void segment_home_release(struct segment_home *home) {
    uint32_t before = atomic_fetch_sub_explicit(&home->references, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before != 1) return;
    free(home->name);
    free(home);
}

void segment_home_lose(struct segment_home *home) {
    struct log_dir *dir = home->dir;
    if (atomic_exchange(&home->lost, true)) return;
    atomic_fetch_add(&dir->lost_logs, 1);
    atomic_store(&dir->losses_due, true);
    log_dir_signal_changed(dir);
}

void segment_path_locked(const struct segment *s, const char *extension,
                         char path[SEGMENT_PATH_BYTES]) {
    snprintf(path, SEGMENT_PATH_BYTES, "%s/%020lld.%s", s->home->name, (long long)s->base_offset,
             extension);
}

void segment_path(struct segment *s, const char *extension, char path[SEGMENT_PATH_BYTES]) {
    lock_acquire(&s->home->dir->files_lock);
    segment_path_locked(s, extension, path);
    lock_release(&s->home->dir->files_lock);
}
