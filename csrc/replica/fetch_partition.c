/* One partition that is followed: how a response changes it, and when it is fetched again.
 *
 * It is FETCHING, BACKING_OFF until a time, or WAITING for the control plane. It is in the
 * leader's fetch session only while FETCHING. Every repetition without progress backs off: an
 * error, a stop that did not change the log, or stops in quick succession. */
#include "replica/fetcher_internal.h"

#include <stdlib.h>

#include "log_manager/log_manager.h"
#include "os/rate_limit.h"
#include "tables/error_codes.h"

void fetch_partition_release(struct fetch_partition *p) {
    uint32_t before = atomic_fetch_sub(&p->references, 1);
    assert(before > 0);
    if (before > 1) return;
    assert(p->leader == NULL);
    log_release(p->log);
    free(p);
}

/* ---- states ---- */

static void leave_fetching(struct fetch_partition *p) {
    if (atomic_load(&p->state) != FETCH_PARTITION_FETCHING) return;
    assert(p->leader->fetching_count > 0);
    p->leader->fetching_count--;
    fetch_partition_unchange(p);
    if (p->in_session) leader_forget(p->leader, p);
    p->in_session = false;
}

/* Returns true if the partition must be left out for now (KIP-73): the quota is used up, and the
 * partition is behind or its lag is unknown. */
static bool is_over(struct fetcher *f, const struct fetch_partition *p) REQUIRES(f->role) {
    struct throttle *throttle = f->all->config.throttle;
    return throttle != NULL && log_is_throttled_following(p->log) &&
           atomic_load(&p->lag) != 0 && throttle_is_over(throttle, f->now_ms);
}

static void leave_out(struct fetcher *f, struct fetch_partition *p) REQUIRES(f->role) {
    leave_fetching(p);
    atomic_store(&p->state, FETCH_PARTITION_BACKING_OFF);
    timers_set(&f->timers, &p->timer, f->now_ms + THROTTLE_MS);
}

static void fetch(struct fetcher *f, struct fetch_partition *p) REQUIRES(f->role) {
    assert(p->leader != NULL);
    if (is_over(f, p)) {
        leave_out(f, p);
        return;
    }
    timers_cancel(&f->timers, &p->timer);
    if (atomic_load(&p->state) != FETCH_PARTITION_FETCHING) p->leader->fetching_count++;
    atomic_store(&p->state, FETCH_PARTITION_FETCHING);
    fetch_partition_change(p);
}

static void back_off(struct fetcher *f, struct fetch_partition *p) REQUIRES(f->role) {
    int32_t most = f->all->config.backoff_ms_max;
    int32_t doubled = p->backoff_ms == 0 ? BACKOFF_MS_FIRST : 2 * p->backoff_ms;
    p->backoff_ms = doubled < most ? doubled : most;
    leave_fetching(p);
    atomic_store(&p->state, FETCH_PARTITION_BACKING_OFF);
    timers_set(&f->timers, &p->timer, f->now_ms + (p->backoff_ms > 0 ? p->backoff_ms : 1));
}

void fetch_partition_on_timer(struct fetcher *f, struct fetch_partition *p) {
    assert(atomic_load(&p->state) == FETCH_PARTITION_BACKING_OFF);
    fetch(f, p);
}

/* ---- notices ---- */

static void post_notice(struct fetcher *f, struct fetch_partition *p, struct notice *n,
                        uint32_t kind) {
    assert(!atomic_load(&n->under_way));
    fetch_partition_retain(p);
    atomic_store(&n->under_way, true);
    n->what.token = p->token;
    n->link.message = (struct message){.kind = kind, .data = p};
    mailbox_post_link(f->all->notices, &n->link);
}

/* Posts one notice per series of equal errors, and none while an earlier notice is pending. */
static void refuse(struct fetcher *f, struct fetch_partition *p, int code,
                   const struct fetch_response_partition *a) REQUIRES(f->role) {
    meter_add(&f->refusals, 1);
    back_off(f, p);
    if (p->refused_code == code || atomic_load(&p->refused.under_way)) return;
    p->refused_code = code;
    p->refused.what = (struct fetchers_notice){.kind = FETCHERS_REFUSED,
                                               .code = code,
                                               .leader_id = a != NULL ? a->leader_id : -1,
                                               .leader_epoch = a != NULL ? a->leader_epoch : -1};
    post_notice(f, p, &p->refused, NOTICE_REFUSED);
}

static int32_t last_epoch(const struct fetch_partition *p, int64_t end) {
    return end == 0 ? -1 : log_epoch_of(p->log, end - 1);
}

static void stop(struct fetcher *f, struct fetch_partition *p, const struct fetchers_notice *what)
    REQUIRES(f->role) {
    leave_fetching(p);
    timers_cancel(&f->timers, &p->timer);
    atomic_store(&p->state, FETCH_PARTITION_WAITING);
    p->stopped_end = log_end_offset(p->log);
    p->stopped_start = log_start_offset(p->log);
    p->stopped_epoch = last_epoch(p, p->stopped_end);
    if (f->now_ms - p->stopped_ms > FETCHER_STOPS_MS) {
        p->stopped_ms = f->now_ms;
        p->stop_count = 0;
    }
    p->stop_count++;
    p->stopped.what = *what;
    post_notice(f, p, &p->stopped, NOTICE_STOPPED);
}

void fetch_partition_resume(struct fetcher *f, struct fetch_partition *p) {
    if (atomic_load(&p->state) != FETCH_PARTITION_WAITING) return;
    if (p->leader == NULL) {
        fetch_partition_join(f, p); /* joining had failed: out of memory */
        return;
    }
    int64_t end = log_end_offset(p->log);
    bool moved = end != p->stopped_end || log_start_offset(p->log) != p->stopped_start ||
                 last_epoch(p, end) != p->stopped_epoch;
    if (moved && p->stop_count <= FETCHER_STOPS_MAX)
        fetch(f, p);
    else
        back_off(f, p);
}

void fetch_partition_fail(struct fetcher *f, struct fetch_partition *p, int error) {
    assert(error < 0);
    if (error == LOG_E_IO || error == LOG_E_OFFLINE)
        stop(f, p, &(struct fetchers_notice){.kind = FETCHERS_FAILED, .code = error,
                                             .leader_id = -1, .leader_epoch = -1});
    else
        refuse(f, p, error, NULL);
}

/* ---- joining and leaving ---- */

static bool enlist(struct leader *l, struct fetch_partition *p) {
    if (l->followed_count == l->followed_room) {
        uint32_t room = l->followed_room == 0 ? 8 : 2 * l->followed_room;
        struct fetch_partition **grown = realloc(l->followed, room * sizeof *grown);
        if (grown == NULL) return false;
        l->followed = grown;
        l->followed_room = room;
    }
    p->leader_index = l->followed_count++;
    l->followed[p->leader_index] = p;
    p->leader = l;
    return true;
}

static void delist(struct leader *l, struct fetch_partition *p) {
    assert(l->followed[p->leader_index] == p);
    struct fetch_partition *last = l->followed[--l->followed_count];
    l->followed[p->leader_index] = last;
    last->leader_index = p->leader_index;
    p->leader = NULL;
}

/* The thread takes its own reference when the partition joins. */
void fetch_partition_join(struct fetcher *f, struct fetch_partition *p) {
    struct fetch_partition *before = fetcher_find(f, p->topic_id, p->index);
    assert(p->leader == NULL);
    if (before != NULL) fetch_partition_leave(f, before);
    struct leader *l = fetcher_leader(f, p->leader_id);
    if (l != NULL && fetcher_insert(f, p)) {
        if (enlist(l, p)) {
            fetch_partition_retain(p);
            fetch(f, p);
            return;
        }
        fetcher_remove(f, p);
    }
    atomic_store(&p->state, FETCH_PARTITION_WAITING);
    p->stopped.what = (struct fetchers_notice){.kind = FETCHERS_FAILED, .code = LOG_E_MEMORY,
                                               .leader_id = -1, .leader_epoch = -1};
    post_notice(f, p, &p->stopped, NOTICE_STOPPED);
}

void fetch_partition_leave(struct fetcher *f, struct fetch_partition *p) {
    struct leader *l = p->leader;
    if (l == NULL) return;
    leave_fetching(p);
    timers_cancel(&f->timers, &p->timer);
    atomic_store(&p->state, FETCH_PARTITION_LEFT);
    if (l->current == p) l->current = NULL;
    if (p->flushing) {
        assert(l->flushing_count > 0);
        l->flushing_count--;
    }
    p->flushing = false;
    fetcher_remove(f, p);
    delist(l, p);
    fetch_partition_release(p);
}

/* ---- responses ---- */

/* Measures the complete batches among the available bytes. Returns 0, or the error of the first
 * invalid batch. *next: size of the incomplete batch, as far as known. */
static int whole_batches(struct fetch_partition *p, const uint8_t *bytes, size_t len, uint64_t left,
                         size_t *whole, size_t *next) {
    *whole = 0;
    for (;;) {
        *next = BATCH_MAGIC_AT; /* includes the length and the leader epoch */
        if (left - *whole < BATCH_MAGIC_AT) {
            p->cut = true;
            return 0;
        }
        if (len - *whole < BATCH_MAGIC_AT) return 0;
        const uint8_t *batch = bytes + *whole;
        int64_t total = (int64_t)get_i32(batch + BATCH_LENGTH_AT) + BATCH_LOG_OVERHEAD;
        if (total < BATCH_HEADER_BYTES) return LOG_E_CORRUPT;
        if (get_i32(batch + BATCH_LEADER_EPOCH_AT) > p->leader_epoch) return LOG_E_CORRUPT;
        if ((uint64_t)total > left - *whole) {
            p->cut = true;
            return 0;
        }
        /* Every batch that a leader stored must be copied: a smaller limit would stop
         * replication permanently, because the leader keeps the batch. */
        if (total > BATCH_BYTES_MAX) return BATCH_E_TOO_LARGE;
        *next = (size_t)total;
        if ((size_t)total > len - *whole) return 0;
        *whole += (size_t)total;
    }
}

uint64_t fetch_partition_append(struct fetcher *f, struct fetch_partition *p, const uint8_t *bytes,
                                size_t len, uint64_t left, size_t *want) {
    size_t whole, taken = 0;
    assert(len > 0);
    assert(len <= left);
    /* Skip the rest of a truncated batch, or of records that failed. */
    if (p->failure != 0 || p->cut) return len;
    int wrong = whole_batches(p, bytes, len, left, &whole, want);
    if (whole > 0) {
        int result = log_append_as_follower(p->log, bytes, whole, f->real_now_ms, &taken);
        if (result == 0 && taken < whole) result = LOG_E_CORRUPT;
        if (result != 0) wrong = result;
    }
    assert(taken <= whole);
    p->grew = p->grew || taken > 0;
    meter_add(&f->batches_bytes, taken);
    p->failure = wrong;
    return wrong != 0 || p->cut ? len : whole;
}

/* Takes over the leader's high watermark and log start offset. Returns 0 or a log_error. */
static int adopt_ends(struct fetch_partition *p, const struct fetch_response_partition *a,
                      bool *moved) {
    int64_t before = log_high_watermark(p->log);
    if (a->high_watermark > before) log_advance_high_watermark(p->log, a->high_watermark);
    int64_t high = log_high_watermark(p->log), start = a->log_start_offset;
    *moved = high > before;
    if (start > high) start = high;
    if (start <= log_start_offset(p->log)) return 0;
    *moved = true;
    return log_move_start(p->log, start, 0);
}

/* A leader that truncates the last batch sends it again in the next response. For partitions
 * with large batches, that is half of the traffic. */
static void raise_fetch_size(struct fetcher *f, struct fetch_partition *p) REQUIRES(f->role) {
    int32_t most = f->all->config.bytes_max < FETCHER_GROWN_BYTES_MAX ? f->all->config.bytes_max
                                                                      : FETCHER_GROWN_BYTES_MAX;
    if (p->partition_bytes <= most / 2) p->partition_bytes *= 2;
}

static void take_response(struct fetcher *f, struct fetch_partition *p,
                          const struct fetch_response_partition *a) REQUIRES(f->role) {
    bool moved;
    int result = adopt_ends(p, a, &moved);
    if (moved || p->grew) p->leader->made_progress = true;
    if (result == LOG_E_IO || result == LOG_E_OFFLINE) {
        fetch_partition_fail(f, p, result);
        return;
    }
    p->backoff_ms = 0;
    p->refused_code = 0;
    int64_t end = log_end_offset(p->log);
    atomic_store(&p->lag, a->high_watermark > end ? a->high_watermark - end : 0);
    atomic_store(&p->answered_ns, f->now_ms * 1000000);
    if (f->all->config.throttle != NULL && log_is_throttled_following(p->log))
        throttle_count(f->all->config.throttle, (int64_t)a->records_bytes, f->now_ms);
    if (is_over(f, p)) {
        leave_out(f, p);
        return;
    }
    if (p->cut) raise_fetch_size(f, p);
    if (end != p->sent_end || log_start_offset(p->log) != p->sent_start) fetch_partition_change(p);
}

void fetch_partition_on_response(struct fetcher *f, struct fetch_partition *p,
                                 const struct fetch_response_partition *a) {
    assert(atomic_load(&p->state) == FETCH_PARTITION_FETCHING);
    int failure = p->failure;
    p->failure = 0;
    if (failure == 0 && a->records_bytes > 0 && !p->grew) failure = LOG_E_CORRUPT;
    if (failure != 0)
        fetch_partition_fail(f, p, failure);
    else if (a->error_code == ERROR_OFFSET_OUT_OF_RANGE)
        stop(f, p, &(struct fetchers_notice){.kind = FETCHERS_OUT_OF_RANGE,
                                             .leader_id = a->leader_id,
                                             .leader_epoch = a->leader_epoch});
    else if (a->error_code != 0)
        refuse(f, p, a->error_code, a);
    else if (a->diverging_epoch >= 0)
        stop(f, p, &(struct fetchers_notice){.kind = FETCHERS_DIVERGED,
                                             .epoch = a->diverging_epoch,
                                             .end_offset = a->diverging_end,
                                             .leader_id = a->leader_id,
                                             .leader_epoch = a->leader_epoch});
    else
        take_response(f, p, a);
    p->grew = p->cut = false;
}

void fetch_partition_read_stats(const struct fetch_partition *p,
                                struct fetch_partition_stats *out) {
    *out = (struct fetch_partition_stats){.lag = atomic_load(&p->lag),
                                          .answered_ns = atomic_load(&p->answered_ns),
                                          .state = atomic_load(&p->state)};
}
