/* Produce and Fetch through the real serve, grants and logs, without a reactor: requests that
 * park or wait while their objects change. Usage: serve_requests DIRECTORY SCENE. Exits with 0,
 * or with 1 and a line on stderr. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve/grant_requests.h"
#include "serve/fetch_sessions.h"
#include "serve_scenes.h"

/* ---- a disk whose syncs can be blocked ---- */

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

/* ---- requests ---- */

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

/* Read the error codes of a Produce response, partition by partition. */
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

/* ---- scenes ---- */

/* A Produce to [a, missing] parks; a is deleted; the request queries it, too, and continues. */
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
        CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_MISS && r.missing_count == 2);
        r.missing[0].error = 17;
        r.missing[1].error = 3;
        CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
        read_produce_errors(&r, topics, PARTITIONS, errors);
        CHECK(errors[0] == 17 && errors[1] == 17 && errors[2] == 3 && errors[3] == 3);
    }
}

/* Void the grants `voids` times before the request continues. */
static void make_void(int voids) {
    const char *const topics[] = {"a", NULL};
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r;
    struct body m;
    int16_t errors[PARTITIONS];
    make_produce(&m, topics, PARTITIONS, WAIT_MS);
    CHECK(start(&r, &m, PRODUCE, PRODUCE_VERSION) == SERVE_MISS);
    for (int i = 0; i < voids && i < GRANT_REQUEST_ROUNDS_MAX; i++) {
        CHECK(r.missing_count == 1);
        r.missing[0].error = 0;
        CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_MISS);
    }
    bool is_given_up = voids > GRANT_REQUEST_ROUNDS_MAX;
    if (!is_given_up) open_topic(&a, "a", &config, true);
    r.missing[0].error = 0;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    read_produce_errors(&r, topics, PARTITIONS, errors);
    CHECK(errors[0] == (is_given_up ? 6 : 0) && errors[1] == errors[0]);
    if (!is_given_up) delete_topic(&a);
}

static void voided(void) {
    make_void(1);
    make_void(GRANT_REQUEST_ROUNDS_MAX);
    make_void(GRANT_REQUEST_ROUNDS_MAX + 1);
}

/* The same, and a is re-created as another topic: the parked part goes to the new one. */
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

/* A partition whose replica does not fetch gets error 7 at the deadline, the others their
 * results; no notification follows. */
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

/* The same for a disk that takes longer than the request's timeout. */
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
    /* The next one waits for both, and each notifies it. */
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

/* A client that disconnects while its Produce waits leaves no waiter behind. */
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

/* A read_committed reader is not woken by uncommitted records, but by the marker. */
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

/* A reader that waits for the high watermark is woken when only the leader is in sync. */
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

/* A client disconnects while its data is read from disk: the request ends after the read,
 * without a wake-up before. */
static void abandoned_amid_a_read(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r;
    struct body m;
    struct log_range range;
    struct message l;
    open_topic(&a, "a", &config, true);
    /* More than the kernel reads ahead at the first access. */
    for (int i = 0; i < 10000; i++) append(a.logs[0], -1, -1, 0);
    CHECK(log_flush(a.logs[0]) == 0);
    CHECK(log_read(
              a.logs[0],
              &(struct log_read_request){.offset = 0, .bytes_max = 1 << 20, .at_least_one = true},
              &range) == 0);
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

/* Without its disk a partition has no leader: that takes precedence over any epoch of the
 * client. */
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
        if (i == 3) CHECK(log_dir_report_error(directory, EIO));
        make_fetch(&m, "a", 0, WAIT_MS);
        /* The following fields: offset, start, bytes, forgotten topics, rack. */
        put_i32(m.bytes + m.len - 30, i % 3);
        CHECK(start(&r, &m, FETCH, FETCH_VERSION) == SERVE_ANSWER);
        CHECK(get_i16(r.reply.bytes + 8 + 4 + 2 + 4 + 4 + 3 + 4 + 4) == errors[i]);
        reply_clear(&r.reply);
    }
    delete_topic(&a);
}

/* Start a Produce to the first `count` partitions of a; more requests of the turn follow. */
static enum serve_status start_amid(struct serve_request *r, struct body *m, int count) {
    const char *const topics[] = {"a", NULL};
    make_produce(m, topics, count, WAIT_MS);
    request(r, m, PRODUCE, PRODUCE_VERSION);
    r->more = r->exclusive = r->body_needed = true;
    return serve_start(serve, r);
}

static void check_next(struct serve_request *r, int64_t base_offset) {
    const char *const topics[] = {"a", NULL};
    enum serve_status status = SERVE_CLOSE;
    int16_t error = -1;
    CHECK(serve_next_appended(serve, &status) == r && status == SERVE_ANSWER);
    CHECK(get_i64(r->reply.bytes + 12 + 2 + 1 + 4 + 4 + 2) == base_offset);
    read_produce_errors(r, topics, 1, &error);
    CHECK(error == 0);
}

/* Requests of one turn are appended together, in order, even if a client has disconnected; a
 * request with two partitions is appended separately, after those before it. */
static void queued(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r[4];
    struct body m;
    enum serve_status status;
    int16_t errors[PARTITIONS];
    const char *const topics[] = {"a", NULL};
    open_topic(&a, "a", &config, true);
    CHECK(serve_next_appended(serve, &status) == NULL);
    for (int i = 0; i < 3; i++) {
        CHECK(start_amid(&r[i], &m, 1) == SERVE_QUEUED);
        CHECK(!r[i].body_needed && !r[i].exclusive);
        memset(m.bytes, 0xff, sizeof m.bytes);
    }
    CHECK(log_end_offset(a.logs[0]) == 0);
    CHECK(start_amid(&r[3], &m, PARTITIONS) == SERVE_ANSWER);
    CHECK(log_end_offset(a.logs[0]) == 4 && log_end_offset(a.logs[1]) == 1);
    read_produce_errors(&r[3], topics, PARTITIONS, errors);
    CHECK(serve_abandon(serve, &r[1]));
    check_next(&r[0], 0);
    check_next(&r[2], 2);
    CHECK(serve_next_appended(serve, &status) == NULL);
    /* Requests of a disconnected client are still appended: acks=0 may have been intended. */
    CHECK(start_amid(&r[0], &m, 1) == SERVE_QUEUED && start_amid(&r[1], &m, 1) == SERVE_QUEUED);
    CHECK(serve_abandon(serve, &r[1]) && serve_abandon(serve, &r[0]));
    CHECK(serve_next_appended(serve, &status) == NULL);
    CHECK(log_end_offset(a.logs[0]) == 6);
    delete_topic(&a);
}

/* More requests than a group accepts, to more logs than there are groups: all are appended, in
 * order. */
static void queued_many(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    enum { TOPICS = 5, REQUESTS = 500 };
    static struct held_topic of[TOPICS];
    static struct serve_request r[REQUESTS];
    struct body m;
    enum serve_status status;
    int16_t error;
    for (int i = 0; i < TOPICS; i++) {
        const char name[] = {(char)('a' + i), 0};
        open_topic(&of[i], name, &config, true);
    }
    for (int i = 0; i < REQUESTS; i++) {
        const char name[] = {(char)('a' + i % TOPICS), 0};
        const char *const topics[] = {i < 300 ? "a" : name, NULL};
        make_produce(&m, topics, 1, WAIT_MS);
        request(&r[i], &m, PRODUCE, PRODUCE_VERSION);
        r[i].more = true;
        CHECK(serve_start(serve, &r[i]) == SERVE_QUEUED);
    }
    struct serve_request *next;
    int64_t seen[TOPICS] = {0};
    int count = 0;
    while ((next = serve_next_appended(serve, &status)) != NULL) {
        const char *const any[] = {"a", NULL};
        int topic = next->reply.bytes[14] - 'a';
        CHECK(status == SERVE_ANSWER);
        CHECK(get_i64(next->reply.bytes + 12 + 2 + 1 + 4 + 4 + 2) == seen[topic]++);
        read_produce_errors(next, any, 1, &error);
        CHECK(error == 0);
        count++;
    }
    CHECK(count == REQUESTS && seen[0] == 340 && seen[4] == 40);
    for (int i = 0; i < TOPICS; i++) delete_topic(&of[i]);
}

/* A truncated Fetch, and one of too many partitions. */
static void illegal(void) {
    enum {
        PARTITION_BYTES = 4 + 4 + 8 + 8 + 4,
        REST_BYTES = 4 + 2,
        COUNT = FETCH_PARTITIONS_MAX + 1
    };
    struct serve_request r;
    struct body m;
    make_fetch(&m, "a", 0, 0);
    for (size_t len = 0; len < m.len; len++) {
        uint8_t *cut = malloc(len + 1); /* so that reads beyond it are detected */
        CHECK(cut != NULL);
        memcpy(cut + 1, m.bytes, len);
        request(&r, &m, FETCH, FETCH_VERSION);
        r.body = cut + 1;
        r.body_len = len;
        CHECK(serve_start(serve, &r) == SERVE_CLOSE && r.state == NULL);
        reply_clear(&r.reply);
        free(cut);
    }
    size_t head = m.len - REST_BYTES - PARTITION_BYTES, len = head;
    uint8_t *many = malloc(m.len + (size_t)COUNT * PARTITION_BYTES);
    CHECK(many != NULL);
    memcpy(many, m.bytes, head);
    put_i32(many + head - 4, COUNT);
    for (int32_t i = 0; i < COUNT; i++, len += PARTITION_BYTES) {
        memcpy(many + len, m.bytes + head, PARTITION_BYTES);
        put_i32(many + len, i);
    }
    memcpy(many + len, m.bytes + head + PARTITION_BYTES, REST_BYTES);
    request(&r, &m, FETCH, FETCH_VERSION);
    r.body = many;
    r.body_len = len + REST_BYTES;
    CHECK(serve_start(serve, &r) == SERVE_CLOSE && r.state == NULL);
    reply_clear(&r.reply);
    free(many);
}

/* The frame's size has 31 bits. */
static void too_long(void) {
    for (int32_t more = 0; more < 2; more++) {
        struct log_range ranges[] = {{.fd = -1, .length = 1 << 30},
                                     {.fd = -1, .length = (1 << 30) - 5 + more}};
        struct reply r;
        reply_init(&r);
        reply_i32(&r, 0);
        reply_range(&r, &ranges[0]);
        reply_range(&r, &ranges[1]);
        CHECK(!r.failed);
        reply_finish(&r);
        CHECK(r.failed == (more == 1));
        if (more == 0) CHECK(get_i32(r.bytes) == INT32_MAX - 4);
        reply_clear(&r);
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"parked", parked},
                  {"replaced", replaced},
                  {"voided", voided},
                  {"timed_out", timed_out},
                  {"timed_out_on_disk", timed_out_on_disk},
                  {"abandoned", abandoned},
                  {"committed", committed},
                  {"alone_at_last", alone_at_last},
                  {"abandoned_amid_a_read", abandoned_amid_a_read},
                  {"offline", offline},
                  {"queued", queued},
                  {"queued_many", queued_many},
                  {"illegal", illegal},
                  {"too_long", too_long}};
    struct disk disk = *disk_of(DISK_SYSTEM);
    disk.fdatasync = slow_fdatasync;
    CHECK(argc == 3);
    scene_open(argv[1], &disk, 0);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[2]) == 0) {
            scenes[i].play();
            puts("ok");
        }
    scene_close();
    return 0;
}
