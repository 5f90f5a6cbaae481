/* Send offsets to the leader only after they are on disk (replica.flush.before.fetch.enable):
 * one group commit for all partitions of a response, before the next request. */
#include "replica/fetcher_internal.h"

static uint64_t name_of(const struct flush_wait *w) {
    return (uint64_t)w->item.generation << 32 | w->item.index;
}

/* Another thread may still be unlinking this waiter. log_unwait() takes the same lock, so it
 * runs after that. */
static void end_wait(struct fetcher *f, struct flush_wait *w) REQUIRES(f->role) {
    struct fetch_partition *p = w->followed;
    log_unwait(p->log, &w->waiter);
    slab_give(&f->flushes, w);
    if (p->flushing) {
        assert(p->leader->flushing_count > 0);
        p->leader->flushing_count--;
    }
    p->flushing = false;
    fetch_partition_release(p);
}

static void begin_wait(struct fetcher *f, struct fetch_partition *p) REQUIRES(f->role) {
    int64_t end = log_end_offset(p->log);
    if (p->flushing || log_flushed_offset(p->log) >= end) return;
    bool grew;
    struct flush_wait *w = slab_take(&f->flushes, &grew);
    if (w == NULL) {
        fetch_partition_fail(f, p, LOG_E_MEMORY);
        return;
    }
    w->followed = p;
    w->waiter = (struct log_waiter){.mailbox = f->mailbox,
                                    .token = name_of(w),
                                    .offset = end - 1,
                                    .wait_for = LOG_WAIT_FLUSHED,
                                    .as_follower = true};
    fetch_partition_retain(p);
    p->flushing = true;
    p->leader->flushing_count++;
    if (log_wait(p->log, &w->waiter)) end_wait(f, w);
}

bool flush_wait_begin(struct fetcher *f, struct leader *l) {
    if (!f->all->config.flush_first) return true;
    for (struct fetch_partition *p = l->changed, *next; p != NULL; p = next) {
        next = p->next_changed;
        begin_wait(f, p);
    }
    return l->flushing_count == 0;
}

/* Checks a wait after its wake-up, or after wake-ups may have been lost. */
static void look(struct fetcher *f, struct flush_wait *w) REQUIRES(f->role) {
    struct fetch_partition *p = w->followed;
    int failed = log_failed(p->log);
    bool done = log_flushed_offset(p->log) > w->waiter.offset || !p->flushing;
    if (!done && (failed == 0 || failed == LOG_E_NOT_LEADER)) {
        log_unwait(p->log, &w->waiter);
        if (!log_wait(p->log, &w->waiter)) return;
        done = true;
    }
    end_wait(f, w);
    if (!done && p->leader != NULL && atomic_load(&p->state) == FETCH_PARTITION_FETCHING)
        fetch_partition_fail(f, p, failed);
}

void flush_wait_woken(struct fetcher *f, uint64_t token) {
    struct flush_wait *w = slab_find(&f->flushes, (uint32_t)token, (uint32_t)(token >> 32));
    if (w != NULL) look(f, w);
}

void flush_wait_poll(struct fetcher *f) {
    for (uint32_t i = 0; i < slab_room(&f->flushes); i++) {
        struct flush_wait *w = slab_at(&f->flushes, i);
        if (w != NULL) look(f, w);
    }
}

void flush_wait_end(struct fetcher *f) {
    for (uint32_t i = 0; i < slab_room(&f->flushes); i++) {
        struct flush_wait *w = slab_at(&f->flushes, i);
        if (w != NULL) end_wait(f, w);
    }
}
