/* A pass over one log, in three parts: transactions (headers only, if there are any), the map,
 * and the new segments. Sources are groups of adjacent segments that together fit one segment; a
 * group's new file is `<base>.log.cleaned` until log_manager/swap.c makes it the segment. */
#include "compaction/pass.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compaction/batch_filter.h"
#include "compaction/pass_internal.h"
#include "format/batch.h"
#include "format/compress.h"
#include "log/log_failure.h"
#include "log/log_producers.h"
#include "log/log_struct.h"
#include "log_manager/log_manager.h"
#include "log_manager/swap.h"
#include "os/disk.h"
#include "os/lock.h"
#include "segment/damage_report.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_index.h"
#include "segment/segment_path.h"
#include "segment/segment_scan.h"

enum { CLEAN_OUTPUT_BYTES = 1 << 20 };

/* ---- segments that can be cleaned ---- */

/* Returns how many segments, from the first, end at or below the last stable offset and have
 * records that are old enough. */
static uint32_t cleanable_count(const struct log *log, const struct log_clean_rules *rules)
    REQUIRES_SHARED(log->view.access) {
    int64_t stable = atomic_load(&log->ends.last_stable);
    uint32_t count = 0;
    while (count + 1 < log->view.segment_count) {
        struct segment *s = log->view.segments[count];
        if (log->view.segments[count + 1]->base_offset > stable || !atomic_load(&s->sealed)) break;
        /* Reads the file's time at most once per sealed segment without timestamps. */
        if (rules->min_compaction_lag_ms > 0 && s->base_offset >= rules->first_dirty &&
            segment_written_ms(s) > rules->now_ms - rules->min_compaction_lag_ms)
            break;
        count++;
    }
    return count;
}

void log_clean_estimate(struct log *log, const struct log_clean_rules *rules,
                    struct log_clean_estimate *out) {
    memset(out, 0, sizeof *out);
    log_view_lock(log);
    int64_t start = atomic_load(&log->ends.start_offset);
    out->first_dirty = rules->first_dirty > start ? rules->first_dirty : start;
    out->first_dirty_timestamp = -1;
    uint32_t count = cleanable_count(log, rules);
    out->cleanable_end = count < log->view.segment_count ? log->view.segments[count]->base_offset
                                                         : atomic_load(&log->ends.end_offset);
    for (uint32_t i = 0; i < count; i++) {
        int64_t bytes = atomic_load(&log->view.segments[i]->bytes);
        if (log->view.segments[i + 1]->base_offset <= out->first_dirty) {
            out->clean_bytes += bytes;
            continue;
        }
        if (out->dirty_bytes == 0) {
            out->first_dirty_timestamp = log->view.segments[i]->first_timestamp;
            if (out->first_dirty_timestamp < 0)
                out->first_dirty_timestamp = atomic_load(&log->view.segments[i]->largest_timestamp);
        }
        out->dirty_bytes += bytes;
    }
    if (out->first_dirty > out->cleanable_end) out->first_dirty = out->cleanable_end;
    log_view_unlock(log);
}

/* ---- begin, end ---- */

static int by_producer(const void *a, const void *b) {
    const struct clean_last *x = a, *y = b;
    return x->producer_id < y->producer_id ? -1 : x->producer_id > y->producer_id;
}

/* Copies the position of each producer's last batch, which must stay, even if empty. */
static int copy_producers(struct log_clean *c) {
    struct log *log = c->log;
    log_append_lock(log);
    int result = log_load_producers(log, c->rules.now_ms);
    if (log->append.producers.count > 0) c->decided = atomic_load(&log->ends.end_offset);
    if (result == 0 && log->append.producers.count > 0) {
        c->last = malloc(log->append.producers.count * sizeof *c->last);
        if (c->last == NULL) result = LOG_E_MEMORY;
        for (uint32_t i = 0; result == 0 && i < log->append.producers.capacity; i++) {
            const struct producers_entry *e = &log->append.producers.slots[i];
            if (e->producer_id < 0) continue; /* A free slot has no other valid field. */
            int64_t last = e->batch_count > 0 ? e->batches[e->newest].last_offset : -1;
            c->last[c->last_count++] = (struct clean_last){e->producer_id, last, e->epoch};
        }
    }
    log_append_unlock(log);
    if (c->last_count > 1) qsort(c->last, c->last_count, sizeof *c->last, by_producer);
    return result;
}

static bool is_last_of_producer(const struct log_clean *c, const struct batch_header *h) {
    struct clean_last wanted = {h->producer_id, 0, 0};
    if (h->producer_id < 0 || c->last_count == 0) return false;
    const struct clean_last *found =
        bsearch(&wanted, c->last, c->last_count, sizeof *c->last, by_producer);
    if (found == NULL) return false;
    return found->last_offset >= 0
               ? found->last_offset == batch_last_offset(h)
               : (h->attributes & BATCH_CONTROL) != 0 && h->producer_epoch == found->epoch;
}

static int take_sources(struct log_clean *c) {
    struct log *log = c->log;
    int result = 0;
    log_view_lock(log);
    uint32_t count = cleanable_count(log, &c->rules);
    c->stable = atomic_load(&log->ends.last_stable);
    c->truncations = log->view.truncations;
    /* Segments after the cleanable ones provide a base offset and may contain markers. */
    c->sources = malloc((log->view.segment_count + 1) * sizeof(struct segment *));
    if (c->sources == NULL) result = LOG_E_MEMORY;
    for (uint32_t i = 0; result == 0 && i < log->view.segment_count; i++) {
        segment_retain(log->view.segments[i]);
        c->sources[c->source_count++] = log->view.segments[i];
    }
    c->clean_count = count;
    assert(result != 0 || count == 0 || count < c->source_count); /* The writable one stays. */
    int64_t start = atomic_load(&log->ends.start_offset);
    if (c->rules.first_dirty < start) c->rules.first_dirty = start;
    log_view_unlock(log);
    if (result == 0 && (count == 0 || c->sources[count]->base_offset <= c->rules.first_dirty))
        result = 1;
    return result;
}

int log_clean_begin(struct log *log, struct offset_map *map, const struct log_clean_rules *rules,
                    struct log_clean **out) {
    if (atomic_load(&log->deleted)) return LOG_E_DELETED;
    if (log_offline(log)) return LOG_E_OFFLINE;
    struct log_clean *c = calloc(1, sizeof *c);
    if (c == NULL) return LOG_E_MEMORY;
    c->log = log;
    log_retain(log);
    c->map = map;
    c->rules = *rules;
    c->output.fd = -1;
    int result = take_sources(c);
    if (result == 0) result = copy_producers(c);
    if (result == 0 && (c->work.inflater = inflater_new()) == NULL) result = LOG_E_MEMORY;
    if (result != 0) {
        log_clean_end(c);
        return result;
    }
    while (c->at < c->clean_count && c->sources[c->at + 1]->base_offset <= c->rules.first_dirty)
        c->at++;
    c->stats.end_offset = c->sources[c->clean_count]->base_offset;
    c->stats.segments_before = c->clean_count;
    *out = c;
    return 0;
}

void log_clean_end(struct log_clean *c) {
    clean_output_discard(c);
    for (uint32_t i = 0; i < c->source_count; i++) segment_release(c->sources[i]);
    free(c->sources);
    free(c->last);
    free(c->window.bytes);
    free(c->output.bytes);
    if (c->output.segment != NULL) segment_release(c->output.segment);
    clean_transactions_free(&c->open);
    clean_transactions_free(&c->open_before);
    clean_transactions_free(&c->aborted);
    if (c->work.inflater != NULL) inflater_free(c->work.inflater);
    clean_work_free(&c->work);
    log_release(c->log);
    free(c);
}

void log_clean_stats(const struct log_clean *c, struct log_clean_stats *out) {
    *out = c->stats;
}

/* ---- transactions ---- */

/* Returns true if a transaction that began below the last stable offset has not ended yet: its
 * marker may be above. */
static bool is_undecided(const struct log_clean *c) {
    for (uint32_t i = 0; i < c->open.count; i++)
        if (c->open.list[i].first_offset < c->stable) return true;
    return false;
}

/* Finds the aborted transactions. Only markers contain the result, so all headers are walked
 * before any data is judged. */
static int follow_segment(struct log_clean *c, struct segment *s) {
    struct segment_scan scan;
    struct batch_header h;
    uint8_t marker[256];
    int result = segment_pin(s, false);
    if (result != 0)
        return result == -ENOENT ? LOG_E_WOULD_BLOCK : log_storage_error(c->log, result, "open");
    segment_scan_begin(&scan, s, 0, atomic_load(&s->bytes), false);
    while ((result = segment_scan_peek(&scan, &h)) == 1 &&
           (h.base_offset < c->stable || is_undecided(c))) {
        /* The marker of an open transaction may be inside the hole: its result is unknown, so
         * nothing may be removed. */
        if (scan.corrupt_end == scan.position && c->open.count > 0) {
            result = LOG_E_CORRUPT;
            break;
        }
        if (h.attributes & BATCH_TRANSACTIONAL) {
            bool control = (h.attributes & BATCH_CONTROL) != 0;
            if (control && (batch_bytes(&h) > sizeof marker ||
                            segment_read(s, scan.position, marker, batch_bytes(&h)) != 0 ||
                            batch_check_crc(marker, &h) != 0))
                result = LOG_E_CORRUPT;
            else
                result = clean_follow(&c->open, &c->aborted, &h, marker);
            if (result == 1 && batch_last_offset(&h) >= c->decided)
                c->decided = batch_last_offset(&h) + 1;
            if (result < 0) break;
        }
        segment_scan_skip(&scan, &h);
    }
    segment_unpin(s);
    if (result == BATCH_E_MEMORY) return LOG_E_MEMORY;
    return result < 0 ? result : 0;
}

static int follow_transactions(struct log_clean *c) {
    int result = 0;
    for (uint32_t i = 0; i < c->source_count && result == 0; i++)
        if (c->sources[i]->base_offset < c->stable || is_undecided(c))
            result = follow_segment(c, c->sources[i]);
    clean_sort(&c->aborted);
    c->open.count = 0;
    c->followed = true;
    return result;
}

static int batch_failure(int error) {
    return error == BATCH_E_MEMORY ? LOG_E_MEMORY : LOG_E_CORRUPT;
}

/* Reports a batch whose records cannot be decompressed and returns true. The batch stays
 * unchanged and supersedes nothing. */
static bool cannot_be_opened(struct log_clean *c, const struct batch_header *h, int error) {
    if (error != BATCH_E_INFLATE && error != BATCH_E_INFLATE_MAX && error != BATCH_E_CODEC)
        return false;
    segment_report_batch(c->sources[c->at], h, c->position, LOG_WHY_RECORDS);
    return true;
}

/* ---- the map ---- */

/* Returns 1 (continue), 0 (the map is full) or an error. */
static int map_batch(struct log_clean *c, const uint8_t *p, const struct batch_header *h) {
    if (h->attributes & BATCH_TRANSACTIONAL && !c->followed) {
        int result = follow_transactions(c);
        if (result != 0) return result;
    }
    if (h->attributes & BATCH_CONTROL || batch_last_offset(h) < c->rules.first_dirty ||
        clean_is_aborted(&c->aborted, h))
        return 1;
    int result = clean_map(c->map, p, h, c->rules.first_dirty,
                           (uint64_t)c->rules.inflated_bytes_max, &c->work);
    if (result < 0 && !cannot_be_opened(c, h, result)) return batch_failure(result);
    return result < 0 ? 1 : result;
}

static int step_map(struct log_clean *c, int64_t *bytes_left) {
    while (c->at < c->clean_count) {
        struct segment *s = c->sources[c->at];
        const uint8_t *p;
        struct batch_header h;
        int result = clean_source_open(c, s);
        if (result != 0) return result;
        while ((result = clean_source_next(c, s, &p, &h)) > 0) {
            int64_t bytes = result == CLEAN_NEXT_BATCH ? (int64_t)batch_bytes(&h) : c->damaged;
            if (result == CLEAN_NEXT_BATCH) result = map_batch(c, p, &h);
            if (result < 0) return result;
            if (result == 0) {
                /* Leave the rest for the next pass. A batch with more keys than the map can hold
                 * would stop every pass. */
                clean_source_close(c, s);
                if (h.base_offset <= c->rules.first_dirty) return LOG_E_MEMORY;
                c->stats.end_offset = h.base_offset;
                return 0;
            }
            c->position += bytes;
            c->stats.bytes_mapped += bytes;
            if ((*bytes_left -= bytes) < 0) return 1;
        }
        if (result < 0) return result;
        clean_source_close(c, s);
    }
    return 0;
}

/* ---- the new segments ---- */

static int flush_output(struct log_clean *c) {
    struct clean_output *o = &c->output;
    const struct disk *disk = log_dir_disk(c->log->partition->dir);
    for (size_t at = 0; at < o->len;) {
        ssize_t n = disk->pwrite(o->fd, o->bytes + at, o->len - at, o->written);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return log_storage_error(c->log, -errno, "write");
        at += (size_t)n;
        o->written += n;
    }
    assert(o->written == atomic_load(&o->segment->bytes));
    o->len = 0;
    return 0;
}

static int make_room(struct log_clean *c, size_t len) {
    struct clean_output *o = &c->output;
    if (o->len + len > CLEAN_OUTPUT_BYTES) {
        int result = flush_output(c);
        if (result != 0) return result;
    }
    if (len <= o->room) return 0;
    size_t room = len > CLEAN_OUTPUT_BYTES ? len : CLEAN_OUTPUT_BYTES;
    uint8_t *bytes = realloc(o->bytes, room);
    if (bytes == NULL) return LOG_E_MEMORY;
    o->bytes = bytes;
    o->room = room;
    return 0;
}

static void took_room(struct log_clean *c, size_t len) {
    assert(c->output.len + len <= c->output.room);
    c->output.len += len;
    atomic_fetch_add(&c->output.segment->bytes, (int64_t)len);
    c->stats.bytes_written += (int64_t)len;
}

static int write_batch(struct log_clean *c, const struct clean_result *retained) {
    struct clean_output *o = &c->output;
    struct batch_header h;
    int result = make_room(c, retained->len);
    if (result != 0) return result;
    memcpy(o->bytes + o->len, retained->bytes, retained->len);
    batch_parse(retained->bytes, retained->len, &h);
    segment_index_batch(o->segment, &h, atomic_load(&o->segment->bytes));
    took_room(c, retained->len);
    return 0;
}

/* Copies damaged bytes unchanged, after the batch before them. Keeps damage. */
static int write_damage(struct log_clean *c, struct segment *s) {
    struct clean_output *o = &c->output;
    struct batch_header h;
    if (c->dropped) {
        batch_parse(c->dropped_header, sizeof c->dropped_header, &h);
        if (clean_empty(c->dropped_header, &h, &c->work) != 0) return LOG_E_MEMORY;
        struct clean_result retained = {.bytes = c->work.made, .len = c->work.made_len};
        int result = write_batch(c, &retained);
        if (result != 0) return result;
        c->dropped = false;
    }
    for (int64_t at = 0; at < c->damaged;) {
        int64_t left = c->damaged - at;
        size_t len = left < CLEAN_OUTPUT_BYTES ? (size_t)left : CLEAN_OUTPUT_BYTES;
        int result = make_room(c, len);
        if (result == 0) result = segment_read(s, c->position + at, o->bytes + o->len, len);
        if (result != 0) return result;
        took_room(c, len);
        at += (int64_t)len;
    }
    assert(c->damaged > 0);
    c->stats.bytes_damaged += c->damaged;
    c->beside_damage = true;
    /* The damage was already reported at its old position. */
    lock_acquire(&o->segment->index_lock);
    o->segment->reported_ranges_end = o->segment->reported_batches_end = INT64_MAX;
    lock_release(&o->segment->index_lock);
    atomic_store(&o->segment->damaged, true);
    return 0;
}

/* Returns true for the last batch of a new segment. It stays, even if empty: the next segment
 * then begins where this one ends, as in a log that was never compacted, and recovery can detect
 * lost records. */
static bool is_last_of_group(const struct log_clean *c, const struct batch_header *h) {
    return c->at + 1 == c->group_end &&
           c->position + (int64_t)batch_bytes(h) >= atomic_load(&c->sources[c->at]->bytes);
}

static int judge_batch(struct log_clean *c, const uint8_t *p, const struct batch_header *h) {
    struct clean_result retained;
    struct clean_batch_rules rules = {c->map, c->rules.now_ms, c->rules.delete_retention_ms,
                                      (uint64_t)c->rules.inflated_bytes_max};
    if (h->attributes & BATCH_TRANSACTIONAL && !c->followed) {
        int result = follow_transactions(c);
        if (result != 0) return result;
    }
    int ended = clean_follow(&c->open, NULL, h, p);
    if (ended < 0) return LOG_E_MEMORY;
    struct clean_batch_facts facts = {.aborted = clean_is_aborted(&c->aborted, h),
                                      .empty_marker =
                                          (h->attributes & BATCH_CONTROL) != 0 && ended == 0,
                                      .stays = c->beside_damage || is_last_of_producer(c, h) ||
                                               is_last_of_group(c, h)};
    int result = clean_batch(&rules, p, h, &facts, &c->work, &retained);
    /* Too large: the remaining records take more space than the whole original batch. */
    if (result == BATCH_E_TOO_LARGE || (result < 0 && cannot_be_opened(c, h, result)))
        retained = (struct clean_result){p, batch_bytes(h), 0, 0};
    else if (result < 0)
        return batch_failure(result);
    c->beside_damage = false;
    c->dropped = retained.bytes == NULL;
    if (c->dropped) memcpy(c->dropped_header, p, sizeof c->dropped_header);
    c->stats.batches_read++;
    assert(retained.kept <= retained.read);
    c->stats.records_read += retained.read;
    c->stats.records_kept += retained.kept;
    if (retained.bytes != p) c->output.changed = true;
    if (retained.bytes == NULL) return 0;
    c->stats.batches_kept++;
    return write_batch(c, &retained);
}

/* Returns the end of the group: adjacent segments from `at` on that fit one segment with their
 * size before cleaning. */
static uint32_t group_end(const struct log_clean *c) {
    uint32_t end = c->at;
    int64_t bytes = 0, base = c->sources[c->at]->base_offset;
    while (end < c->clean_count && c->sources[end]->base_offset < c->stats.end_offset) {
        bytes += atomic_load(&c->sources[end]->bytes);
        if (end > c->at &&
            (bytes > c->rules.segment_bytes || c->sources[end + 1]->base_offset - base > INT32_MAX))
            break;
        /* Keeps damage, in a separate segment: if a crash interrupts a swap, the last batch of
         * the file shows where the swap ends. */
        bool damaged = atomic_load(&c->sources[end]->damaged);
        if (damaged && end > c->at) break;
        end++;
        if (damaged) break;
    }
    assert(end > c->at);
    assert(end <= c->clean_count);
    return end;
}

static int copy_transactions(struct clean_transactions *to, const struct clean_transactions *from) {
    clean_transactions_free(to);
    if (from->count == 0) return 0;
    to->list = malloc(from->count * sizeof *to->list);
    if (to->list == NULL) return LOG_E_MEMORY;
    memcpy(to->list, from->list, from->count * sizeof *to->list);
    to->count = to->capacity = from->count;
    return 0;
}

/* Damage was found in a group of several segments: restart it, with the damaged segment as its
 * own group. */
static int restart_group(struct log_clean *c) {
    clean_output_discard(c);
    c->at = c->group;
    c->stats = c->stats_before;
    c->beside_damage = c->beside_before;
    return copy_transactions(&c->open, &c->open_before);
}

static int begin_group(struct log_clean *c) {
    struct clean_output *o = &c->output;
    char path[SEGMENT_PATH_BYTES];
    assert(c->output.segment == NULL);
    assert(c->output.len == 0);
    c->group = c->at;
    c->group_end = group_end(c);
    c->stats_before = c->stats;
    c->beside_before = c->beside_damage;
    c->dropped = false;
    o->written = 0;
    o->changed = c->group_end > c->at + 1;
    if (copy_transactions(&c->open_before, &c->open) != 0) return LOG_E_MEMORY;
    o->segment = segment_new(c->log->partition, c->sources[c->at]->base_offset, 0, -1);
    if (o->segment == NULL) return LOG_E_MEMORY;
    /* Its files must not be opened before they are renamed, and it writes no index until then. */
    o->segment->removed = true;
    lock_acquire(&o->segment->index_lock);
    o->segment->counted = true;
    lock_release(&o->segment->index_lock);
    log_view_lock(c->log);
    o->segment->index_interval_bytes = c->log->view.config.index_interval_bytes;
    log_view_unlock(c->log);
    atomic_store(&o->segment->sealed, true);
    atomic_store(&o->segment->flush_done, true);
    segment_path(o->segment, "log.cleaned", path);
    o->fd = log_dir_open(c->log->partition->dir, path, O_WRONLY | O_CREAT | O_TRUNC);
    return o->fd < 0 ? log_storage_error(c->log, -errno, "open") : 0;
}

/* Maps the holes of the new file, so that readers find them as in the old one. */
static void map_damage(struct segment *s) {
    struct corrupt_range ignored;
    if (segment_pin(s, false) != 0) return;
    segment_find_corrupt_range(s, 0, false, &ignored);
    segment_unpin(s);
}

static int end_group(struct log_clean *c) {
    struct clean_output *o = &c->output;
    assert(c->at == c->group_end);
    assert(!c->pinned);
    int result = flush_output(c);
    if (result != 0) return result;
    bool changed = o->changed;
    if (changed && log_dir_disk(c->log->partition->dir)->fdatasync(o->fd) != 0)
        return log_storage_error(c->log, -errno, "fdatasync");
    close(o->fd);
    o->fd = -1;
    /* Before removing records, flush the data that makes the removal correct: newer records,
     * abort markers and the producers' new last batches must survive a power loss. */
    int64_t needed = c->decided > c->stats.end_offset ? c->decided : c->stats.end_offset;
    if (changed && log_flushed_offset(c->log) < needed && (result = log_flush(c->log)) != 0)
        return result;
    if (changed) {
        struct segment *fresh = o->segment;
        segment_retain(fresh);
        result = log_swap(c->log, c->sources + c->group, c->group_end - c->group, o->segment,
                          c->truncations);
        if (result == 0 && atomic_load(&o->segment->bytes) > 0) {
            c->stats.segments_after++;
            o->segment = NULL; /* now owned by the log */
            if (atomic_load(&fresh->damaged)) map_damage(fresh);
        }
        segment_release(fresh);
        if (result != 0) return result;
    } else {
        c->stats.segments_after++;
    }
    clean_output_discard(c);
    return 0;
}

void clean_output_discard(struct log_clean *c) {
    struct clean_output *o = &c->output;
    char path[SEGMENT_PATH_BYTES];
    if (o->fd >= 0) close(o->fd);
    o->fd = -1;
    o->len = 0;
    if (c->pinned) segment_unpin(c->sources[c->at]);
    c->pinned = false;
    if (o->segment == NULL) return;
    segment_path(o->segment, "log.cleaned", path);
    log_dir_unlink(c->log->partition->dir, path);
    segment_release(o->segment);
    o->segment = NULL;
}

static int step_write(struct log_clean *c, int64_t *bytes_left) {
    while (c->at < c->clean_count && c->sources[c->at]->base_offset < c->stats.end_offset) {
        const uint8_t *p;
        struct batch_header h;
        int result = c->output.segment == NULL ? begin_group(c) : 0;
        struct segment *s = c->sources[c->at];
        if (result == 0) result = clean_source_open(c, s);
        if (result != 0) return result;
        while ((result = clean_source_next(c, s, &p, &h)) > 0) {
            bool good = result == CLEAN_NEXT_BATCH;
            int64_t bytes = good ? (int64_t)batch_bytes(&h) : c->damaged;
            if (!good && c->group_end > c->group + 1)
                return (result = restart_group(c)) != 0 ? result : 1;
            if ((result = good ? judge_batch(c, p, &h) : write_damage(c, s)) != 0) return result;
            c->position += bytes;
            c->stats.bytes_read += bytes;
            if ((*bytes_left -= bytes) < 0) return 1;
        }
        if (result < 0) return result;
        clean_source_close(c, s);
        if (c->at == c->group_end && (result = end_group(c)) != 0) return result;
    }
    return 0;
}

int log_clean_step(struct log_clean *c, int64_t bytes_max) {
    int result = 0;
    if (atomic_load(&c->log->deleted)) return LOG_E_DELETED;
    if (log_offline(c->log)) return LOG_E_OFFLINE;
    assert(c->at <= c->clean_count);
    assert(c->clean_count < c->source_count);
    if (!c->mapped) {
        result = step_map(c, &bytes_max);
        if (result != 0) return result;
        c->mapped = true;
        c->at = 0;
        c->open.count = 0;
    }
    return step_write(c, &bytes_max);
}
