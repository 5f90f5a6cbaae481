/* Many tailing readers through the real serve: the data they get, and when. Usage:
 * tailing_reads DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include <unistd.h>

#include "log_manager/log_manager.h"
#include "serve_scenes.h"

enum { READERS = 8, GATHER_MS = 5, ANSWERED_AT = 8 + 4 + 2 + 4 + 4 + 3 + 4 + 4 };

static int64_t now_ms;

/* Fetch the first partition as this reader, now. */
static enum serve_status fetch(struct serve_request *r, uint32_t reader, int64_t offset) {
    struct body m;
    make_fetch(&m, "a", offset, WAIT_MS);
    request(r, &m, FETCH, FETCH_VERSION);
    r->connection = reader;
    r->received_ms = r->now_ms = now_ms;
    return serve_start(serve, r);
}

static enum serve_status resume(struct serve_request *r, enum serve_reason reason) {
    r->now_ms = now_ms;
    return serve_resume(serve, r, reason);
}

/* Encode the response as it would be sent; *shared: bytes in shared copies. */
static size_t sent(const struct reply *a, uint8_t *to, size_t *shared) {
    size_t len = 0, at = 0;
    *shared = 0;
    for (uint32_t i = 0; i <= a->part_count; i++) {
        size_t end = i < a->part_count ? a->parts[i].bytes_end : a->len;
        memcpy(to + len, a->bytes + at, end - at);
        len += end - at;
        at = end;
        if (i == a->part_count) break;
        size_t n = (size_t)a->parts[i].range.length;
        CHECK(a->parts[i].copy != NULL); /* nothing here is long enough for sendfile */
        memcpy(to + len, a->parts[i].copy->bytes, n);
        *shared += n;
        len += n;
    }
    CHECK(len == get_u32(to) + 4);
    return len;
}

/* Check that the response contains this offset's batch, whose value begins with `mark`, and
 * clear it. */
static size_t take(struct serve_request *r, int64_t offset, char mark) {
    static uint8_t bytes[1 << 16];
    size_t shared;
    sent(&r->reply, bytes, &shared);
    const uint8_t *p = bytes + ANSWERED_AT;
    CHECK(get_i16(p) == 0 && get_i32(p + 34) > BATCH_HEADER_BYTES);
    const uint8_t *batch = p + 38;
    CHECK(get_i64(batch) == offset && batch[BATCH_HEADER_BYTES + 8] == mark);
    reply_clear(&r->reply);
    return shared;
}

/* Append a batch of one record with a value of 2000 bytes. */
static void append_long(struct log *log, char mark) {
    static uint8_t batch[4096];
    uint8_t record[2016] = {0xb8, 0x1f, 0, 0, 0, 1, 0xa0, 0x1f};
    struct batch_summary summary = {0};
    struct log_appended out;
    memset(record + 8, mark, 2000);
    record[2008] = 0;
    size_t len = scene_batch(batch, record, 2009, NOW, -1, -1);
    CHECK(batch_parse(batch, len, &summary.header) == 0);
    CHECK(log_append(log, batch, len, &summary, -1, NOW, &out) == 0);
}

/* Many readers of one range share one copy of it, and each gets all of it. */
static void shared_copies(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r[READERS];
    size_t in_copies = 0;
    open_topic(&a, "a", &config, true);
    for (int64_t offset = 0; offset < 4; offset++, now_ms += 10) {
        append_long(a.logs[0], (char)('a' + offset));
        in_copies = 0;
        for (uint32_t i = 0; i < READERS; i++) CHECK(fetch(&r[i], i, offset) == SERVE_ANSWER);
        for (uint32_t i = 0; i < READERS; i++)
            in_copies += take(&r[i], offset, (char)('a' + offset));
    }
    CHECK(in_copies == (size_t)READERS * (BATCH_HEADER_BYTES + 2009));
    serve_tick(serve, now_ms);
    serve_tick(serve, now_ms);
    delete_topic(&a);
}

/* Truncated and rewritten records are never sent from an older copy. */
static void cut(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r;
    open_topic(&a, "a", &config, true);
    append_long(a.logs[0], 'a');
    for (int round = 0; round < 5; round++) {
        append_long(a.logs[0], (char)('b' + round));
        for (uint32_t i = 0; i < READERS; i++) {
            CHECK(fetch(&r, i, 1) == SERVE_ANSWER);
            take(&r, 1, (char)('b' + round));
        }
        log_become_follower(a.logs[0], 2 * round + 1);
        CHECK(log_truncate(a.logs[0], 1, -1) == 0);
        CHECK(log_become_leader(a.logs[0], 2 * round + 2, 1) == 0);
    }
    delete_topic(&a);
}

/* Readers that use too much time wait, all until the same time, and are answered then. */
static void gathered(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r[READERS];
    open_topic(&a, "a", &config, true);
    append_long(a.logs[0], 'a');
    for (int round = 0; round < 8; round++)
        for (uint32_t i = 0; i < READERS; i++) {
            CHECK(fetch(&r[i], i, 0) == SERVE_ANSWER); /* of one millisecond: answered together */
            take(&r[i], 0, 'a');
        }
    now_ms++;
    append_long(a.logs[0], 'b');
    for (uint32_t i = 0; i < READERS; i++) {
        CHECK(fetch(&r[i], i, 1) == SERVE_WAIT);
        CHECK(r[i].deadline_ms > now_ms && r[i].deadline_ms <= now_ms + GATHER_MS);
        CHECK(r[i].deadline_ms == r[0].deadline_ms);
    }
    append_long(a.logs[0], 'c');
    CHECK(!message_waits()); /* nothing wakes them before */
    CHECK(serve_abandon(serve, &r[0]));
    reply_clear(&r[0].reply);
    now_ms = r[1].deadline_ms;
    for (uint32_t i = 1; i < READERS; i++) {
        CHECK(resume(&r[i], SERVE_TIMEOUT) == SERVE_ANSWER);
        CHECK(r[i].reply.len + r[i].reply.file_bytes > 4000); /* both batches */
        take(&r[i], 1, 'b');
    }
    delete_topic(&a);
}

/* A busy reactor immediately answers a reader that is behind, and one that does not wait. */
static void behind(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic a;
    struct serve_request r;
    struct body m;
    open_topic(&a, "a", &config, true);
    for (int i = 0; i < 40; i++) append_long(a.logs[0], 'a');
    for (int round = 0; round < 20; round++)
        for (uint32_t i = 0; i < READERS; i++) {
            CHECK(fetch(&r, i, 39) == SERVE_ANSWER);
            take(&r, 39, 'a');
        }
    now_ms++;
    CHECK(fetch(&r, 1, 39) == SERVE_WAIT);
    CHECK(serve_abandon(serve, &r));
    reply_clear(&r.reply);
    make_fetch(&m, "a", 0, WAIT_MS);
    put_i32(m.bytes + m.len - 10, 10000); /* byte limit of the partition */
    request(&r, &m, FETCH, FETCH_VERSION);
    r.received_ms = r.now_ms = now_ms;
    CHECK(serve_start(serve, &r) == SERVE_ANSWER);
    reply_clear(&r.reply);
    make_fetch(&m, "a", 39, 0);
    request(&r, &m, FETCH, FETCH_VERSION);
    r.received_ms = r.now_ms = now_ms;
    CHECK(serve_start(serve, &r) == SERVE_ANSWER);
    reply_clear(&r.reply);
    delete_topic(&a);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int32_t gather_ms_max;
        void (*play)(void);
    } scenes[] = {{"shared_copies", 0, shared_copies},
                  {"cut", 0, cut},
                  {"gathered", GATHER_MS, gathered},
                  {"behind", GATHER_MS, behind}};
    CHECK(argc == 3);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[2]) == 0) {
            scene_open(argv[1], disk_of(DISK_SYSTEM), scenes[i].gather_ms_max);
            now_ms = NOW;
            scenes[i].play();
            puts("ok");
            scene_close();
        }
    return 0;
}
