/* Opening and closing: a clean log costs only memory; the first append reads its files. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log/active_segment.h"
#include "log/flush_queue.h"
#include "log/log_ends.h"
#include "log/log_failure.h"
#include "log/log_replicas.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "log/log_waiters.h"
#include "log_manager/log_manager.h"
#include "log_manager/recovery.h"
#include "os/disk.h"
#include "os/lock.h"
#include "segment/leader_epochs.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/producer_state.h"
#include "segment/segment.h"
#include "segment/segment_path.h"

enum { LOG_NAME_BYTES_MAX = 255 };

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
    int result = log_dir_read_file(log->partition->dir, path, 4096, &old, &len);
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
    result = log_dir_write_file(log->partition->dir, path, text, (size_t)n, false);
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
        struct segment *s = segment_new(log->partition, triple[0], triple[1], triple[2]);
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
    log->flush.held_recovery_point = INT64_MAX;
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
    assert(!log->queue.lazy_wanted);
    assert(!log->queue.flushing);
    assert(atomic_load(&log->append.quiet) == 0);
    for (int kind = 0; kind < LOG_WAIT_KINDS; kind++) {
        assert(log->wait.lists[kind] == NULL);
        assert(atomic_load(&log->wait.counts[kind]) == 0);
    }
    for (uint32_t i = 0; i < log->view.segment_count; i++) segment_release(log->view.segments[i]);
    partition_dir_release(log->partition);
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
    struct log_dir *dir = log->partition->dir;
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
    struct log_dir *dir = log->partition->dir;
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
    if ((log->partition = partition_dir_new(dir, name)) == NULL) {
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

void log_release(struct log *log) {
    if (log == NULL) return;
    uint32_t before = atomic_fetch_sub_explicit(&log->references, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before != 1) return;
    if (log->link.listed) log_delist(log);
    assert(atomic_load(&log->references) == 0);
    log_restart_checkpoint_release(log);
    log_free(log);
}

int log_close_clean(struct log *log, int64_t now_ms) {
    (void)now_ms;
    int result = log_close_files(log);
    if (result == 0) result = log_flush(log);
    /* A clean start would rely on the file that could not be written for lack of space. */
    return result == 0 && atomic_load(&log->flush.held_recovery_point) != INT64_MAX ? LOG_E_FULL
                                                                                    : result;
}

void log_abandon(struct log *log) {
    lock_acquire(&log->flush.lock);
    log_lock_quiet(log);
    atomic_store(&log->deleted, true);
    log_restart_checkpoint_clear(log);
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
    log_replicas_set_min_isr(log);
    log_view_changed(log);
    log_append_unlock(log);
    atomic_store(&log->role.flush_before_ack, config->acks_all_flush);
    atomic_store(&log->role.flush_before_fetch, config->flush_before_fetch);
    atomic_store(&log->role.flushed_records_only, config->flushed_records_only);
    log_replicas_advance(log);
    if (log_hides_records(log)) flush_queue_add(log);
}

const struct log_config *log_config_get(struct log *log, struct log_config *copy) {
    log_view_lock(log);
    *copy = log->view.config;
    log_view_unlock(log);
    return copy;
}
