/* A leader's state of the other replicas of its partition, and the high watermark derived from
 * it: the smallest end of the maximal ISR, including the leader (KIP-497), and of replicas that
 * are about to join. It does not move while fewer replicas are in sync than min.insync.replicas.
 *
 * The table and its replicas are read and changed under view.lock, which every fetch takes
 * anyway. A new table keeps a replica's state while its broker epoch is the same (KIP-903): a
 * restarted broker may have lost records that it had fetched. State from fetches with the new
 * broker epoch is also kept, even if they arrived before the metadata. */
#include "log/log_replicas.h"

#include <assert.h>
#include <stdlib.h>

#include "log/log_ends.h"
#include "log/log_struct.h"
#include "log/log_waiters.h"
#include "os/clock.h"
#include "os/lock.h"
#include "segment/log_error.h"

enum { NS_PER_MS = 1000000 };

static struct log_remote *log_remote_of(const struct log *log, int32_t broker)
    REQUIRES(log->view.lock) {
    struct log_replicas *all = log->view.replicas;
    for (uint32_t i = 0; all != NULL && i < all->count; i++)
        if (all->of[i].broker == broker) return &all->of[i];
    return NULL;
}

/* Returns true if it fetched with the broker epoch in the metadata. */
static bool log_remote_is_current(const struct log_remote *r) {
    return r->fetched_epoch < 0 || r->fetched_epoch == r->epoch;
}

/* Returns true if the high watermark waits for this replica: it is in the maximal ISR, or about
 * to join. Without the latter, the high watermark of a busy leader would always stay ahead of
 * it. */
static bool log_remote_counts(const struct log *log, const struct log_remote *r, int64_t now_ns)
    REQUIRES(log->view.lock) REQUIRES_SHARED(log->view.access) {
    if (r->maximal) return true;
    if (!r->eligible || r->fetched_ns == 0 || r->caught_up_ns == 0) return false;
    return log_remote_is_current(r) &&
           (now_ns - r->caught_up_ns) / NS_PER_MS <= log->view.config.replica_lag_ms;
}

static void log_replicas_raise(struct log *log, int64_t high) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access) {
    if (high <= atomic_load(&log->ends.high_watermark)) return;
    atomic_store(&log->ends.high_watermark, high);
    log_set_last_stable(log);
    log_ends_check(log);
}

void log_replicas_move(struct log *log, int64_t now_ns) {
    const struct log_replicas *all = log->view.replicas;
    if (!atomic_load(&log->role.leader)) return;
    if (all == NULL) {
        if (atomic_load(&log->role.alone)) log_replicas_raise(log, log_high_watermark_alone(log));
        return;
    }
    int64_t end = atomic_load(&log->ends.end_offset), high = end;
    bool alone = !log->view.config.flushed_records_only &&
                 (!log->view.config.flush_before_fetch || all->count == 0);
    if (!alone) high = atomic_load(&log->ends.flushed);
    for (uint32_t i = 0; i < all->count; i++) {
        const struct log_remote *r = &all->of[i];
        if (!log_remote_counts(log, r, now_ns)) continue;
        alone = false;
        if (r->end < high) high = r->end;
    }
    bool enough =
        atomic_load(&log->role.in_sync_count) >= atomic_load(&log->role.in_sync_count_min);
    assert(high <= end); /* A follower is never ahead of its leader. */
    assert(!alone || high == end);
    atomic_store(&log->role.alone, alone && enough);
    if (enough) log_replicas_raise(log, high);
}

void log_replicas_appended(struct log *log) {
    /* Other members of the maximal ISR have not fetched these records yet. */
    if (log->view.replicas->maximal_count == 0)
        log_replicas_move(log, clock_read_ns(CLOCK_MONOTONIC));
}

void log_replicas_set_min_isr(struct log *log) {
    int32_t count = log->view.replicas == NULL ? 1 : (int32_t)log->view.replicas->count + 1;
    int32_t wanted = log->view.config.min_insync_replicas;
    atomic_store(&log->role.in_sync_count_min, wanted < count ? wanted : count);
}

void log_replicas_forget(struct log *log) {
    free(log->view.replicas);
    log->view.replicas = NULL;
    log_replicas_set_min_isr(log);
}

/* Waiters compare the ends with their own offset, so it may be called if the ends did not move. */
static void log_replicas_wake(struct log *log) {
    log_wait_wake(log, LOG_WAIT_HIGH_WATERMARK, atomic_load(&log->ends.high_watermark));
    log_wait_wake(log, LOG_WAIT_LAST_STABLE, atomic_load(&log->ends.last_stable));
}

void log_replicas_advance(struct log *log) {
    log_view_lock(log);
    log_replicas_move(log, clock_read_ns(CLOCK_MONOTONIC));
    log_view_unlock(log);
    log_replicas_wake(log);
}

/* Builds one row of a new table, with the state from the old one. */
static struct log_remote log_remote_named(const struct log *log, const struct log_replica *named,
                                          int64_t now_ns) REQUIRES(log->view.lock) {
    const struct log_remote *known = log_remote_of(log, named->broker);
    struct log_remote r = {
        .end = -1, .start = -1, .leader_end_then = -1, .sent_high_watermark = -1};
    r.fetched_epoch = -1;
    r.caught_up_ns = named->in_sync ? now_ns : 0;
    if (known != NULL && (known->epoch == named->epoch ||
                          (named->epoch >= 0 && known->fetched_epoch == named->epoch)))
        r = *known;
    assert(!named->in_sync || named->maximal);
    r.broker = named->broker;
    r.epoch = named->epoch;
    r.in_sync = named->in_sync;
    r.maximal = named->maximal;
    r.eligible = named->eligible;
    r.asked = false;
    return r;
}

int log_set_replicas(struct log *log, int32_t partition_epoch, const struct log_replica *named,
                     uint32_t count, int32_t in_sync_count) {
    assert(count <= LOG_REPLICAS_MAX && in_sync_count >= 1);
    struct log_replicas *all = calloc(1, sizeof *all + count * sizeof all->of[0]);
    if (all == NULL) return LOG_E_MEMORY;
    int64_t now_ns = clock_read_ns(CLOCK_MONOTONIC);
    int result = 0;
    all->partition_epoch = partition_epoch;
    all->count = count;
    log_append_lock(log);
    log_view_change(log);
    struct log_replicas *before = log->view.replicas;
    if (!atomic_load(&log->role.leader)) result = LOG_E_NOT_LEADER;
    if (result == 0 && before != NULL && before->partition_epoch > partition_epoch) result = 1;
    for (uint32_t i = 0; result == 0 && i < count; i++) {
        all->of[i] = log_remote_named(log, &named[i], now_ns);
        all->maximal_count += named[i].maximal;
    }
    if (result == 0) {
        log->view.replicas = all;
        atomic_store(&log->role.in_sync_count, in_sync_count);
        atomic_store(&log->role.maximal_count, (int32_t)all->maximal_count + 1);
        log_replicas_set_min_isr(log);
        log_replicas_move(log, now_ns);
    }
    log_view_changed(log);
    log_append_unlock(log);
    free(result == 0 ? before : all);
    if (result == 0) log_replicas_wake(log);
    return result;
}

/* Returns true if the follower can join the ISR. It must have reached the start of this
 * leadership, up to which both histories are the same: other members of the ISR may have the
 * records that it lacks. */
static bool log_remote_may_join(const struct log *log, const struct log_remote *r)
    REQUIRES(log->view.lock) {
    return !r->maximal && !r->asked && r->eligible && log_remote_is_current(r) &&
           r->end >= atomic_load(&log->ends.high_watermark) &&
           r->end >= atomic_load(&log->role.epoch_start);
}

static void log_remote_fetched(struct log_remote *r, const struct log_follower_fetch *at,
                               int64_t end) {
    assert(at->now_ns > 0);
    if (at->offset >= end && at->now_ns > r->caught_up_ns)
        r->caught_up_ns = at->now_ns;
    else if (at->offset >= r->leader_end_then && r->fetched_ns > r->caught_up_ns)
        r->caught_up_ns = r->fetched_ns;
    if (end > r->leader_end_then) r->leader_end_then = end;
    r->fetched_ns = at->now_ns;
    r->fetched_epoch = at->epoch;
    r->end = at->offset;
    r->start = at->start_offset;
}

int log_follower_at(struct log *log, struct log_follower_fetch *at) {
    int result = 0;
    log_view_lock(log);
    int64_t end = atomic_load(&log->ends.end_offset);
    int64_t high = atomic_load(&log->ends.high_watermark);
    struct log_remote *r = log_remote_of(log, at->broker);
    /* In another leader epoch, the records before its offset may differ. */
    if (!atomic_load(&log->role.leader) ||
        atomic_load(&log->role.leader_epoch) != at->leader_epoch)
        result = LOG_E_NOT_LEADER;
    else if (r == NULL)
        result = LOG_E_NOT_REPLICA;
    else if (at->epoch >= 0 && at->epoch < r->epoch)
        result = LOG_E_NOT_LEADER; /* as in Kafka: that broker has restarted since */
    else if (at->offset < atomic_load(&log->ends.start_offset) || at->offset > end)
        result = LOG_E_RANGE;
    if (result == 0) {
        log_remote_fetched(r, at, end);
        /* Before the high watermark moves, because it may pass the follower's end. */
        if (at->may_ask && log_remote_may_join(log, r)) {
            r->asked = true;
            result = 1;
        }
        log_replicas_move(log, at->now_ns);
        at->sent_high_watermark = r->sent_high_watermark;
        at->in_sync = r->in_sync;
        r->sent_high_watermark = atomic_load(&log->ends.high_watermark);
    }
    bool moved = atomic_load(&log->ends.high_watermark) > high;
    log_view_unlock(log);
    if (moved) log_replicas_wake(log);
    return result;
}

void log_set_throttled(struct log *log, bool leading, bool following) {
    atomic_store(&log->role.throttled_leading, leading);
    atomic_store(&log->role.throttled_following, following);
}

bool log_is_throttled_leading(const struct log *log) {
    return atomic_load_explicit(&log->role.throttled_leading, memory_order_relaxed);
}

bool log_is_throttled_following(const struct log *log) {
    return atomic_load_explicit(&log->role.throttled_following, memory_order_relaxed);
}

uint32_t log_followers(struct log *log, struct log_follower *out, uint32_t max) {
    log_view_lock(log);
    const struct log_replicas *all = log->view.replicas;
    uint32_t count = all == NULL ? 0 : all->count;
    for (uint32_t i = 0; i < count && i < max; i++) {
        const struct log_remote *r = &all->of[i];
        out[i] = (struct log_follower){.broker = r->broker,
                                       .in_sync = r->in_sync,
                                       .epoch = r->fetched_epoch,
                                       .end = r->end,
                                       .start = r->start,
                                       .fetched_ns = r->fetched_ns,
                                       .caught_up_ns = r->caught_up_ns};
    }
    log_view_unlock(log);
    return count;
}
