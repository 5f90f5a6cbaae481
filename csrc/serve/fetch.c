/* Fetch v4-18: parse the request into a set of partitions (the session's or its own), look up
 * the topics, take ranges, wait while there are fewer than min_bytes, read cold data on the io
 * pool, answer with references to the log files.
 *
 * Walk: fetch_start -> fetch_parse (fetch_request.c) -> open_context (session) -> look_up ->
 * evaluate -> (wait | warm) -> answer (fetch_response.c). */
#include "serve/fetch_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "format/assertion.h"
#include "serve/wire.h"

enum {
    COLD_BYTES_MAX = 4 << 20,
    WORKER_PAUSE_MS = 10, /* pause before resubmitting a job if the pool is full */
    COUNTED_PARTITIONS = 1000,      /* larger fetches count towards the limit below */
    WAITING_PARTITIONS_MAX = 400000 /* over all counted fetches: about 130 MB */
};

static void unwait_all(struct fetch *f) {
    if (!f->waiting) return;
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next)
        if (p->read->waiter.mailbox != NULL) {
            assert_slow(p->read->log != NULL);
            log_unwait(p->read->log, &p->read->waiter);
            p->read->waiter.mailbox = NULL;
        }
    f->waiting = false;
}

static void release_ranges(struct fetch *f) {
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) fetch_release(p->read);
}

/* Zeroed. A wide fetch uses mmap: tens of megabytes must not stay in a worker's heap. */
static struct fetch_read *reads_new(const struct fetch *f) {
    size_t bytes = f->set->count * sizeof *f->reads;
    if (f->wide == NULL) return calloc(1, bytes);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

static void reads_free(struct fetch *f) {
    if (f->wide == NULL)
        free(f->reads);
    else
        munmap(f->reads, f->set->count * sizeof *f->reads);
    f->reads = NULL;
}

/* Allocates the per-partition state of this request. Returns false if out of memory. */
static bool take_reads(struct fetch *f) {
    if (f->set->count == 0) return true;
    f->reads = reads_new(f);
    if (f->reads == NULL) return false;
    assert_slow(f->set->first != NULL);
    struct fetch_read *read = f->reads;
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) {
        p->read = read++;
        assert_slow(read <= f->reads + f->set->count);
        p->read->diverging_epoch = p->read->preferred = -1;
    }
    assert(read == f->reads + f->set->count); /* the list length matches the count */
    return true;
}

/* Drops every reference on topics, logs and files before the session is returned. */
static void release_reads(struct fetch *f) {
    if (f->reads == NULL) return;
    unwait_all(f);
    release_ranges(f);
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) {
        if (p->read->topic != NULL) topic_release(p->read->topic);
        p->read = NULL;
    }
    reads_free(f);
}

void fetch_free(struct serve *s, struct serve_request *r) {
    struct fetch *f = r->state;
    if (f == NULL) return;
    assert(!f->job_running);
    release_reads(f);
    if (f->counted != 0) {
        int64_t before = atomic_fetch_sub(&s->shared->fetches_waiting, f->counted);
        assert(before >= f->counted);
    }
    /* Use the current time, not the arrival time: a long poll uses its session until it ends. */
    if (f->session != NULL)
        sessions_return(s->shared->sessions, f->session, quotas_monotonic_ns() / NS_PER_MS);
    fetch_set_clear(&f->own);
    misses_clear(&f->misses, r);
    if (f->wide != NULL) reply_clear(&f->wide->reply);
    free(f->wide);
    free(f->rack);
    free(f);
    r->state = NULL;
}

/* Applies the additions and changes of an incremental request. */
static bool merge(struct fetch *f, struct session *session) {
    struct fetch_set *set = &session->set;
    for (struct fetch_part *p = f->own.first; p != NULL; p = p->next) {
        struct fetch_part *kept =
            fetch_set_part(set, p->key->bytes, p->key->len, p->partition, true);
        if (kept == NULL) return false;
        kept->offset = p->offset;
        kept->start_offset = p->start_offset;
        kept->bytes_max = p->bytes_max;
        kept->leader_epoch = p->leader_epoch;
        kept->last_fetched_epoch = p->last_fetched_epoch;
    }
    return fetch_parse_forgotten(f, &f->forgotten, set);
}

/* Chooses the set to fetch: the request's own, a new session's or an existing session's. Returns
 * 0 or a top-level error. */
static int16_t open_context(struct serve *s, struct serve_request *r, struct fetch *f) {
    struct sessions *sessions = s->shared->sessions;
    f->set = &f->own;
    if (f->session_epoch == 0 || f->session_epoch == -1) {
        if (f->session_id != 0) sessions_close(sessions, f->session_id, r->principal);
        f->session_id = 0;
        f->full = true;
        if (f->session_epoch == -1) return 0;
        uint64_t random =
            atomic_fetch_add(&s->shared->random, 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
        f->session = sessions_create(sessions, &f->own, r->principal, random >> 16, r->received_ms);
    } else {
        int16_t error = sessions_acquire(sessions, f->session_id, f->session_epoch, f->by_id,
                                         r->principal, &f->session);
        if (error != 0) return error;
        if (!merge(f, f->session) || !sessions_resize(sessions, f->session, r->received_ms)) {
            /* No room. The client must start over with a full request, possibly without a
             * session. */
            sessions_close(sessions, f->session_id, r->principal);
            sessions_return(sessions, f->session, r->received_ms);
            f->session = NULL;
            return ERROR_FETCH_SESSION_ID_NOT_FOUND;
        }
        if (f->session->set.count != 0) {
            fetch_set_clear(&f->own);
        } else {
            /* As in Kafka: if an incremental request forgets all partitions, the session ends,
             * and the partitions named in that request are answered without a session. */
            sessions_close(sessions, f->session_id, r->principal);
            sessions_return(sessions, f->session, r->received_ms);
            f->session = NULL;
            f->session_id = 0;
            f->full = true;
        }
    }
    if (f->session != NULL) {
        assert(f->session->busy && f->own.count == 0);
        f->set = &f->session->set;
        f->session_id = f->session->id;
    }
    return 0;
}

static void set_topic(struct fetch_part *p, struct topic *topic) {
    assert(p->read->waiter.mailbox == NULL && (p->read->log == NULL || p->read->topic != NULL));
    if (p->read->topic != NULL) topic_release(p->read->topic);
    p->read->topic = topic;
    p->read->log = NULL;
    if (topic != NULL) p->read->log = topic_log(topic, p->partition, &p->read->grant_error);
}

static struct topic_key key_of(const struct fetch *f, const struct fetch_part *p) {
    return (struct topic_key){p->key->bytes, p->key->len, f->by_id};
}

static uint8_t right_for(const struct fetch *f) {
    return fetch_is_follower(f) ? GRANT_FOLLOW : GRANT_READ;
}

/* Like grants_find, but reuses the topic of the preceding partition if it is the same. */
static struct topic *find_topic(struct serve *s, const struct serve_request *r,
                                const struct fetch *f, const struct fetch_part *p,
                                uint32_t changes) {
    const struct fetch_part *before = p->prev;
    if (before != NULL && before->read->topic != NULL && before->read->changes == changes &&
        fetch_same_topic(before, p)) {
        topic_retain(before->read->topic);
        return before->read->topic;
    }
    return grants_find(s->shared->grants, r->principal, key_of(f, p), right_for(f));
}

/* Looks up topics that are new or whose grants have changed. Returns false if grants are
 * missing; r->missing then lists the topics. */
static bool look_up(struct serve *s, struct serve_request *r, struct fetch *f, bool granted) {
    bool complete = true, is_void = false;
    f->voids = grants_voids(s->shared->grants);
    uint32_t changes = grants_changes(s->shared->grants), verdict_at = 0;
    struct fetch_part *last = NULL;
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) {
        if (p->read->topic != NULL && p->read->changes == changes) continue;
        struct topic *topic = find_topic(s, r, f, p, changes);
        p->read->grant_error = 0;
        if (topic == NULL && granted) {
            int16_t verdict = misses_verdict(r, key_of(f, p), &verdict_at);
            is_void |= verdict == 0;
            p->read->grant_error = verdict != 0 ? verdict : ERROR_NOT_LEADER_OR_FOLLOWER;
        } else if (topic == NULL) {
            complete = false;
            bool asked = last != NULL && fetch_same_topic(last, p);
            if (!asked && !misses_add(&f->misses, r, key_of(f, p), right_for(f))) {
                r->missing_count = 0;
                return false;
            }
            last = p;
        }
        set_topic(p, topic);
        p->read->changes = changes;
    }
    if (is_void && misses_again(&f->misses, r)) return look_up(s, r, f, false);
    return complete;
}

/* From v11 on, consumers may also read from followers (KIP-392). */
static bool may_read(const struct fetch *f, const struct log *log) {
    return log_is_leader(log) ||
           (f->version >= 11 && !fetch_is_follower(f) && log_is_readable(log));
}

int16_t fetch_check_epochs(const struct fetch *f, struct fetch_part *p) {
    assert(p->read->topic != NULL && p->read->log != NULL);
    /* Check this before the epoch: if the disk has failed, the partition has no leader, and
     * leaderless partitions have a different epoch. */
    if (log_failed(p->read->log) == LOG_E_OFFLINE) return ERROR_KAFKA_STORAGE_ERROR;
    int32_t epoch = log_leader_epoch(p->read->log);
    if (p->leader_epoch >= 0 && p->leader_epoch < epoch) return ERROR_FENCED_LEADER_EPOCH;
    if (p->leader_epoch >= 0 && p->leader_epoch > epoch) return ERROR_UNKNOWN_LEADER_EPOCH;
    if (!may_read(f, p->read->log)) return ERROR_NOT_LEADER_OR_FOLLOWER;
    if (p->last_fetched_epoch < 0) return 0;
    /* The current epoch ends at the log end offset. */
    if (p->last_fetched_epoch == epoch && p->offset <= log_end_offset(p->read->log)) return 0;
    int32_t found;
    int64_t end;
    log_end_for_epoch(p->read->log, p->last_fetched_epoch, &found, &end);
    if (found < 0 || end < 0) return ERROR_OFFSET_OUT_OF_RANGE;
    if (found < p->last_fetched_epoch || end < p->offset) {
        p->read->diverging_epoch = found;
        p->read->diverging_end = end;
    }
    return 0;
}

static enum log_bound bound_of(const struct fetch *f) {
    if (fetch_is_follower(f)) return LOG_BOUND_END;
    return f->read_committed ? LOG_BOUND_LAST_STABLE : LOG_BOUND_HIGH_WATERMARK;
}

/* Takes one partition's range. `over`: the replication throttle has no quota left. */
static void read_part(struct fetch *f, struct fetch_part *p, int32_t bytes_left, bool at_least_one,
                      bool nowait, bool over) {
    struct fetch_read *read = p->read;
    if (over && read->throttled && read->behind) {
        bytes_left = 0;
        at_least_one = false;
    }
    assert_slow(bytes_left >= 0 && read->waiter.mailbox == NULL);
    fetch_release(read);
    memset(&read->range, 0, sizeof read->range);
    read->diverging_epoch = -1;
    read->error = read->grant_error;
    if (read->error == 0) read->error = fetch_check_epochs(f, p);
    if (read->error == 0) read->error = read->follow_error;
    if (read->error != 0) return;
    int32_t bytes = p->bytes_max < bytes_left ? p->bytes_max : bytes_left;
    enum log_bound bound = bound_of(f);
    int64_t offset = p->offset;
    if (read->diverging_epoch >= 0 || read->preferred >= 0) {
        /* The log has diverged or the client must read from another replica: return only the
         * offsets of the log, no records. */
        offset = log_end_offset(read->log);
        bytes = 0;
        at_least_one = false;
    }
    if (bytes < 0) bytes = 0;
    struct log_range *range = &read->range;
    int error = nowait ? log_read_nowait(read->log, offset, bound, bytes, at_least_one, range)
                       : log_read(read->log, offset, bound, bytes, at_least_one, range);
    if (error == LOG_E_WOULD_BLOCK) {
        f->blocked = true;
        return;
    }
    assert_slow(range->length >= 0);
    if (error != 0) {
        log_range_release(range);
        memset(range, 0, sizeof *range);
        read->error = log_error_code(error);
    }
}

/* Returns the end offset that a fetch waits for, and which kind it is. */
static int64_t awaited_end(const struct fetch *f, const struct log_range *range, uint8_t *kind) {
    if (fetch_is_follower(f)) {
        *kind = LOG_WAIT_END;
        return range->log_end_offset;
    }
    *kind = f->read_committed ? LOG_WAIT_LAST_STABLE : LOG_WAIT_HIGH_WATERMARK;
    return f->read_committed ? range->last_stable_offset : range->high_watermark;
}

static bool reaches_end(const struct fetch *f, const struct fetch_read *read) {
    uint8_t kind;
    return read->error == 0 && (read->range.length == 0 ||
                                read->range.next_offset >= awaited_end(f, &read->range, &kind));
}

/* Takes the range of every partition. Returns true if the fetch can be answered now (enough
 * bytes, an error, nothing to wait for). With `nowait`, f->blocked is set if finding a range
 * would have to wait for a disk. */
static bool evaluate(struct serve *s, struct fetch *f, bool nowait) {
    int64_t limit = f->bytes_max;
    if (limit > s->shared->limits.fetch_bytes_max) limit = s->shared->limits.fetch_bytes_max;
    int64_t taken = 0;
    uint32_t ranges = 0; /* each may become a part of the reply */
    bool ready = false, any = false, over = f->throttled && fetch_is_over(s);
    f->blocked = false;
    f->at_end = true;
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) {
        int64_t left = ranges < REPLY_PARTS_MAX ? limit - taken : 0;
        read_part(f, p, left < 0 ? 0 : (int32_t)left, taken == 0, nowait, over);
        if (f->blocked) return true;
        taken += p->read->range.length;
        ranges += p->read->range.length > 0;
        if (!reaches_end(f, p->read)) f->at_end = false;
        /* An unknown partition is part of the response, but does not end the wait. */
        if (fetch_is_unknown(p)) continue;
        any = true;
        if (p->read->error != 0 || p->read->diverging_epoch >= 0 || p->read->preferred >= 0)
            ready = true;
    }
    if (ready) f->at_end = false;
    f->taken = taken;
    return ready || !any || taken >= f->bytes_min;
}

/* Links a waiter to every partition. Returns true if an end offset has advanced since it was
 * read: evaluate again. */
static bool wait_all(struct serve *s, struct serve_request *r, struct fetch *f) {
    assert(!f->waiting);
    f->waiting = true;
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) {
        struct fetch_read *read = p->read;
        if (read->error != 0) continue;
        read->waiter = (struct log_waiter){.mailbox = s->mailbox, .token = r->token};
        read->waiter.as_follower = !fetch_is_follower(f) && log_is_readable(read->log);
        int64_t end = awaited_end(f, &read->range, &read->waiter.wait_for);
        read->waiter.offset = end > p->offset ? end : p->offset;
        if (log_wait(read->log, &read->waiter)) {
            read->waiter.mailbox = NULL;
            return true;
        }
    }
    return false;
}

/* Blocks, so it must run on a worker. */
static void warm(struct fetch *f) {
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next)
        if (p->read->range.length > 0 && log_range_warm(&p->read->range))
            log_count_cold(p->read->log);
}

static int cold_job(struct iojob *job, void *worker_scratch) {
    struct fetch *f = (struct fetch *)job;
    (void)worker_scratch;
    assert(!f->waiting); /* only the job's own message may access it */
    if (f->blocked) f->too_little = !evaluate(f->serve, f, false);
    warm(f);
    return 0;
}

static bool is_cold(const struct fetch *f) {
    if (f->blocked) return true;
    for (const struct fetch_part *p = f->set->first; p != NULL; p = p->next)
        if (p->read->range.length > 0 && p->read->copy == NULL &&
            log_range_is_cold(&p->read->range))
            return true;
    return false;
}

/* Keep responses with cold data small, so that other requests run in between. */
static void narrow(struct serve *s, struct fetch *f) {
    if (f->bytes_max <= COLD_BYTES_MAX) return;
    f->bytes_max = COLD_BYTES_MAX;
    (void)evaluate(s, f, true);
}

/* Limits waiting fetches with very many partitions: beyond the limit they are answered
 * immediately, because a waiting fetch takes some 300 bytes per partition for as long as the
 * client chooses. */
static bool may_wait(struct serve *s, struct fetch *f) {
    uint32_t count = f->set->count;
    if (count <= COUNTED_PARTITIONS || f->counted != 0) return true;
    _Atomic int64_t *waiting = &s->shared->fetches_waiting;
    if (atomic_fetch_add(waiting, count) + count > WAITING_PARTITIONS_MAX) {
        atomic_fetch_sub(waiting, count);
        return false;
    }
    f->counted = count;
    return true;
}

/* Returns true if the waiters are linked, false if an end offset has advanced: evaluate again. */
static bool link_waiters(struct serve *s, struct serve_request *r, struct fetch *f) {
    release_ranges(f);
    bool moved = wait_all(s, r, f);
    if (moved) unwait_all(f);
    return !moved;
}

/* Returns true if the fetch waits for more data, false if it must be evaluated again. */
static bool wait_for_more(struct serve *s, struct serve_request *r, struct fetch *f) {
    if (!link_waiters(s, r, f)) return false;
    r->deadline_ms = r->received_ms + f->wait_ms;
    return true;
}

/* The reactor never waits for a worker: if the pool is full, it submits the job again after a
 * pause. */
static enum serve_status submit(struct serve *s, struct serve_request *r, struct fetch *f,
                                int (*work)(struct iojob *job, void *worker_scratch)) {
    f->serve = s;
    f->job = (struct iojob){
        .run = work, .mailbox = s->mailbox, .token = r->token, .patient = true};
    assert(!f->job_running);
    f->job_running = iopool_submit(s->shared->pool, &f->job);
    f->lacks_worker = !f->job_running;
    r->deadline_ms = f->lacks_worker ? r->now_ms + WORKER_PAUSE_MS : INT64_MAX;
    return SERVE_WAIT;
}

/* Reads cold data on the io pool. The reactor never waits for the disk. */
static enum serve_status read_cold(struct serve *s, struct serve_request *r, struct fetch *f) {
    fetch_release_copies(f); /* workers must not touch shared copies */
    if (!f->blocked) narrow(s, f);
    assert(!f->waiting);
    enum serve_status status = submit(s, r, f, cold_job);
    if (f->lacks_worker) release_ranges(f);
    return status;
}

static enum serve_status finish(struct serve *s, struct serve_request *r, struct fetch *f) {
    if (!f->blocked) fetch_take_copies(s, f);
    return is_cold(f) ? read_cold(s, r, f) : fetch_answer(s, r, f);
}

/* Determines for which partitions the consumer should read from another replica. */
static void prefer(struct serve *s, const struct serve_request *r, struct fetch *f) {
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next)
        if (p->read->log != NULL) p->read->preferred = fetch_preferred(s, r, f, p);
}

static enum serve_status run(struct serve *s, struct serve_request *r, struct fetch *f,
                             bool last_chance) {
    unwait_all(f);
    if (fetch_is_follower(f) && !f->followed) fetch_follow(s, f);
    if (f->rack != NULL) prefer(s, r, f);
    for (;;) {
        bool ready = evaluate(s, f, true) || f->high_is_news;
        if (ready && !last_chance && fetch_gathers(s, r, f)) return SERVE_WAIT;
        if (ready || f->wait_ms <= 0 || last_chance) return finish(s, r, f);
        if (!may_wait(s, f)) return finish(s, r, f);
        if (wait_for_more(s, r, f)) return SERVE_WAIT;
    }
}

/* After the job. If the range was found on disk but is too small, the fetch waits as it would
 * have without the job. */
static enum serve_status found(struct serve *s, struct serve_request *r, struct fetch *f) {
    bool waits = f->too_little && !f->high_is_news && may_wait(s, f) &&
                 r->now_ms < r->received_ms + f->wait_ms;
    f->too_little = false;
    if (!waits) return fetch_answer(s, r, f);
    return wait_for_more(s, r, f) ? SERVE_WAIT : run(s, r, f, false);
}

/* Out of memory. */
static enum serve_status give_up(struct serve *s, struct serve_request *r) {
    fetch_free(s, r);
    return SERVE_CLOSE;
}

/* ---- wide fetches: a worker processes their partitions */

static enum fetch_outcome examine(struct serve *s, struct serve_request *r, struct fetch *f) {
    struct wide *w = f->wide;
    bool first = f->reads == NULL;
    if (first && !take_reads(f)) return FETCH_FAILED;
    unwait_all(f);
    if (first || w->granted || grants_voids(s->shared->grants) != f->voids) {
        if (!w->granted) r->missing_count = 0;
        if (!look_up(s, r, f, w->granted))
            return r->missing_count != 0 ? FETCH_MISSES : FETCH_FAILED;
        w->granted = false;
    }
    if (fetch_is_follower(f) && !f->followed) fetch_follow(s, f);
    if (f->rack != NULL) prefer(s, r, f);
    while (!evaluate(s, f, false) && !f->high_is_news) {
        if (f->wait_ms <= 0 || w->last_chance || !may_wait(s, f)) break;
        if (link_waiters(s, r, f)) return FETCH_WAITS;
    }
    if (is_cold(f) && f->bytes_max > COLD_BYTES_MAX) {
        f->bytes_max = COLD_BYTES_MAX;
        (void)evaluate(s, f, false);
    }
    warm(f);
    w->answer_bytes = fetch_answer_bytes(f);
    return FETCH_READY;
}

/* Runs the next step of a wide fetch on a worker. */
static int wide_job(struct iojob *job, void *worker_scratch) {
    struct fetch *f = (struct fetch *)job;
    struct wide *w = f->wide;
    (void)worker_scratch;
    if (w->outcome == FETCH_RELEASED) {
        release_reads(f);
    } else if (w->outcome == FETCH_READY) {
        fetch_build(f->serve, w->request, f, &w->reply);
        release_reads(f);
        w->outcome = FETCH_BUILT;
    } else {
        w->outcome = examine(f->serve, w->request, f);
    }
    return 0;
}

static enum serve_status examine_apart(struct serve *s, struct serve_request *r, struct fetch *f) {
    f->wide->again = false;
    f->wide->last_chance = f->wide->timed_out;
    f->wide->outcome = FETCH_FAILED;
    return submit(s, r, f, wide_job);
}

static enum serve_status start_wide(struct serve *s, struct serve_request *r, struct fetch *f) {
    f->wide = calloc(1, sizeof *f->wide);
    if (f->wide == NULL) return give_up(s, r);
    f->wide->request = r;
    reply_init(&f->wide->reply);
    f->joins = &f->wide->joins;
    return examine_apart(s, r, f);
}

/* Also for an abandoned fetch: a follower that caught up is reported only once. */
static void take_joins(struct serve *s, struct wide *w) {
    struct serve_joins *to = &s->joins;
    for (uint32_t i = 0; i < w->joins.count && to->count < SERVE_JOINS_MAX; i++)
        to->at[to->count++] = w->joins.at[i];
    w->joins.count = 0;
}

/* Continues on the reactor with the worker's result. */
static enum serve_status examined(struct serve *s, struct serve_request *r, struct fetch *f) {
    struct wide *w = f->wide;
    take_joins(s, w);
    switch (w->outcome) {
    case FETCH_MISSES: return SERVE_MISS;
    case FETCH_WAITS:
        if (w->again) return examine_apart(s, r, f);
        r->deadline_ms = r->received_ms + f->wait_ms;
        return SERVE_WAIT;
    case FETCH_READY:
        if (r->quota != NULL && !fetch_is_follower(f) &&
            serve_charge_fetch(r, w->answer_bytes) > 0)
            return fetch_answer_throttled(s, r, f);
        /* Allocate here: on a worker, its heap would keep megabytes. */
        reply_prepare(&w->reply, w->answer_bytes - (size_t)f->taken + REPLY_COPIED_BYTES_MAX);
        return submit(s, r, f, wide_job);
    case FETCH_BUILT:
        r->reply = w->reply;
        reply_init(&w->reply);
        return fetch_done(s, r, f);
    case FETCH_FAILED:
    case FETCH_RELEASED: break;
    }
    return give_up(s, r);
}

static enum serve_status resume_wide(struct serve *s, struct serve_request *r, struct fetch *f,
                                     enum serve_reason reason) {
    struct wide *w = f->wide;
    if (reason == SERVE_TIMEOUT && !f->lacks_worker) w->timed_out = true;
    if (f->job_running) {
        w->again = true;
        return SERVE_WAIT;
    }
    if (w->outcome == FETCH_READY) return submit(s, r, f, wide_job);
    w->granted = reason == SERVE_GRANTED;
    return examine_apart(s, r, f);
}

static enum serve_status refuse(struct serve *s, struct serve_request *r, struct fetch *f,
                                int16_t error) {
    fetch_set_clear(&f->own);
    f->set = &f->own;
    f->error = error;
    f->session_id = 0;
    return fetch_answer(s, r, f);
}

enum serve_status fetch_start(struct serve *s, struct serve_request *r) {
    assert_slow(r->api_key == API_FETCH);
    struct fetch *f = calloc(1, sizeof *f);
    if (f == NULL) return SERVE_CLOSE;
    r->state = f;
    f->joins = &s->joins;
    f->version = r->api_version;
    f->flexible = r->api_version >= 12; /* v12: tagged fields (KIP-482) */
    f->by_id = r->api_version >= 13;    /* v13: topic ids in place of names (KIP-516) */
    fetch_set_init(&f->own, f->by_id, sessions_seed(s->shared->sessions));
    f->set = &f->own;
    if (!fetch_parse(s, f, r)) {
        fetch_free(s, r);
        return SERVE_CLOSE;
    }
    int16_t error = open_context(s, r, f);
    r->body_needed = false; /* everything needed was copied */
    if (r->quota != NULL && !fetch_is_follower(f)) {
        /* A larger response could only be rejected by the quota. */
        int32_t max = quota_client_fetch_max(r->quota, s->shared->limits.fetch_bytes_max);
        if (f->bytes_max > max) f->bytes_max = max;
        if (f->bytes_min > f->bytes_max) f->bytes_min = f->bytes_max;
    }
    if (error != 0) return refuse(s, r, f, error);
    if (f->set->count > s->shared->limits.wide_partitions) return start_wide(s, r, f);
    if (take_reads(f) && look_up(s, r, f, false)) return run(s, r, f, false);
    return r->missing_count != 0 ? SERVE_MISS : give_up(s, r);
}

enum serve_status fetch_resume(struct serve *s, struct serve_request *r, enum serve_reason reason) {
    struct fetch *f = r->state;
    if (reason == SERVE_IO_DONE) {
        assert(f->job_running);
        f->job_running = false;
        return f->wide != NULL ? examined(s, r, f) : found(s, r, f);
    }
    if (f->wide != NULL) return resume_wide(s, r, f, reason);
    if (f->job_running) return SERVE_WAIT;
    bool granted = reason == SERVE_GRANTED;
    if (granted || grants_voids(s->shared->grants) != f->voids) {
        /* Records that arrived while the fetch waited may only be returned if the client still
         * has read permission. */
        if (!granted) {
            unwait_all(f);
            r->missing_count = 0;
        }
        if (!look_up(s, r, f, granted))
            return r->missing_count != 0 ? SERVE_MISS : give_up(s, r);
    }
    bool is_over = !f->lacks_worker || r->now_ms >= r->received_ms + f->wait_ms;
    f->lacks_worker = false;
    return run(s, r, f, reason == SERVE_TIMEOUT && is_over);
}

bool fetch_abandon(struct serve *s, struct serve_request *r) {
    struct fetch *f = r->state;
    if (f->job_running) {
        f->job_running = false;
        return false;
    }
    if (f->wide != NULL) take_joins(s, f->wide);
    if (f->wide != NULL && f->reads != NULL && f->wide->outcome != FETCH_MISSES) {
        f->wide->outcome = FETCH_RELEASED;
        (void)submit(s, r, f, wide_job);
        if (f->job_running) {
            f->job_running = false;
            return false;
        }
    }
    fetch_free(s, r);
    return true;
}
