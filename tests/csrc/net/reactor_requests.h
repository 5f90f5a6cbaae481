/* A stub of serve: the first letter of a request selects what happens to it.
 *
 * A answered with its body, S silent, C invalid, W waits for n ms, X exclusively with its body,
 * H waits for a message only, Q is queued, M misses n names, V is verified, T answered and muted
 * for n ms, U silent and muted, R a range of n bytes of the file, P the same from a copy,
 * J a job reads the body. */
#ifndef PYLOG_REACTOR_REQUESTS_H
#define PYLOG_REACTOR_REQUESTS_H

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "format/bytes.h"
#include "serve/api_keys.h"
#include "serve/serve.h"
#include "scenes.h"

enum { VERSION = 8, /* of every request: headers without tags */ STARTS_MAX = 1024 };

struct serve {
    struct mailbox *mailbox;
    uint32_t queued_count;
    struct serve_request *queued[64];
};
struct work {
    struct serve_missing missing[4];
    bool job_running;
};
static struct {
    struct serve_request *starts[STARTS_MAX]; /* the first ones */
    bool more[STARTS_MAX];
    int started, resumed, woken, timed_out, io_done, granted, abandoned, ticks;
    int ranges, ranges_failed, live;
    int64_t ticked_ms, resumed_ms;
    int16_t verdicts[4];
} serve_seen;
static int candidates_left;      /* fetches that report a follower ready for the ISR */
static bool resume_refuses; /* a resumed request turns out to be invalid */
static int file = -1; /* of the ranges */

static inline void open_file(void) {
    enum { FILE_BYTES = 4 << 20 };
    file = memfd_create("log", MFD_CLOEXEC);
    CHECK(ftruncate(file, FILE_BYTES) == 0);
    uint8_t *map = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    for (int i = 0; i < FILE_BYTES; i++) map[i] = (uint8_t)(i % 251);
    munmap(map, FILE_BYTES);
}

ssize_t log_range_read(const struct log_range *range, void *to, size_t len, int64_t position) {
    return pread(range->fd, to, len, position);
}
void log_range_failed(const struct log_range *range, int error) {
    CHECK(range->fd == file && error == EIO);
    serve_seen.ranges_failed++;
}
void log_range_release(struct log_range *range) {
    if (range->segment != NULL) serve_seen.ranges--;
    range->segment = NULL;
}

struct serve *serve_new(struct serve_shared *shared, struct mailbox *mailbox) {
    (void)shared;
    struct serve *s = calloc(1, sizeof *s);
    if (s != NULL) s->mailbox = mailbox;
    return s;
}
void serve_free(struct serve *s) { free(s); }
void serve_meter(struct serve *s, struct meter_api *apis) { (void)s, (void)apis; }
void serve_tick(struct serve *s, int64_t at_ms) {
    (void)s;
    serve_seen.ticked_ms = at_ms;
    serve_seen.ticks++;
}
uint32_t serve_take_isr_candidates(struct serve *s, const struct isr_candidate **candidates) {
    static const struct isr_candidate one = {.partition = 4, .broker = 9};
    (void)s;
    *candidates = &one;
    return candidates_left > 0 ? (candidates_left--, 1) : 0;
}
bool serve_knows(int16_t api_key, int16_t api_version) {
    return api_key <= API_FETCH && api_version == VERSION;
}
bool serve_is_queued(const struct serve *s) { return s->queued_count > 0; }

static enum serve_status echo(struct serve_request *r, const void *bytes, size_t len) {
    reply_i32(&r->reply, 0);
    reply_i32(&r->reply, r->correlation_id);
    reply_bytes(&r->reply, bytes, len);
    reply_finish(&r->reply);
    return r->reply.failed ? SERVE_CLOSE : SERVE_ANSWER;
}

static enum serve_status send_range(struct serve_request *r, uint32_t n, bool copied) {
    struct log_range range = {
        .segment = (void *)&serve_seen, .fd = file, .position = 8, .length = (int32_t)n};
    reply_i32(&r->reply, 0);
    reply_i32(&r->reply, r->correlation_id);
    serve_seen.ranges++;
    if (copied) {
        struct copy *copy = malloc(sizeof *copy + n);
        *copy = (struct copy){.references = 1, .length = (int32_t)n};
        CHECK(pread(file, copy->bytes, n, 8) == (ssize_t)n);
        reply_copy(&r->reply, &range, copy);
    } else {
        reply_range(&r->reply, &range);
    }
    reply_bytes(&r->reply, "!", 1);
    reply_finish(&r->reply);
    return SERVE_ANSWER;
}

static struct work *begin_waiting(struct serve_request *r) {
    r->state = calloc(1, sizeof(struct work));
    serve_seen.live++;
    return r->state;
}
static void end_waiting(struct serve_request *r) {
    serve_seen.live -= r->state != NULL;
    free(r->state);
    r->state = NULL;
}

static enum serve_status miss(struct serve_request *r, uint32_t n, bool verifies) {
    struct work *w = begin_waiting(r);
    for (uint32_t i = 0; i < n; i++) {
        bool named = i % 2 == 0;
        w->missing[i] = (struct serve_missing){.name = named ? r->body + 5 : NULL,
                                               .name_len = named ? (int32_t)(i + 1) : -1,
                                               .partition = (int32_t)i + 10};
        w->missing[i].id[15] = (uint8_t)(i + 1);
    }
    r->missing = w->missing;
    r->missing_count = n;
    r->transaction = (struct serve_transaction){0};
    if (verifies) r->transaction = (struct serve_transaction){r->body, 3, 5, 77};
    return SERVE_MISS;
}

enum serve_status serve_start(struct serve *s, struct serve_request *r) {
    uint32_t n = get_u32(r->body + 1);
    CHECK(r->body_len >= 5);
    if (serve_seen.started < STARTS_MAX) {
        serve_seen.starts[serve_seen.started] = r;
        serve_seen.more[serve_seen.started] = r->more;
    }
    serve_seen.started++;
    r->deadline_ms = INT64_MAX;
    r->body_needed = r->exclusive = true;
    switch (r->body[0]) {
    case 'A': return echo(r, r->body, r->body_len);
    case 'T': r->throttle_ms = (int32_t)n; return echo(r, r->body, r->body_len);
    case 'U': r->throttle_ms = (int32_t)n; return SERVE_SILENT;
    case 'S': return SERVE_SILENT;
    case 'R':
    case 'P': return send_range(r, n, r->body[0] == 'P');
    case 'M':
    case 'V': return miss(r, n, r->body[0] == 'V');
    case 'Q':
        r->body_needed = r->exclusive = false;
        s->queued[s->queued_count++] = r;
        begin_waiting(r);
        return SERVE_QUEUED;
    case 'J': begin_waiting(r)->job_running = true; return SERVE_WAIT;
    case 'W': r->body_needed = r->exclusive = false; /* fallthrough */
    case 'X': r->deadline_ms = r->now_ms + n; /* fallthrough */
    case 'H': begin_waiting(r); return SERVE_WAIT;
    default: return SERVE_CLOSE;
    }
}

enum serve_status serve_resume(struct serve *s, struct serve_request *r, enum serve_reason reason) {
    (void)s;
    struct work *w = r->state;
    serve_seen.resumed++;
    CHECK(w != NULL);
    serve_seen.resumed_ms = r->now_ms;
    if (reason == SERVE_GRANTED) {
        serve_seen.granted++;
        for (uint32_t i = 0; i < r->missing_count; i++)
            serve_seen.verdicts[i] = r->missing[i].error;
    }
    serve_seen.woken += reason == SERVE_WOKEN;
    serve_seen.timed_out += reason == SERVE_TIMEOUT;
    serve_seen.io_done += reason == SERVE_IO_DONE;
    if (reason != SERVE_IO_DONE && w->job_running) return SERVE_WAIT;
    if (resume_refuses) {
        end_waiting(r);
        return SERVE_CLOSE;
    }
    char body[5];
    bool needed = r->body_needed;
    if (needed) memcpy(body, r->body, sizeof body);
    end_waiting(r);
    return echo(r, needed ? body : "later", 5);
}

struct serve_request *serve_next_appended(struct serve *s, enum serve_status *status) {
    if (s->queued_count == 0) return NULL;
    struct serve_request *r = s->queued[0];
    s->queued_count--;
    memmove(s->queued, s->queued + 1, s->queued_count * sizeof *s->queued);
    end_waiting(r);
    *status = echo(r, "appended", 8);
    return r;
}

bool serve_abandon(struct serve *s, struct serve_request *r) {
    serve_seen.abandoned++;
    for (uint32_t i = 0; i < s->queued_count; i++)
        if (s->queued[i] == r) {
            s->queued_count--;
            memmove(s->queued + i, s->queued + i + 1, (s->queued_count - i) * sizeof *s->queued);
            i--;
        }
    struct work *w = r->state;
    if (w != NULL && w->job_running) {
        w->job_running = false;
        return false;
    }
    end_waiting(r);
    return true;
}

#endif
