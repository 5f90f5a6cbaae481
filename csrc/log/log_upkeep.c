/* Upkeep: rolling by time, retention, the log's start, truncation, deletion. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "log/log_state.h"

enum { LOG_NAME_BYTES_MAX = 255 };

int log_roll_if_due(struct log *log, int64_t now_ms) {
    int result = 0;
    pthread_mutex_lock(&log->append_lock);
    int64_t unflushed_ms = now_ms - atomic_load(&log->last_flush_ms);
    /* A clock that was set back puts nothing off: less than no time has passed. */
    bool ask = atomic_load(&log->end_offset) > atomic_load(&log->flushed) &&
               (unflushed_ms >= log->config.flush_ms || unflushed_ms < 0);
    if (log->writable && !atomic_load(&log->deleted)) {
        struct segment *s = log->segments[log->segment_count - 1];
        if (now_ms < s->created_ms) s->created_ms = now_ms;
        /* By the clock since the segment began: record times of a quiet log say nothing. */
        if (log_may_roll(log) && now_ms - s->created_ms > log->config.segment_ms - s->jitter_ms)
            result = log_roll(log, atomic_load(&log->end_offset), now_ms);
    }
    pthread_mutex_unlock(&log->append_lock);
    if (ask) flusher_ask(log);
    return result;
}

int log_seal(struct log *log, int64_t now_ms) {
    pthread_mutex_lock(&log->append_lock);
    int result = atomic_load(&log->deleted) ? LOG_E_DELETED : log_make_writable(log, now_ms);
    if (result == 0 && log_may_roll(log))
        result = log_roll(log, atomic_load(&log->end_offset), now_ms);
    pthread_mutex_unlock(&log->append_lock);
    return result;
}

/* ---- retention ---- */

static int64_t log_segment_end(const struct log *log, uint32_t i) {
    return i + 1 < log->segment_count ? log->segments[i + 1]->base_offset
                                      : atomic_load(&log->end_offset);
}

/* The largest timestamp of a segment; where no record is left that tells, of the next that has one:
 * it is older. -1: none. */
static int64_t log_segment_time(const struct log *log, uint32_t i) {
    int64_t time = -1;
    for (; i < log->segment_count && time < 0; i++)
        time = atomic_load(&log->segments[i]->largest_timestamp);
    return time;
}

/* How many segments from the front lie before the log's start or, with `by_settings`, are no
 * longer kept by the settings; append_lock held. */
static uint32_t log_retention_count(struct log *log, bool by_settings, int64_t now_ms) {
    const struct log_config *c = &log->config;
    bool deletes = by_settings && c->cleanup_delete;
    int64_t excess = atomic_load(&log->size_bytes) - c->retention_bytes,
            high = atomic_load(&log->high_watermark);
    uint32_t count = 0;
    for (; count < log->segment_count; count++) {
        struct segment *s = log->segments[count];
        int64_t bytes = atomic_load(&s->bytes), end = log_segment_end(log, count),
                time = log_segment_time(log, count);
        if (bytes == 0 || end > high || end <= s->base_offset) break;
        bool before_start = end <= atomic_load(&log->start_offset);
        bool old = deletes && c->retention_ms >= 0 && time >= 0 && now_ms - time > c->retention_ms;
        bool large = deletes && c->retention_bytes >= 0 && excess - bytes >= 0;
        if (!before_start && !old && !large) break;
        excess -= bytes;
    }
    return count;
}

static void log_raise_start(struct log *log, int64_t offset) {
    pthread_mutex_lock(&log->view_lock);
    if (offset > atomic_load(&log->start_offset)) atomic_store(&log->start_offset, offset);
    if (atomic_load(&log->high_watermark) < offset) atomic_store(&log->high_watermark, offset);
    log_set_last_stable(log);
    if (log->epochs_loaded && epochs_truncate_start(&log->epochs, offset))
        log_mark(&log->epochs_marks);
    pthread_mutex_unlock(&log->view_lock);
}

static int log_drop_front(struct log *log, bool by_settings, int64_t now_ms) {
    int result = 0;
    pthread_mutex_lock(&log->append_lock);
    if (atomic_load(&log->deleted))
        result = LOG_E_DELETED;
    else if (log_dir_offline(log->home->dir))
        result = LOG_E_OFFLINE;
    uint32_t count = result == 0 ? log_retention_count(log, by_settings, now_ms) : 0;
    /* The writable segment goes too when all of it is due: a new one is made first. */
    if (count > 0 && count == log->segment_count) {
        result = log_make_writable(log, now_ms);
        if (result == 0 && count == log->segment_count)
            result = log_roll(log, atomic_load(&log->end_offset), now_ms);
        /* No room for a new one, which the others make: the last one goes next time. */
        if (log_is_short(result) && log->segment_count > 1) {
            count = log->segment_count - 1;
            result = 0;
        }
    }
    /* What is left of these batches is their producers' state: on disk before they go. */
    if (result == 0 && count > 0 && count < log->segment_count &&
        log->segments[count]->base_offset >= atomic_load(&log->flushed) &&
        (result = log_flush_index(log->segments[count], "snapshot")) != 0)
        result = log_storage_error(log, result, "fdatasync");
    if (result == 0 && count > 0) {
        /* The start moves first: a reader that finds the file gone finds its offset out of range.
         */
        log_raise_start(log, log_segment_end(log, count - 1));
        log_drop_segments(log, 0, count, log->config.file_delete_delay_ms);
        meter_add_shared(&log->home->dir->segments_deleted, count);
        result = (int)count;
    }
    pthread_mutex_unlock(&log->append_lock);
    return result;
}

int log_apply_retention(struct log *log, int64_t now_ms) {
    return log_drop_front(log, true, now_ms);
}

/* Retention by the settings is another's decision and time: the answer names this start. */
int log_move_start(struct log *log, int64_t offset, int64_t now_ms) {
    pthread_mutex_lock(&log->append_lock);
    int result = atomic_load(&log->deleted) ? LOG_E_DELETED : 0;
    if (result == 0 && (offset < 0 || offset > atomic_load(&log->high_watermark)))
        result = LOG_E_RANGE;
    if (result == 0) log_raise_start(log, offset);
    pthread_mutex_unlock(&log->append_lock);
    if (result != 0) return result;
    result = log_drop_front(log, false, now_ms);
    return result < 0 ? result : 0;
}

void log_expire_producers(struct log *log, int64_t now_ms) {
    pthread_mutex_lock(&log->append_lock);
    if (log->producers_loaded)
        producers_expire(&log->producers, now_ms, log->config.producer_id_expiration_ms);
    pthread_mutex_unlock(&log->append_lock);
}

uint8_t *log_copy_producers(struct log *log, int64_t now_ms, size_t *bytes) {
    pthread_mutex_lock(&log->append_lock);
    uint8_t *copy = NULL;
    if (log_load_producers(log, now_ms) == 0) copy = producers_encode(&log->producers, bytes);
    pthread_mutex_unlock(&log->append_lock);
    return copy;
}

uint32_t log_segments(struct log *log, int64_t *triples, uint32_t max) {
    pthread_mutex_lock(&log->view_lock);
    uint32_t count = log->segment_count;
    for (uint32_t i = 0; i < count && i < max; i++) {
        struct segment *s = log->segments[i];
        triples[3 * (size_t)i] = s->base_offset;
        triples[3 * (size_t)i + 1] = atomic_load(&s->bytes);
        triples[3 * (size_t)i + 2] = atomic_load(&s->largest_timestamp);
    }
    pthread_mutex_unlock(&log->view_lock);
    return count;
}

/* ---- truncation ---- */

/* Cuts the last segment before the batch that holds `offset`; *end is where the log ends then. */
static int log_truncate_last(struct log *log, int64_t offset, int64_t now_ms, int64_t *end) {
    struct segment *s = log->segments[log->segment_count - 1];
    int64_t position, first, bytes = atomic_load(&s->bytes);
    int result = segment_pin(s, false);
    if (result != 0) return log_storage_error(log, result, "open");
    result = log_locate(s, offset, bytes, false, &position, &first);
    struct segment_hole hole;
    /* As a batch that holds the offset goes, so does a hole that took it. */
    if (result == LOG_E_CORRUPT && position > 0 &&
        segment_hole_at(s, position - 1, false, &hole) == 1) {
        position = hole.position;
        first = hole.offset;
        result = 1;
    }
    if (result == 1) {
        /* A hole in front of all batches goes with them: the segment would hold no offset. */
        if (first == s->base_offset) position = 0;
        *end = first < offset ? first : offset; /* Compaction may have left a gap there. */
        segment_index_truncate(s, first, position);
        pthread_mutex_lock(&log->view_lock);
        atomic_store(&s->bytes, position);
        pthread_mutex_unlock(&log->view_lock);
        atomic_fetch_sub(&log->size_bytes, bytes - position);
        atomic_store(&s->allocated, 0);
        segment_holes_forget(s);
        s->since_entry_bytes = 0;
        int cut = segment_cut(s, position);
        if (cut == 0 && (cut = log_aborted_cut(s, first)) == 0 &&
            log_is_short(cut = log_aborted_write(log, s)))
            cut = 0;
        if (cut != 0) result = log_storage_error(log, cut, "ftruncate");
        /* The largest timestamp may have been cut off: headers tell. */
        struct log_walk walk = {.check_from = INT64_MAX, .replay_from = INT64_MAX, .index = true};
        if (result == 1) result = log_walk_segment(log, s, &walk, now_ms);
        /* What the files held is not to be found by a clean start. */
        if (result == 0 && !log_is_short(cut = segment_index_write(s, true)) && cut != 0)
            result = log_storage_error(log, cut, "pwrite");
    }
    segment_unpin(s);
    return result < 0 ? result : 0;
}

static int log_truncate_locked(struct log *log, int64_t offset) {
    int64_t now_ms = log_dir_now_ms(CLOCK_REALTIME), end = offset;
    int result = log_make_writable(log, now_ms);
    if (result != 0) return result;
    log_witness_unsay(log);
    uint32_t keep = log->segment_count;
    while (keep > 0 && log->segments[keep - 1]->base_offset >= offset) keep--;
    /* From the end, and on disk before anything is appended: a start after a power cut must not
     * find them behind what comes now. */
    bool dropped = log->segment_count > keep;
    while (log->segment_count > keep && !log_dir_offline(log->home->dir))
        log_drop_segments(log, log->segment_count - 1, 1, 0);
    log->writable = false;
    if (log_dir_offline(log->home->dir)) return LOG_E_OFFLINE;
    char name[SEGMENT_PATH_BYTES];
    log_path(log, ".", name);
    if (dropped && (result = log_dir_sync(log->home->dir, name)) != 0)
        return log_storage_error(log, result, "fsync");
    if (keep > 0) {
        atomic_store(&log->segments[keep - 1]->sealed, false);
        if ((result = log_truncate_last(log, offset, now_ms, &end)) != 0) return result;
    }
    pthread_mutex_lock(&log->view_lock);
    log->truncations++;
    free(log->hints);
    log->hints = NULL;
    atomic_store(&log->end_offset, end);
    if (atomic_load(&log->start_offset) > end) atomic_store(&log->start_offset, end);
    if (atomic_load(&log->high_watermark) > end) atomic_store(&log->high_watermark, end);
    if (atomic_load(&log->flushed) > end) atomic_store(&log->flushed, end);
    if (epochs_truncate_end(&log->epochs, end)) log_mark(&log->epochs_marks);
    pthread_mutex_unlock(&log->view_lock);
    log->producers_loaded = false;
    result = log_restore_producers(log, end, now_ms);
    log->producers_loaded = result == 0;
    log->first_open = producers_first_open(&log->producers);
    pthread_mutex_lock(&log->view_lock);
    log_set_last_stable(log);
    pthread_mutex_unlock(&log->view_lock);
    return result != 0 ? result : log_make_writable(log, now_ms);
}

int log_truncate(struct log *log, int64_t offset) {
    int result = 0;
    pthread_mutex_lock(&log->flush_lock);
    log_lock_quiet(log);
    if (atomic_load(&log->deleted))
        result = LOG_E_DELETED;
    else if (offset < atomic_load(&log->end_offset))
        result = log_truncate_locked(log, offset < 0 ? 0 : offset);
    log_unlock_quiet(log);
    pthread_mutex_unlock(&log->flush_lock);
    return result;
}

/* ---- deletion ---- */

/* How much of a directory's name is `<topic>-<partition>`: moved logs have a suffix already, and a
 * second one would keep Kafka from starting. */
static size_t log_name_bytes(const char *name) {
    size_t n = strlen(name), suffix = LOG_DELETE_SUFFIX_BYTES;
    const char *end = name + n - suffix;
    bool has = n > suffix && *end == '.' && strspn(end + 1, "0123456789abcdef") == 32 &&
               (strcmp(end + 33, "-delete") == 0 || strcmp(end + 33, "-future") == 0);
    return has ? n - suffix : n;
}

static int log_deleted_name(const char *name, char out[LOG_NAME_BYTES_MAX + 1]) {
    uint8_t id[16];
    char hex[33];
    if (getrandom(id, sizeof id, 0) != (ssize_t)sizeof id) return -EIO;
    for (int i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", id[i]);
    /* A name that would be too long loses the end of its topic; the id keeps it unique. */
    size_t whole = log_name_bytes(name), topic = whole;
    while (topic > 0 && name[topic] != '-') topic--;
    size_t index = whole - topic, tail = index + LOG_DELETE_SUFFIX_BYTES;
    const char *partition = name + topic;
    if (topic + tail > LOG_NAME_BYTES_MAX) topic = LOG_NAME_BYTES_MAX - tail;
    snprintf(out, LOG_NAME_BYTES_MAX + 1, "%.*s%.*s.%s-delete", (int)topic, name, (int)index,
             partition, hex);
    return 0;
}

int log_delete(struct log *log, int64_t now_ms) {
    struct log_dir *dir = log->home->dir;
    char name[LOG_NAME_BYTES_MAX + 1];
    (void)now_ms;
    pthread_mutex_lock(&log->flush_lock);
    pthread_mutex_lock(&log->append_lock);
    bool before = atomic_exchange(&log->deleted, true);
    log_witness_unsay(log);
    int64_t delay = log->config.file_delete_delay_ms;
    int result = before ? LOG_E_DELETED : 0;
    if (!before) {
        pthread_mutex_lock(&dir->files_lock);
        char *renamed =
            (result = log_deleted_name(log->home->name, name)) == 0 ? strdup(name) : NULL;
        if (renamed != NULL && (result = log_dir_rename(dir, log->home->name, name)) == 0) {
            free(log->home->name);
            log->home->name = renamed;
        } else {
            if (renamed == NULL) result = -ENOMEM;
            free(renamed);
        }
        pthread_mutex_unlock(&dir->files_lock);
    }
    pthread_mutex_unlock(&log->append_lock);
    pthread_mutex_unlock(&log->flush_lock);
    if (before) return result;
    log_wait_fail(log, LOG_E_DELETED);
    if (result == 0) log_dir_remove_later(dir, name, delay);
    return result == 0 || result == -ENOENT ? 0 : log_storage_error(log, result, "rename");
}
