/* Opening and closing: a clean log costs only memory; the first append reads its files. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log/log_internal.h"

enum { LOG_NAME_BYTES_MAX = 255 };

void log_path(struct log *log, const char *file, char path[SEGMENT_PATH_BYTES]) {
    lock_acquire(&log->home->dir->files_lock);
    snprintf(path, SEGMENT_PATH_BYTES, "%s/%s", log->home->name, file);
    lock_release(&log->home->dir->files_lock);
}

/* ---- the segment list ---- */

int log_add_segment(struct log *log, struct segment *s) {
    assert(log->view.segment_count == 0 ||
           log->view.segments[log->view.segment_count - 1]->base_offset < s->base_offset);
    log_view_change(log);
    int result = 0;
    if (log->view.segment_count == log->view.segment_capacity) {
        uint32_t capacity = log->view.segment_capacity == 0 ? 1 : log->view.segment_capacity * 2;
        struct segment **segments =
            realloc(log->view.segments, capacity * sizeof(struct segment *));
        if (segments == NULL) {
            result = LOG_E_MEMORY;
        } else {
            log->view.segments = segments;
            log->view.segment_capacity = capacity;
        }
    }
    if (result == 0) log->view.segments[log->view.segment_count++] = s;
    assert(log->view.segment_count <= log->view.segment_capacity);
    log_view_changed(log);
    if (result != 0) segment_release(s);
    return result;
}

/* If a file keeps its name, the next start finds it and its records return. */
static bool log_remove_file(struct log_dir *dir, const char *from, int64_t delay_ms) {
    char to[SEGMENT_PATH_BYTES + 16];
    snprintf(to, sizeof to, "%s.deleted", from);
    int result = log_dir_rename(dir, from, to);
    if (result == 0) {
        log_dir_remove_later(dir, to, delay_ms);
        return true;
    }
    /* There may be no space for the longer name. */
    if (disk_is_short(-result)) result = log_dir_unlink(dir, from);
    if (result == 0 || result == -ENOENT) return true;
    log_dir_fail(dir, -result, "rename");
    return false;
}

bool log_remove_files(struct log *log, struct segment *s, int64_t delay_ms) {
    static const char *const extensions[] = {"log", "index", "timeindex", "txnindex", "snapshot"};
    struct log_dir *dir = log->home->dir;
    char from[SEGMENT_PATH_BYTES];
    lock_acquire(&dir->files_lock);
    s->removed = true;
    lock_release(&dir->files_lock);
    for (size_t i = 0; i < sizeof extensions / sizeof *extensions; i++) {
        segment_path(s, extensions[i], from);
        if (!log_remove_file(dir, from, delay_ms)) return false;
    }
    return true;
}

void log_drop_segments(struct log *log, uint32_t from, uint32_t count, int64_t delay_ms) {
    assert(from + count <= log->view.segment_count);
    struct segment **gone = count == 0 ? NULL : malloc(count * sizeof *gone);
    if (gone == NULL) return;
    /* For all segments, even if deleting the first ones ends the shortage. */
    if (log_dir_short_of_space(log->home->dir)) delay_ms = 0;
    log_view_change(log);
    memcpy(gone, log->view.segments + from, count * sizeof *gone);
    memmove(log->view.segments + from, log->view.segments + from + count,
            (log->view.segment_count - from - count) * sizeof *gone);
    log->view.segment_count -= count;
    free(log->view.hints);
    log->view.hints = NULL;
    int64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) bytes += atomic_load(&gone[i]->bytes);
    int64_t before = atomic_fetch_sub(&log->view.size_bytes, bytes);
    assert(before >= bytes);
    (void)before;
    log_view_changed(log);
    /* In order, and stop at the first file that stays: the next start would treat a gap as data
     * loss. */
    bool removed = true;
    for (uint32_t i = 0; i < count; i++) {
        removed = removed && log_remove_files(log, gone[i], delay_ms);
        segment_release(gone[i]);
    }
    free(gone);
}

/* ---- derived state ---- */

/* Adds the epochs of a segment's batches below `upto`. */
static int log_collect_epochs(struct log *log, struct segment *s, int64_t upto,
                              struct epochs *epochs) LOG_APPENDING(log) {
    struct segment_scan scan;
    struct batch_header h;
    if (atomic_load(&s->bytes) == 0 || s->base_offset >= upto) return 0;
    int result = segment_pin(s, false);
    if (result != 0) return log_storage_error(log, result, "open");
    segment_scan_begin(&scan, s, 0, atomic_load(&s->bytes), false);
    while ((result = segment_scan_peek(&scan, &h)) == 1 && h.base_offset < upto) {
        if (h.leader_epoch > epochs_last(epochs) &&
            epochs_assign(epochs, h.leader_epoch, h.base_offset) < 0)
            break;
        segment_scan_skip(&scan, &h);
    }
    segment_unpin(s);
    if (result == 1) return h.base_offset < upto ? LOG_E_MEMORY : 0;
    /* Damaged bytes contain no epoch. */
    return result == LOG_E_CORRUPT ? 0 : result;
}

/* Reads the epochs from the headers of all batches below `upto`, because their file is missing
 * or damaged. */
static int log_rebuild_epochs(struct log *log, int64_t upto, struct epochs *epochs)
    LOG_APPENDING(log) {
    int result = 0;
    for (uint32_t i = 0; i < log->view.segment_count && result == 0; i++)
        result = log_collect_epochs(log, log->view.segments[i], upto, epochs);
    if (result != 0) {
        epochs_free(epochs);
        return result;
    }
    epochs_truncate_start(epochs, atomic_load(&log->ends.start_offset));
    if (epochs->count > 0) log_mark(&log->flush.epochs_marks);
    return 0;
}

/* Renames a file that cannot be parsed, so that an operator can examine it. */
static int log_set_epochs_aside(struct log *log, const char *path, size_t bytes) {
    char aside[SEGMENT_PATH_BYTES + 16];
    snprintf(aside, sizeof aside, "%s.damaged", path);
    int result = log_dir_rename(log->home->dir, path, aside);
    if (result != 0 && !log_is_short(result)) return log_storage_error(log, result, "rename");
    log_damage_note_epochs(log->home, (int64_t)bytes);
    return 0;
}

int log_load_epochs(struct log *log) { return log_load_epochs_upto(log, INT64_MAX); }

int log_load_epochs_upto(struct log *log, int64_t upto) {
    if (log->append.epochs_loaded) return 0;
    char path[SEGMENT_PATH_BYTES];
    uint8_t *text = NULL;
    size_t len = 0;
    struct epochs epochs = {NULL, 0, 0};
    log_path(log, "leader-epoch-checkpoint", path);
    int result = log_dir_read_file(log->home->dir, path, EPOCHS_TEXT_BYTES_MAX, &text, &len);
    /* The file exists but cannot be read. */
    if (result != 0 && result != -ENOENT && result != LOG_E_CORRUPT)
        return log_storage_error(log, result, "open");
    bool missing = result == -ENOENT;
    if (result == 0) result = epochs_decode(&epochs, (const char *)text, len);
    free(text);
    if (result != 0) epochs_free(&epochs);
    if (log_is_short(result)) return log_storage_error(log, result, "open");
    if (result != 0) {
        int aside = missing ? 0 : log_set_epochs_aside(log, path, len);
        result = aside != 0 ? aside : log_rebuild_epochs(log, upto, &epochs);
        if (result != 0) return result;
    }
    epochs_truncate_end(&epochs, atomic_load(&log->ends.end_offset) + (log->append.clean ? 1 : 0));
    if (log->append.clean && log->append.last_epoch > epochs_last(&epochs)) {
        epochs_assign(&epochs, log->append.last_epoch, atomic_load(&log->ends.end_offset));
        log_mark(&log->flush.epochs_marks);
    }
    log_view_change(log);
    assert(log->append.epochs.entries == NULL);
    log->append.epochs = epochs;
    log->append.epochs_loaded = true;
    log_view_changed(log);
    return 0;
}

int log_write_epochs(struct log *log, bool sync, uint32_t *made) {
    char path[SEGMENT_PATH_BYTES];
    size_t len;
    log_append_lock(log);
    *made = atomic_load(&log->flush.epochs_marks.made);
    char *text = epochs_encode(&log->append.epochs, &len);
    log_append_unlock(log);
    if (text == NULL) return -ENOMEM;
    log_path(log, "leader-epoch-checkpoint", path);
    int result = log_dir_write_file(log->home->dir, path, text, len, sync);
    free(text);
    if (result != 0) return result;
    log_mark(&log->flush.files_marks);
    if (sync) atomic_store(&log->flush.epochs_marks.synced, *made);
    return result;
}

int log_load_producers(struct log *log, int64_t now_ms) {
    if (log->append.producers_loaded) return 0;
    int result = log_restore_producers(log, atomic_load(&log->ends.end_offset), now_ms);
    if (result != 0) return result;
    log->append.producers_loaded = true;
    log->append.first_open = producers_first_open(&log->append.producers);
    return 0;
}

int log_write_snapshot(struct log *log, int64_t offset) {
    char file[64], path[SEGMENT_PATH_BYTES];
    size_t len;
    if (log->append.snapshot_offset == offset) return 0;
    uint8_t *bytes = producers_encode(&log->append.producers, &len);
    if (bytes == NULL) return -ENOMEM;
    assert(offset > log->append.snapshot_offset);
    snprintf(file, sizeof file, "%020lld.snapshot", (long long)offset);
    log_path(log, file, path);
    /* Replace by rename: a flush or retention that finds the file relies on it. */
    int result = log_dir_write_file(log->home->dir, path, bytes, len, false);
    free(bytes);
    if (result == 0) log->append.snapshot_offset = offset;
    return result;
}

/* ---- the writable end ---- */

static bool log_folder_is_missing(struct log *log) {
    char name[SEGMENT_PATH_BYTES];
    log_path(log, ".", name);
    return faccessat(log->home->dir->fd, name, F_OK, 0) != 0 && errno == ENOENT;
}

int log_storage_error(struct log *log, int result, const char *call) {
    if (log_is_error(result)) return result; /* already a log_error */
    if (result == -ENOENT) {
        if (log_folder_is_missing(log)) log_lose_files(log);
        return log_offline(log) ? LOG_E_IO : LOG_E_CORRUPT;
    }
    return log_dir_error(log->home->dir, -result, call);
}

/* Checks the last segment's file: its size must match the checkpoint. */
static int log_adopt_last(struct log *log, struct segment *s) LOG_APPENDING(log) {
    struct stat st;
    struct batch_header h;
    struct segment_scan scan;
    if (fstat(s->fd, &st) != 0) return log_storage_error(log, -errno, "fstat");
    int64_t bytes = atomic_load(&s->bytes), timestamp, offset;
    if (st.st_size < bytes) return LOG_E_CORRUPT;
    if (st.st_size > bytes && log_dir_disk(log->home->dir)->ftruncate(s->fd, bytes) != 0)
        return log_storage_error(log, -errno, "ftruncate");
    int damaged = segment_index_damaged(s);
    if (damaged < 0) return log_storage_error(log, damaged, "open");
    if (damaged == 1) {
        struct log_walk walk = {.check_from = INT64_MAX, .replay_from = INT64_MAX, .index = true};
        int result = log_walk_segment(log, s, &walk, 0);
        if (result != 0) return result;
    } else if (segment_index_last_time(s, &timestamp, &offset) &&
               timestamp >= atomic_load(&s->largest_timestamp)) {
        atomic_store(&s->largest_timestamp, timestamp);
        atomic_store(&s->largest_timestamp_offset, offset);
    }
    segment_scan_begin(&scan, s, 0, bytes, false);
    if (segment_scan_peek(&scan, &h) == 1) s->first_timestamp = h.max_timestamp;
    s->created_ms = (int64_t)st.st_mtim.tv_sec * 1000;
    return 0;
}

void log_tune_last(struct log *log, struct segment *s) {
    s->index_interval_bytes = log->view.config.index_interval_bytes;
    int64_t jitter = log->view.config.segment_jitter_ms < INT32_MAX
                         ? log->view.config.segment_jitter_ms
                         : INT32_MAX;
    uint32_t random;
    s->jitter_ms = 0;
    if (jitter > 0 && getrandom(&random, sizeof random, GRND_NONBLOCK) == (ssize_t)sizeof random)
        s->jitter_ms = (int32_t)(random % (uint32_t)jitter);
}

int log_create_last(struct log *log, int64_t base_offset, int64_t now_ms, struct segment **out) {
    struct segment *s = segment_new(log->home, base_offset, 0, -1);
    if (s == NULL) return LOG_E_MEMORY;
    char path[SEGMENT_PATH_BYTES];
    /* A segment with this base before a crash may have left aborted transactions. */
    segment_path(s, "txnindex", path);
    int result = log_dir_unlink(log->home->dir, path);
    if (result == 0 || result == -ENOENT) result = segment_pin(s, true);
    if (result != 0) {
        segment_release(s);
        return log_storage_error(log, result, "open");
    }
    segment_index_reset(s);
    assert(atomic_load(&s->bytes) == 0);
    s->created_ms = now_ms;
    segment_unpin(s);
    log_tune_last(log, s);
    *out = s;
    return 0;
}

/* Never append to a segment that a branch shares: create another one after it. */
static int log_follow_shared(struct log *log, struct segment *s, int64_t now_ms)
    LOG_APPENDING(log) {
    struct segment *next;
    int64_t end = atomic_load(&log->ends.end_offset);
    if (end <= s->base_offset) return LOG_E_CORRUPT;
    int result = log_create_last(log, end, now_ms, &next);
    if (result == 0) result = log_add_segment(log, next);
    if (result != 0) return result;
    atomic_store(&s->sealed, true);
    log_mark(&log->flush.files_marks);
    return 0;
}

int log_make_writable(struct log *log, int64_t now_ms) {
    if (log->append.writable) return 0;
    int result;
    if (log->view.segment_count == 0) {
        struct segment *s;
        result = log_create_last(log, atomic_load(&log->ends.end_offset), now_ms, &s);
        if (result == 0) result = log_add_segment(log, s);
        if (result != 0) return result;
        log_mark(&log->flush.files_marks);
    } else {
        struct segment *s = log->view.segments[log->view.segment_count - 1];
        if ((result = segment_pin(s, false)) != 0) return log_storage_error(log, result, "open");
        if (segment_is_shared(s)) {
            segment_unpin(s);
            if ((result = log_follow_shared(log, s, now_ms)) != 0) return result;
        } else {
            segment_unseal(s);
            atomic_store(&s->flush_done, false);
            if (log->append.clean) result = log_adopt_last(log, s);
            segment_unpin(s);
            if (result != 0) return result;
        }
    }
    log_tune_last(log, log->view.segments[log->view.segment_count - 1]);
    if ((result = log_load_epochs(log)) != 0 || (result = log_load_producers(log, now_ms)) != 0)
        return result;
    log->append.clean = false;
    log->append.writable = true;
    assert(log->append.epochs_loaded);
    assert(log->append.producers_loaded);
    struct segment *last = log->view.segments[log->view.segment_count - 1];
    assert(!atomic_load(&last->sealed));
    assert(last->base_offset <= atomic_load(&log->ends.end_offset));
    if (segment_pin(last, false) == 0) {
        log_crash_state_record(log, last, NULL);
        segment_unpin(last);
    }
    return 0;
}

/* ---- open ---- */

static int log_write_metadata(struct log *log) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    char text[64], path[SEGMENT_PATH_BYTES], id[23];
    uint8_t padded[18] = {0}, *old;
    size_t len;
    memcpy(padded, log->topic_id, 16);
    for (int i = 0; i < 22; i++) {
        int bit = i * 6, word = padded[bit / 8] << 8 | padded[bit / 8 + 1];
        id[i] = digits[(word >> (10 - bit % 8)) & 63];
    }
    id[22] = 0;
    int n = snprintf(text, sizeof text, "version: 0\ntopic_id: %s", id);
    log_path(log, "partition.metadata", path);
    int result = log_dir_read_file(log->home->dir, path, 4096, &old, &len);
    if (result == 0) {
        while (len > 0 && old[len - 1] == '\n') len--;
        bool same = len == (size_t)n && memcmp(old, text, len) == 0,
             whole = len == (size_t)n && memcmp(old, text, 21) == 0;
        free(old);
        if (same) return 0;
        if (whole)
            return LOG_E_CORRUPT; /* Another incarnation of the topic: do not serve its records. */
    } else if (result != -ENOENT)
        return log_storage_error(log, result, "open");
    /* Missing, or left empty by a power loss. */
    result = log_dir_write_file(log->home->dir, path, text, (size_t)n, false);
    result = result == 0 ? 0 : log_storage_error(log, result, "write");
    /* Serving records is more important: a later start writes the file. */
    return result == LOG_E_FULL ? 0 : result;
}

/* The checkpoint comes from a file: check that offsets rise and the ends are in order. */
static bool log_checkpoint_holds(const struct log_checkpoint *c) {
    int64_t before = -1;
    for (uint32_t i = 0; i < c->segment_count; i++) {
        const int64_t *triple = c->segments + 3 * (size_t)i;
        if (triple[0] <= before || triple[1] < 0) return false;
        before = triple[0];
    }
    return c->log_end_offset >= 0 && c->log_end_offset <= LOG_OFFSET_MAX + INT32_MAX &&
           before <= c->log_end_offset && c->log_start_offset <= c->log_end_offset;
}

static int log_open_clean(struct log *log, const struct log_checkpoint *checkpoint)
    LOG_APPENDING(log) {
    if (!log_checkpoint_holds(checkpoint)) return LOG_E_CORRUPT;
    for (uint32_t i = 0; i < checkpoint->segment_count; i++) {
        const int64_t *triple = checkpoint->segments + 3 * (size_t)i;
        struct segment *s = segment_new(log->home, triple[0], triple[1], triple[2]);
        if (s == NULL) return LOG_E_MEMORY;
        s->index_interval_bytes = log->view.config.index_interval_bytes;
        atomic_store(&s->sealed, i + 1 < checkpoint->segment_count);
        atomic_store(&s->flush_done, i + 1 < checkpoint->segment_count);
        int result = log_add_segment(log, s);
        if (result != 0) return result;
        log->view.size_bytes += triple[1];
    }
    log->append.clean = true;
    log->ends.end_offset = checkpoint->log_end_offset;
    log->ends.flushed = checkpoint->log_end_offset;
    log->append.last_epoch = checkpoint->last_epoch;
    log->ends.start_offset = checkpoint->log_start_offset;
    if (checkpoint->log_start_offset < 0)
        log->ends.start_offset = log->view.segment_count > 0 ? log->view.segments[0]->base_offset
                                                             : checkpoint->log_end_offset;
    int64_t watermark = checkpoint->high_watermark;
    if (watermark > log->ends.end_offset) watermark = log->ends.end_offset;
    log->ends.high_watermark =
        watermark < log->ends.start_offset ? log->ends.start_offset : watermark;
    log->ends.last_stable = log->ends.high_watermark;
    return 0;
}

/* The log is not shared yet, so no locks are needed. */
static void log_init(struct log *log, const uint8_t topic_id[16],
                     const struct log_config *config) NO_THREAD_SAFETY_ANALYSIS {
    log->references = 1;
    log->role.leader_epoch = -1;
    log->role.in_sync_count = log->role.maximal_count = 2;
    log->role.in_sync_count_min = 1;
    log->append.first_open = log->append.snapshot_offset = -1;
    log->flush.held_point = INT64_MAX;
    log->append.last_epoch = -1;
    memcpy(log->topic_id, topic_id, 16);
    log->view.config = *config;
    log->role.flush_before_ack = config->acks_all_flush;
    log->role.flush_before_fetch = config->flush_before_fetch;
    log->role.flushed_records_only = config->flushed_records_only;
    lock_init_adaptive(&log->append.lock);
    lock_init_adaptive(&log->view.lock);
    lock_init_adaptive(&log->wait.lock);
    lock_init(&log->flush.lock);
}

/* The last reference is gone, so no locks are needed. */
static void log_free(struct log *log) NO_THREAD_SAFETY_ANALYSIS {
    assert(!log->queue.wanted); /* Queues and running flushes hold references. */
    assert(!log->queue.slow_wanted);
    assert(!log->queue.flushing);
    assert(atomic_load(&log->append.quiet) == 0);
    for (int kind = 0; kind < LOG_WAIT_KINDS; kind++) {
        assert(log->wait.lists[kind] == NULL);
        assert(atomic_load(&log->wait.counts[kind]) == 0);
    }
    for (uint32_t i = 0; i < log->view.segment_count; i++) segment_release(log->view.segments[i]);
    segment_home_release(log->home);
    producers_free(&log->append.producers);
    epochs_free(&log->append.epochs);
    free(log->view.segments);
    free(log->view.hints);
    free(log->view.completed);
    free(log->view.replicas);
    lock_destroy(&log->append.lock);
    lock_destroy(&log->view.lock);
    lock_destroy(&log->wait.lock);
    lock_destroy(&log->flush.lock);
    free(log);
}

int log_open(struct log_dir *dir, const char *topic, int32_t partition, const uint8_t topic_id[16],
             const struct log_config *config, const struct log_checkpoint *checkpoint,
             int64_t now_ms, struct log **out) {
    char name[SEGMENT_PATH_BYTES];
    *out = NULL;
    if (strlen(topic) > 249 || topic[0] == 0) return LOG_E_CORRUPT;
    snprintf(name, sizeof name, "%s-%d", topic, partition);
    return log_open_as(dir, name, topic_id, config, checkpoint, now_ms, out);
}

/* From here on, flushes of the directory include the log: its ends must match its batches. */
static void log_enlist(struct log *log) {
    struct log_dir *dir = log->home->dir;
    assert(atomic_load(&log->ends.flushed) <= atomic_load(&log->ends.end_offset));
    lock_acquire(&dir->logs_lock);
    assert(!log->link.listed);
    assert(dir->logs == NULL || dir->logs->link.prev == NULL);
    log->link.next = dir->logs;
    if (log->link.next != NULL) log->link.next->link.prev = log;
    dir->logs = log;
    log->link.listed = true;
    lock_release(&dir->logs_lock);
}

static void log_delist(struct log *log) {
    struct log_dir *dir = log->home->dir;
    lock_acquire(&dir->logs_lock);
    assert(log->link.listed);
    assert(log->link.prev != NULL || dir->logs == log);
    if (log->link.prev != NULL)
        log->link.prev->link.next = log->link.next;
    else
        dir->logs = log->link.next;
    if (log->link.next != NULL) log->link.next->link.prev = log->link.prev;
    log->link.listed = false;
    lock_release(&dir->logs_lock);
}

int log_open_as(struct log_dir *dir, const char *name, const uint8_t topic_id[16],
                const struct log_config *config, const struct log_checkpoint *checkpoint,
                int64_t now_ms, struct log **out) {
    *out = NULL;
    if (log_dir_offline(dir)) return LOG_E_OFFLINE;
    if (strlen(name) > LOG_NAME_BYTES_MAX || strchr(name, '/') != NULL) return LOG_E_CORRUPT;
    struct log *log = calloc(1, sizeof *log);
    if (log == NULL) return LOG_E_MEMORY;
    log_init(log, topic_id, config);
    if ((log->home = segment_home_new(dir, name)) == NULL) {
        free(log);
        return LOG_E_MEMORY;
    }
    int result = 0;
    log_append_lock(log);
    if (checkpoint->clean) {
        result = log_open_clean(log, checkpoint);
    } else {
        bool fresh = log_dir_disk(dir)->mkdirat(dir->fd, name, 0755) == 0;
        if (!fresh && errno != EEXIST) result = log_storage_error(log, -errno, "mkdir");
        if (result == 0) result = log_write_metadata(log);
        if (result == 0) result = log_recover(log, checkpoint, now_ms);
        /* Up to the recovery point, names are on disk like contents. */
        if (fresh || log->ends.flushed < log->ends.end_offset) log_mark(&log->flush.files_marks);
    }
    log_append_unlock(log);
    if (result != 0) {
        log_release(log);
        return result;
    }
    log_enlist(log);
    *out = log;
    return 0;
}

void log_retain(struct log *log) {
    uint32_t before = atomic_fetch_add_explicit(&log->references, 1, memory_order_relaxed);
    assert(before > 0); /* Use log_try_retain for logs found in a list. */
    (void)before;
}

bool log_try_retain(struct log *log) {
    uint32_t before = atomic_load_explicit(&log->references, memory_order_relaxed);
    while (before > 0)
        if (atomic_compare_exchange_weak_explicit(&log->references, &before, before + 1,
                                                  memory_order_acq_rel, memory_order_relaxed))
            return true;
    return false;
}

void log_release(struct log *log) {
    if (log == NULL) return;
    uint32_t before = atomic_fetch_sub_explicit(&log->references, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before != 1) return;
    if (log->link.listed) log_delist(log);
    assert(atomic_load(&log->references) == 0);
    log_crash_state_give_back(log);
    log_free(log);
}

/* For the last segment, without concurrent appends. Kafka's tools expect both files. */
static int log_close_indexes(struct segment *s) {
    /* Without entries the files are not needed, so a full disk is no error. */
    bool needed = segment_index_entries(s, false) > 0;
    int result = segment_index_write(s, true);
    if (result == 0) result = segment_index_finish(s);
    return !needed && log_is_short(result) ? 0 : result;
}

int log_close_files(struct log *log) {
    int result = 0, pinned;
    if (atomic_load(&log->deleted)) return LOG_E_DELETED;
    if (log_offline(log)) return LOG_E_OFFLINE;
    log_lock_quiet(log);
    if (log->append.writable) {
        struct segment *s = log->view.segments[log->view.segment_count - 1];
        if ((pinned = segment_pin(s, false)) == 0) {
            result = log_close_indexes(s);
            if (result == 0) result = segment_trim(s);
            if (result == 0) log_crash_state_record(log, s, NULL);
            segment_unpin(s);
        }
        if (pinned != 0) result = pinned;
        if (result == 0 && log->append.producers_loaded)
            result = log_write_snapshot(log, atomic_load(&log->ends.end_offset));
        /* The next append opens it again. */
        log->append.writable = false;
    }
    log_unlock_quiet(log);
    return result != 0 ? log_storage_error(log, result, "close") : 0;
}

int log_close_clean(struct log *log, int64_t now_ms) {
    (void)now_ms;
    int result = log_close_files(log);
    if (result == 0) result = log_flush(log);
    /* A clean start would rely on the file that could not be written for lack of space. */
    return result == 0 && atomic_load(&log->flush.held_point) != INT64_MAX ? LOG_E_FULL : result;
}

void log_abandon(struct log *log) {
    lock_acquire(&log->flush.lock);
    log_lock_quiet(log);
    atomic_store(&log->deleted, true);
    log_crash_state_clear(log);
    /* References may outlive this call for long, so close unused descriptors now. */
    for (uint32_t i = 0; i < log->view.segment_count; i++)
        segment_close_idle(log->view.segments[i]);
    log_unlock_quiet(log);
    lock_release(&log->flush.lock);
    log_wait_fail(log, LOG_E_DELETED);
}

/* ---- settings and role ---- */

void log_set_config(struct log *log, const struct log_config *config) {
    log_append_lock(log);
    log_view_change(log);
    log->view.config = *config;
    if (log->view.segment_count > 0)
        log->view.segments[log->view.segment_count - 1]->index_interval_bytes =
            config->index_interval_bytes;
    log_replicas_bound(log);
    log_view_changed(log);
    log_append_unlock(log);
    atomic_store(&log->role.flush_before_ack, config->acks_all_flush);
    atomic_store(&log->role.flush_before_fetch, config->flush_before_fetch);
    atomic_store(&log->role.flushed_records_only, config->flushed_records_only);
    log_replicas_look(log);
    if (log_hides_records(log)) flusher_ask(log);
}

const struct log_config *log_config_get(struct log *log, struct log_config *copy) {
    log_view_lock(log);
    *copy = log->view.config;
    log_view_unlock(log);
    return copy;
}
