/* Produce and Fetch through the real serve, grants and logs, without a reactor: requests that park
 * or wait while something else happens to what they hold. Usage: serve_requests DIRECTORY SCENE.
 * Exit 0, or 1 with a line on stderr. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve/grants.h"
#include "format/scratch.h"
#include "log_scenes.h"
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

/* ---- a disk whose syncs wait ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held;
} syncs = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int slow_fdatasync(int fd) {
    pthread_mutex_lock(&syncs.lock);
    while (syncs.held) pthread_cond_wait(&syncs.changed, &syncs.lock);
    pthread_mutex_unlock(&syncs.lock);
    return fdatasync(fd);
}

static void hold_syncs(bool held) {
    pthread_mutex_lock(&syncs.lock);
    syncs.held = held;
    pthread_cond_broadcast(&syncs.changed);
    pthread_mutex_unlock(&syncs.lock);
}

/* ---- topics ---- */

struct held_topic {
    struct log *logs[PARTITIONS];
    uint8_t id[16];
    char name[8];
};

/* `alone`: no other replica, so that appends are visible at once. */
static void open_topic(struct held_topic *t, const char *name, const struct log_config *config,
                       bool alone) {
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
    CHECK(grants_allow(grants, 0, t->id, GRANT_READ | GRANT_WRITE | GRANT_KNOWN) == 0);
}

/* As a deletion does it: afterwards only requests under way keep the logs. */
static void delete_topic(struct held_topic *t) {
    grants_remove(grants, t->name, (uint16_t)strlen(t->name));
    for (int i = 0; i < PARTITIONS; i++) {
        CHECK(log_delete(t->logs[i], 0) == 0);
        log_release(t->logs[i]);
    }
}

/* ---- requests ---- */

struct body {
    uint8_t bytes[4096];
    size_t len;
};

static uint8_t *room(struct body *m, size_t n) {
    CHECK(m->len + n <= sizeof m->bytes);
    m->len += n;
    return m->bytes + m->len - n;
}
static void add_i8(struct body *m, int8_t v) { *room(m, 1) = (uint8_t)v; }
static void add_i16(struct body *m, int16_t v) { put_i16(room(m, 2), v); }
static void add_i32(struct body *m, int32_t v) { put_i32(room(m, 4), v); }
static void add_i64(struct body *m, int64_t v) { put_i64(room(m, 8), v); }
static void add_string(struct body *m, const char *s) {
    add_i16(m, (int16_t)strlen(s));
    memcpy(room(m, strlen(s)), s, strlen(s));
}

/* One record of a producer: -1 is none. */
static size_t make_batch(uint8_t *p, int64_t producer, int32_t sequence, int16_t attributes) {
    const uint8_t record[] = {20, 0, 0, 0, 2, 'k', 6, 'a', 'b', 'c', 0};
    size_t len = scene_batch(p, record, sizeof record, NOW, producer, sequence);
    put_i16(p + 21, attributes);
    scene_seal(p, len);
    return len;
}

/* acks=all to the first `count` partitions of each topic. */
static void make_produce(struct body *m, const char *const *topics, int count,
                         int32_t timeout_ms) {
    int32_t n = 0;
    while (topics[n] != NULL) n++;
    m->len = 0;
    add_i16(m, -1); /* no transactional id */
    add_i16(m, -1);
    add_i32(m, timeout_ms);
    add_i32(m, n);
    for (int32_t i = 0; i < n; i++) {
        add_string(m, topics[i]);
        add_i32(m, count);
        for (int32_t partition = 0; partition < count; partition++) {
            uint8_t batch[256];
            size_t len = make_batch(batch, -1, -1, 0);
            add_i32(m, partition);
            add_i32(m, (int32_t)len);
            memcpy(room(m, len), batch, len);
        }
    }
}

static void make_fetch(struct body *m, const char *topic, int64_t offset, int32_t wait_ms) {
    m->len = 0;
    add_i32(m, -1); /* replica */
    add_i32(m, wait_ms);
    add_i32(m, 1); /* bytes at least */
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

static enum serve_status start(struct serve_request *r, const struct body *m, int16_t key,
                               int16_t version) {
    memset(r, 0, sizeof *r);
    r->body = m->bytes;
    r->body_len = m->len;
    r->token = 1;
    r->correlation_id = CORRELATION;
    r->api_key = key;
    r->api_version = version;
    reply_init(&r->reply);
    return serve_start(serve, r);
}

/* The error codes of a Produce answer, partition by partition. */
static void read_produce_errors(struct serve_request *r, const char *const *topics, int count,
                                int16_t *errors) {
    const uint8_t *p = r->reply.bytes + 12; /* size, correlation, topics */
    for (int32_t i = 0; topics[i] != NULL; i++) {
        p += 2 + strlen(topics[i]) + 4;
        for (int k = 0; k < count; k++) {
            *errors++ = get_i16(p + 4);
            p += 4 + 2 + 8 + 8 + 8;
            CHECK(get_i32(p) == 0 && get_i16(p + 4) == -1);
            p += 6;
        }
    }
    CHECK(p + 4 == r->reply.bytes + r->reply.len);
    CHECK(r->state == NULL);
    reply_clear(&r->reply);
}

static bool message_waits(void) {
    struct message l;
    return mailbox_take(mailbox, &l, 1) != 0;
}

static void await_message(struct message *l) {
    struct pollfd ready = {.fd = mailbox_fd(mailbox), .events = POLLIN};
    while (mailbox_take(mailbox, l, 1) == 0) {
        if (!mailbox_arm(mailbox)) continue;
        CHECK(poll(&ready, 1, WAIT_MS) == 1);
        mailbox_disarm(mailbox);
    }
}

/* ---- scenes ---- */

/* A Produce to [a, missing] parks; a is deleted; the request goes on. */
static void parked(void) {
    const char *const topics[] = {"a", "missing", NULL};
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r;
    struct body m;
    int16_t errors[2 * PARTITIONS];
    for (int round = 0; round < 20; round++) {
        open_topic(&a, "a", &config, true);
        make_produce(&m, topics, PARTITIONS, WAIT_MS);
        CHECK(start(&r, &m, PRODUCE, PRODUCE_VERSION) == SERVE_MISS && r.missing_count == 1);
        delete_topic(&a);
        r.missing[0].error = 3;
        CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
        read_produce_errors(&r, topics, PARTITIONS, errors);
        CHECK(errors[0] == 6 && errors[1] == 6 && errors[2] == 3 && errors[3] == 3);
    }
}

/* The same, and a is there again, as another topic: what was parked goes to that one. */
static void replaced(void) {
    const char *const topics[] = {"a", "missing", NULL};
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a, again;
    struct serve_request r;
    struct body m;
    int16_t errors[2 * PARTITIONS];
    open_topic(&a, "a", &config, true);
    make_produce(&m, topics, PARTITIONS, WAIT_MS);
    CHECK(start(&r, &m, PRODUCE, PRODUCE_VERSION) == SERVE_MISS);
    delete_topic(&a);
    open_topic(&again, "a", &config, true);
    r.missing[0].error = 3;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    read_produce_errors(&r, topics, PARTITIONS, errors);
    CHECK(errors[0] == 0 && errors[1] == 0 && errors[2] == 3 && errors[3] == 3);
    CHECK(log_end_offset(again.logs[0]) == 1 && log_end_offset(again.logs[1]) == 1);
    delete_topic(&again);
}

/* A part whose other replica does not come is answered 7 at the deadline, the others as they are;
 * nothing is told of it afterwards. */
static void timed_out(void) {
    const char *const topics[] = {"a", NULL};
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r;
    struct body m;
    int16_t errors[PARTITIONS];
    open_topic(&a, "a", &config, false);
    make_produce(&m, topics, PARTITIONS, 50);
    CHECK(start(&r, &m, PRODUCE, PRODUCE_VERSION) == SERVE_WAIT);
    CHECK(!r.exclusive && r.deadline_ms == r.received_ms + 50);
    log_advance_high_watermark(a.logs[1], 1);
    CHECK(message_waits());
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_WAIT);
    CHECK(r.deadline_ms == r.received_ms + 50);
    CHECK(serve_resume(serve, &r, SERVE_TIMEOUT) == SERVE_ANSWER);
    read_produce_errors(&r, topics, PARTITIONS, errors);
    CHECK(errors[0] == 7 && errors[1] == 0);
    log_advance_high_watermark(a.logs[0], 1);
    CHECK(!message_waits());
    delete_topic(&a);
}

/* The same for a disk that takes longer than the client waits. */
static void timed_out_on_disk(void) {
    const char *const topics[] = {"a", NULL};
    struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r;
    struct body m;
    struct message l;
    int16_t errors[PARTITIONS];
    config.acks_all_flush = true;
    open_topic(&a, "a", &config, true);
    hold_syncs(true);
    make_produce(&m, topics, PARTITIONS, 50);
    CHECK(start(&r, &m, PRODUCE, PRODUCE_VERSION) == SERVE_WAIT);
    CHECK(serve_resume(serve, &r, SERVE_TIMEOUT) == SERVE_ANSWER);
    read_produce_errors(&r, topics, PARTITIONS, errors);
    CHECK(errors[0] == 7 && errors[1] == 7);
    /* The next one waits for both, and each tells it. */
    CHECK(start(&r, &m, PRODUCE, PRODUCE_VERSION) == SERVE_WAIT);
    hold_syncs(false);
    enum serve_status status = SERVE_WAIT;
    while (status == SERVE_WAIT) {
        await_message(&l);
        CHECK(l.kind == MESSAGE_WAKE && l.token == r.token);
        status = serve_resume(serve, &r, SERVE_WOKEN);
    }
    CHECK(status == SERVE_ANSWER);
    read_produce_errors(&r, topics, PARTITIONS, errors);
    CHECK(errors[0] == 0 && errors[1] == 0);
    CHECK(log_flushed_offset(a.logs[0]) == 2 && log_flushed_offset(a.logs[1]) == 2);
    delete_topic(&a);
}

/* A client that is gone while its Produce waits leaves no waiter behind. */
static void abandoned(void) {
    const char *const topics[] = {"a", NULL};
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r;
    struct body m;
    open_topic(&a, "a", &config, false);
    make_produce(&m, topics, PARTITIONS, WAIT_MS);
    CHECK(start(&r, &m, PRODUCE, PRODUCE_VERSION) == SERVE_WAIT);
    CHECK(serve_abandon(serve, &r));
    log_advance_high_watermark(a.logs[0], 1);
    CHECK(!message_waits());
    reply_clear(&r.reply);
    delete_topic(&a);
}

static void append(struct log *log, int64_t producer, int32_t sequence, int16_t attributes) {
    uint8_t batch[256];
    struct batch_summary summary = {0};
    struct log_appended out;
    size_t len = make_batch(batch, producer, sequence, attributes);
    if (attributes & BATCH_CONTROL) {
        /* Version 0, a commit; the value is of no matter. */
        const uint8_t marker[] = {22, 0, 0, 0, 8, 0, 0, 0, 1, 2, 0, 0};
        memcpy(batch + BATCH_HEADER_BYTES, marker, sizeof marker);
        len = BATCH_HEADER_BYTES + sizeof marker;
        put_i32(batch + 8, (int32_t)len - BATCH_LOG_OVERHEAD);
        scene_seal(batch, len);
    }
    CHECK(batch_parse(batch, len, &summary.header) == 0);
    CHECK(log_append(log, batch, len, &summary, -1, NOW, &out) == 0);
}

/* A reader of what is committed sleeps through what is not, and is woken by the marker. */
static void committed(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r;
    struct body m;
    struct message l;
    open_topic(&a, "a", &config, true);
    append(a.logs[0], 5, 0, BATCH_TRANSACTIONAL);
    make_fetch(&m, "a", 0, WAIT_MS);
    CHECK(start(&r, &m, FETCH, FETCH_VERSION) == SERVE_WAIT);
    append(a.logs[0], -1, -1, 0);
    CHECK(log_high_watermark(a.logs[0]) == 2 && log_last_stable_offset(a.logs[0]) == 0);
    CHECK(!message_waits());
    append(a.logs[0], 5, -1, BATCH_TRANSACTIONAL | BATCH_CONTROL);
    CHECK(log_last_stable_offset(a.logs[0]) == 3);
    await_message(&l);
    CHECK(l.kind == MESSAGE_WAKE && l.token == r.token);
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_ANSWER);
    /* Size, correlation, throttle, error, session, topics, name, partitions, partition. */
    const uint8_t *p = r.reply.bytes + 8 + 4 + 2 + 4 + 4 + 3 + 4 + 4;
    CHECK(get_i16(p) == 0 && get_i64(p + 2) == 3 && get_i64(p + 10) == 3);
    CHECK(get_i32(p + 26) == 0 && get_i32(p + 34) > 0);
    reply_clear(&r.reply);
    delete_topic(&a);
}

/* Who waits for the high watermark is woken when the leader becomes the only replica in sync. */
static void alone_at_last(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r;
    struct body m;
    struct message l;
    open_topic(&a, "a", &config, false);
    append(a.logs[0], -1, -1, 0);
    CHECK(log_high_watermark(a.logs[0]) == 0);
    make_fetch(&m, "a", 0, WAIT_MS);
    CHECK(start(&r, &m, FETCH, FETCH_VERSION) == SERVE_WAIT);
    CHECK(!message_waits());
    CHECK(log_become_leader(a.logs[0], 0, 1) == 0);
    CHECK(log_high_watermark(a.logs[0]) == 1 && log_last_stable_offset(a.logs[0]) == 1);
    await_message(&l);
    CHECK(l.kind == MESSAGE_WAKE && l.token == r.token);
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_ANSWER);
    reply_clear(&r.reply);
    delete_topic(&a);
}

/* A client that is gone while what it asked for is read from the disk: the request goes when the
 * read is over, and nothing wakes it before. */
static void abandoned_amid_a_read(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r;
    struct body m;
    struct log_range range;
    struct message l;
    open_topic(&a, "a", &config, true);
    /* More than the kernel reads ahead when the first of it is looked at. */
    for (int i = 0; i < 10000; i++) append(a.logs[0], -1, -1, 0);
    CHECK(log_flush(a.logs[0]) == 0);
    CHECK(log_read(a.logs[0], 0, LOG_BOUND_END, 1 << 20, true, &range) == 0);
    posix_fadvise(range.fd, 0, 0, POSIX_FADV_DONTNEED);
    bool cold = log_range_is_cold(&range);
    log_range_release(&range);
    if (cold) {
        make_fetch(&m, "a", 0, WAIT_MS);
        CHECK(start(&r, &m, FETCH, FETCH_VERSION) == SERVE_WAIT);
        CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_WAIT);
        CHECK(!serve_abandon(serve, &r));
        await_message(&l);
        CHECK(l.kind == MESSAGE_IO_DONE && l.token == r.token);
        CHECK(serve_abandon(serve, &r));
        reply_clear(&r.reply);
    }
    delete_topic(&a);
}

/* Without its disk a partition has no leader: that comes before any epoch that the client names. */
static void offline(void) {
    enum { FENCED = 74, UNKNOWN = 75, STORAGE = 56 };
    static const int16_t errors[] = {FENCED, 0, UNKNOWN, STORAGE, STORAGE, STORAGE};
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r;
    struct body m;
    open_topic(&a, "a", &config, true);
    append(a.logs[0], -1, -1, 0);
    CHECK(log_become_leader(a.logs[0], 1, 1) == 0);
    for (int i = 0; i < 6; i++) {
        if (i == 3) CHECK(log_dir_give_up(directory, EIO));
        make_fetch(&m, "a", 0, WAIT_MS);
        /* What follows it: offset, start, bytes, forgotten topics, rack. */
        put_i32(m.bytes + m.len - 30, i % 3);
        CHECK(start(&r, &m, FETCH, FETCH_VERSION) == SERVE_ANSWER);
        CHECK(get_i16(r.reply.bytes + 8 + 4 + 2 + 4 + 4 + 3 + 4 + 4) == errors[i]);
        reply_clear(&r.reply);
    }
    delete_topic(&a);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"parked", parked},
                  {"replaced", replaced},
                  {"timed_out", timed_out},
                  {"timed_out_on_disk", timed_out_on_disk},
                  {"abandoned", abandoned},
                  {"committed", committed},
                  {"alone_at_last", alone_at_last},
                  {"abandoned_amid_a_read", abandoned_amid_a_read},
                  {"offline", offline}};
    const struct serve_limits limits = {
        .fetch_bytes_max = 1 << 20, .sessions_max = 4, .inline_inflate_bytes = 4096};
    struct disk disk = *disk_of(DISK_SYSTEM);
    disk.fdatasync = slow_fdatasync;
    int error;
    CHECK(argc == 3);
    pool = iopool_new(1, 64, scratch_new, scratch_free);
    directory = log_dir_new(argv[1], pool, &error);
    mailbox = mailbox_new(64);
    grants = grants_new(10);
    shared = serve_shared_new(grants, pool, &limits);
    serve = serve_new(shared, mailbox);
    CHECK(directory != NULL && serve != NULL);
    log_dir_set_disk(directory, &disk);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[2]) == 0) {
            scenes[i].play();
            puts("ok");
        }
    serve_free(serve);
    serve_shared_free(shared);
    grants_free(grants);
    log_dir_free(directory);
    iopool_free(pool);
    mailbox_free(mailbox);
    return 0;
}
