/* Serve, grants and logs without a reactor, for programs that send requests through them. */
#ifndef PYLOG_SERVE_SCENES_H
#define PYLOG_SERVE_SCENES_H

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "log_manager/log_manager.h"
#include "tables/grants.h"
#include "format/scratch.h"
#include "log/log_scenes.h"
#include "serve/serve.h"

enum {
    NOW = 1000000,
    PRODUCE = 0,
    PRODUCE_VERSION = 8,
    FETCH = 1,
    FETCH_VERSION = 11,
    CORRELATION = 7,
    PARTITIONS = 2,
    WAIT_MS = 30000
};

static struct log_dir *directory;
static struct grants *grants;
static struct mailbox *mailbox;
static struct iopool *pool;
static struct serve_shared *shared;
static struct serve *serve;

/* Open everything in the folder, with this disk. */
static inline void scene_open(const char *folder, const struct disk *disk, int32_t gather_ms_max) {
    const struct serve_limits limits = {.fetch_bytes_max = 1 << 20,
                                        .sessions_max = 4,
                                        .inline_inflate_bytes = 4096,
                                        .gather_ms_max = gather_ms_max};
    int error;
    pool = iopool_new(1, 64, scratch_new, scratch_free);
    directory = log_dir_new(folder, pool, &error);
    mailbox = mailbox_new(64);
    grants = grants_new(10);
    shared = serve_shared_new(grants, pool, &limits);
    serve = serve_new(shared, mailbox);
    CHECK(directory != NULL && serve != NULL);
    log_dir_set_disk(directory, disk);
}

static inline void scene_close(void) {
    serve_free(serve);
    serve_shared_free(shared);
    grants_free(grants);
    log_dir_free(directory);
    iopool_free(pool);
    mailbox_free(mailbox);
}

/* ---- topics ---- */

struct held_topic {
    struct log *logs[PARTITIONS];
    uint8_t id[16];
    char name[8];
};

/* `alone`: no other replica, so that appends are visible immediately. */
static inline void open_topic(struct held_topic *t, const char *name,
                              const struct log_config *config, bool alone) {
    const struct log_checkpoint checkpoint = {.log_start_offset = -1, .high_watermark = -1};
    memset(t, 0, sizeof *t);
    memset(t->id, name[0], sizeof t->id);
    strcpy(t->name, name);
    for (int i = 0; i < PARTITIONS; i++) {
        CHECK(log_open(directory, name, i, t->id, config, &checkpoint, NOW, &t->logs[i]) == 0);
        CHECK(log_become_leader(t->logs[i], 0, alone ? 1 : 2) == 0);
    }
    struct topic *made = topic_new(name, t->id, false, t->logs, PARTITIONS);
    CHECK(made != NULL && grants_install(grants, made) == 0);
    topic_release(made);
    CHECK(grants_allow(grants, 0, t->id, GRANT_READ | GRANT_WRITE) == 0);
}

/* Delete a topic: afterwards only pending requests hold references to its logs. */
static inline void delete_topic(struct held_topic *t) {
    grants_remove(grants, t->name, (uint16_t)strlen(t->name));
    for (int i = 0; i < PARTITIONS; i++) {
        CHECK(log_delete(t->logs[i], 0) == 0);
        log_release(t->logs[i]);
    }
}

/* ---- requests ---- */

struct body {
    uint8_t bytes[1 << 16];
    size_t len;
};

static inline uint8_t *room(struct body *m, size_t n) {
    CHECK(m->len + n <= sizeof m->bytes);
    m->len += n;
    return m->bytes + m->len - n;
}
static inline void add_i8(struct body *m, int8_t v) { *room(m, 1) = (uint8_t)v; }
static inline void add_i16(struct body *m, int16_t v) { put_i16(room(m, 2), v); }
static inline void add_i32(struct body *m, int32_t v) { put_i32(room(m, 4), v); }
static inline void add_i64(struct body *m, int64_t v) { put_i64(room(m, 8), v); }
static inline void add_string(struct body *m, const char *s) {
    add_i16(m, (int16_t)strlen(s));
    memcpy(room(m, strlen(s)), s, strlen(s));
}

/* Make a batch of one record; producer -1: none. */
static inline size_t make_batch(uint8_t *p, int64_t producer, int32_t sequence,
                                int16_t attributes) {
    const uint8_t record[] = {20, 0, 0, 0, 2, 'k', 6, 'a', 'b', 'c', 0};
    size_t len = scene_batch(p, record, sizeof record, NOW, producer, sequence);
    put_i16(p + 21, attributes);
    scene_seal(p, len);
    return len;
}

static inline void make_fetch(struct body *m, const char *topic, int64_t offset, int32_t wait_ms) {
    m->len = 0;
    add_i32(m, -1); /* replica */
    add_i32(m, wait_ms);
    add_i32(m, 1); /* minimum bytes */
    add_i32(m, 1 << 20);
    add_i8(m, 1); /* read committed */
    add_i32(m, 0);
    add_i32(m, -1);
    add_i32(m, 1);
    add_string(m, topic);
    add_i32(m, 1);
    add_i32(m, 0); /* partition */
    add_i32(m, -1);
    add_i64(m, offset);
    add_i64(m, -1);
    add_i32(m, 1 << 20);
    add_i32(m, 0);
    add_string(m, "");
}

static inline void request(struct serve_request *r, const struct body *m, int16_t key,
                           int16_t version) {
    memset(r, 0, sizeof *r);
    r->body = m->bytes;
    r->body_len = m->len;
    r->token = 1;
    r->correlation_id = CORRELATION;
    r->api_key = key;
    r->api_version = version;
    reply_init(&r->reply);
}

static inline enum serve_status start(struct serve_request *r, const struct body *m, int16_t key,
                                      int16_t version) {
    request(r, m, key, version);
    return serve_start(serve, r);
}

static inline void append(struct log *log, int64_t producer, int32_t sequence, int16_t attributes) {
    uint8_t batch[256];
    struct batch_summary summary = {0};
    struct log_appended out;
    size_t len = make_batch(batch, producer, sequence, attributes);
    if (attributes & BATCH_CONTROL) {
        /* Version 0, a commit; the value does not matter. */
        const uint8_t marker[] = {22, 0, 0, 0, 8, 0, 0, 0, 1, 2, 0, 0};
        memcpy(batch + BATCH_HEADER_BYTES, marker, sizeof marker);
        len = BATCH_HEADER_BYTES + sizeof marker;
        put_i32(batch + 8, (int32_t)len - BATCH_LOG_OVERHEAD);
        scene_seal(batch, len);
    }
    CHECK(batch_parse(batch, len, &summary.header) == 0);
    CHECK(log_append(log, batch, len, &summary, -1, NOW, &out) == 0);
}

static inline bool message_waits(void) {
    struct message l;
    return mailbox_take(mailbox, &l, 1) != 0;
}

static inline void await_message(struct message *l) {
    struct pollfd ready = {.fd = mailbox_fd(mailbox), .events = POLLIN};
    while (mailbox_take(mailbox, l, 1) == 0) {
        if (!mailbox_arm(mailbox)) continue;
        CHECK(poll(&ready, 1, WAIT_MS) == 1);
        mailbox_disarm(mailbox);
    }
}

#endif
