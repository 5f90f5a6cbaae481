/* Produce requests of one turn that are appended as a group, through the real serve. Usage:
 * serve_groups DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "log_manager/log_manager.h"
#include "serve/produce_internal.h"
#include "serve_messages.h"
#include "watched.h"

enum {
    VERSION = 9,
    REQUESTS_MAX = 64,   /* in a group */
    GROUP_BYTES = 32768, /* bytes of a group */
    BATCH_BYTES = 4096,  /* bytes of a batch in it */
    LOGS_MAX = 4,
    SHORT_BYTES = 72, /* size of make_batch's batch */
    NOT_LEADER = 6,
    OUT_OF_ORDER = 45,
    STORAGE = 56
};

static struct held_topic a;
static struct body m;
static struct serve_request r[2 * REQUESTS_MAX];
static uint8_t batch[2 * BATCH_BYTES], body[3 * BATCH_BYTES];

/* ---- a disk with as much free space as a scene sets ---- */

static int64_t room_bytes = INT64_MAX, taken_bytes;
static int takes;

bool __real_log_dir_reserve(struct log_dir *dir, int64_t n);
bool __wrap_log_dir_reserve(struct log_dir *dir, int64_t n);
bool __wrap_log_dir_reserve(struct log_dir *dir, int64_t n) {
    if (n > room_bytes) return false;
    takes++;
    taken_bytes += n;
    return __real_log_dir_reserve(dir, n);
}
void __real_log_dir_unreserve(struct log_dir *dir, int64_t n);
void __wrap_log_dir_unreserve(struct log_dir *dir, int64_t n);
void __wrap_log_dir_unreserve(struct log_dir *dir, int64_t n) {
    taken_bytes -= n;
    __real_log_dir_unreserve(dir, n);
}

/* ---- */

static void open_a(bool alone) {
    const struct log_config config = scene_config(1 << 20, 4096);
    open_topic(&a, "a", &config, alone);
}

/* Start a Produce of `batch` to the topic's first partition. */
static enum serve_status send_to(struct serve_request *one, const char *topic, size_t len,
                                 int16_t acks, bool more) {
    const struct written row = {topic, 0, batch, 0};
    write_produce(&m, &PRODUCING(8, &row, 1, .acks = acks));
    put_i32(m.bytes + m.len - 4, (int32_t)len);
    memcpy(body, m.bytes, m.len);
    memcpy(body + m.len, batch, len);
    request(one, &m, PRODUCE, 8);
    one->body = body;
    one->body_len = m.len + len;
    one->more = more;
    enum serve_status status = serve_start(serve, one);
    if (!one->body_needed) memset(body, 0xee, sizeof body);
    return status;
}

static enum serve_status queue(struct serve_request *one) {
    return send_to(one, "a", make_batch(batch, -1, -1, 0), 1, true);
}

static void check_wrote_at(struct serve_request *one, int64_t offset) {
    CHECK_WROTE(one, 8, &WROTE("a", 0, offset), 1);
}

static struct serve_request *next(enum serve_status wanted) {
    enum serve_status status = SERVE_MISS;
    struct serve_request *one = serve_next_appended(serve, &status);
    CHECK(one != NULL && status == wanted);
    return one;
}

static bool is_empty(void) {
    enum serve_status status;
    return serve_next_appended(serve, &status) == NULL && !serve_is_queued(serve);
}

/* Make a batch of one record with this length, hundreds or thousands of bytes. */
static size_t make_long(size_t len) {
    static uint8_t record[2 * BATCH_BYTES];
    const size_t value = len - BATCH_HEADER_BYTES - 9;
    uint8_t *to = record + put_uvarint(record, zigzag_encode((int64_t)value + 7));
    memset(to, 0, 4 + 2 + value + 1);
    to[3] = 1; /* no key */
    to += 4;
    to += put_uvarint(to, zigzag_encode((int64_t)value));
    size_t made = scene_batch(batch, record, (size_t)(to - record) + value + 1, NOW, -1, -1);
    CHECK(made == len);
    return len;
}

static void turns(void) {
    open_a(true);
    CHECK(!serve_is_queued(serve) && is_empty());
    CHECK(send_to(&r[0], "a", make_batch(batch, -1, -1, 0), 1, false) == SERVE_ANSWER);
    check_wrote_at(&r[0], 0);
    /* The last request of a turn joins the group. */
    CHECK(queue(&r[0]) == SERVE_QUEUED && queue(&r[1]) == SERVE_QUEUED);
    CHECK(send_to(&r[2], "a", make_batch(batch, -1, -1, 0), 1, false) == SERVE_QUEUED);
    CHECK(!r[0].body_needed && !r[0].exclusive && serve_is_queued(serve));
    CHECK(log_end_offset(a.logs[0]) == 1);
    for (int i = 0; i < 3; i++) {
        CHECK(next(SERVE_ANSWER) == &r[i] && serve_is_queued(serve) == (i < 2));
        check_wrote_at(&r[i], 1 + i);
    }
    CHECK(is_empty() && taken_bytes == 0 && takes == 2);
    /* A single request, too; and without memory for a group each is appended separately. */
    CHECK(queue(&r[0]) == SERVE_QUEUED && next(SERVE_ANSWER) == &r[0]);
    check_wrote_at(&r[0], 4);
    produce_free_groups(serve);
    serve->groups = NULL;
    blocks_left = 0;
    CHECK(queue(&r[0]) == SERVE_CLOSE); /* no memory for its response either */
    blocks_left = -1;
    CHECK(is_empty() && log_end_offset(a.logs[0]) == 6);
    delete_topic(&a);
}

/* A separate append comes after the requests before it. */
static void apart(void) {
    enum { KINDS = 5 };
    struct log_config config = scene_config(1 << 20, 4096);
    struct quotas *quotas = quotas_new(3, 1000);
    struct quota_limit limits[QUOTA_KINDS] = {{0}};
    CHECK(quotas_install(quotas, 1, NULL, 0, limits, 0) == 0);
    struct quota_client *c = quotas_client(quotas, 1, NULL, 0);
    open_a(true);
    for (int kind = 0; kind < KINDS; kind++) {
        const int64_t end = log_end_offset(a.logs[0]);
        struct serve_request *one = &r[1];
        size_t len = make_batch(batch, -1, -1, 0);
        CHECK(queue(&r[0]) == SERVE_QUEUED);
        if (kind == 2) len = make_long(BATCH_BYTES + 1);
        if (kind == 3) {
            config.compression_codec = CODEC_GZIP;
            log_set_config(a.logs[0], &config);
        }
        const struct written rows[] = {{"a", 0, batch, len}, {"a", 1, batch, len}};
        enum serve_status status;
        if (kind == 2) {
            status = send_to(one, "a", len, 1, true);
        } else {
            write_produce(&m, &PRODUCING(8, rows, 1 + (kind == 0), .acks = 1,
                                         .transaction = kind == 4 ? "t" : NULL));
            if (kind == 4) {
                make_batch(batch, 5, 0, BATCH_TRANSACTIONAL);
                write_produce(&m, &PRODUCING(8, rows, 1, .acks = 1, .transaction = "t"));
            }
            request(one, &m, PRODUCE, 8);
            one->more = true;
            if (kind == 1) one->quota = c;
            status = serve_start(serve, one);
        }
        if (status == SERVE_MISS) {
            one->missing[0].error = 0;
            status = serve_resume(serve, one, SERVE_GRANTED);
        }
        if (status == SERVE_WAIT) {
            struct message done;
            await_message(&done);
            status = serve_resume(serve, one, SERVE_IO_DONE);
        }
        CHECK(status == SERVE_ANSWER && log_end_offset(a.logs[0]) == end + 2);
        /* The thread does not sleep before the requests appended at that time are answered. */
        CHECK(serve_is_queued(serve) && next(SERVE_ANSWER) == &r[0]);
        check_wrote_at(&r[0], end);
        reply_clear(&one->reply);
        config.compression_codec = -1;
        log_set_config(a.logs[0], &config);
    }
    quota_client_release(c);
    quotas_free(quotas);
    delete_topic(&a);
}

/* A full group is appended before the next one begins. */
static void room_of_a_group(void) {
    int64_t end = 0;
    open_a(true);
    for (int i = 0; i < REQUESTS_MAX; i++) CHECK(queue(&r[i]) == SERVE_QUEUED);
    CHECK(log_end_offset(a.logs[0]) == 0);
    CHECK(queue(&r[REQUESTS_MAX]) == SERVE_QUEUED && log_end_offset(a.logs[0]) == REQUESTS_MAX);
    for (int i = 0; i <= REQUESTS_MAX; i++, end++) {
        CHECK(next(SERVE_ANSWER) == &r[i]);
        check_wrote_at(&r[i], end);
    }
    const int many = GROUP_BYTES / BATCH_BYTES;
    /* A byte less than the limit leaves no space; exactly the limit fits. */
    for (int i = 0; i < many; i++)
        CHECK(send_to(&r[i], "a", make_long(BATCH_BYTES - (i == 0)), 1, true) == SERVE_QUEUED);
    CHECK(queue(&r[many]) == SERVE_QUEUED && log_end_offset(a.logs[0]) == end + many);
    for (int i = 0; i <= many; i++, end++) {
        CHECK(next(SERVE_ANSWER) == &r[i]);
        check_wrote_at(&r[i], end);
    }
    for (int i = 0; i < many; i++)
        CHECK(send_to(&r[i], "a", make_long(BATCH_BYTES), 1, true) == SERVE_QUEUED);
    CHECK(log_end_offset(a.logs[0]) == end);
    for (int i = 0; i < many; i++, end++) {
        CHECK(next(SERVE_ANSWER) == &r[i]);
        check_wrote_at(&r[i], end);
    }
    CHECK(is_empty() && taken_bytes == 0);
    delete_topic(&a);
}

static void more_logs_than_groups(void) {
    static struct held_topic of[LOGS_MAX + 1];
    const struct log_config config = scene_config(1 << 20, 4096);
    for (int i = 0; i <= LOGS_MAX; i++)
        open_topic(&of[i], (const char[]){(char)('a' + i), 0}, &config, true);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < LOGS_MAX; i++) {
            size_t len = make_batch(batch, -1, -1, 0);
            CHECK(send_to(&r[round * LOGS_MAX + i], of[i].name, len, 1, true) == SERVE_QUEUED);
            CHECK(log_end_offset(of[i].logs[0]) == 0);
        }
    size_t len = make_batch(batch, -1, -1, 0);
    CHECK(send_to(&r[2 * LOGS_MAX], of[LOGS_MAX].name, len, 1, true) == SERVE_QUEUED);
    for (int i = 0; i <= LOGS_MAX; i++)
        CHECK(log_end_offset(of[i].logs[0]) == (i < LOGS_MAX ? 2 : 0));
    for (int i = 0; i <= 2 * LOGS_MAX; i++) {
        struct serve_request *one = next(SERVE_ANSWER);
        int topic = i / 2;
        CHECK(one == &r[i < 2 * LOGS_MAX ? (i % 2) * LOGS_MAX + topic : i]);
        CHECK_WROTE(one, 8, &WROTE(of[topic].name, 0, i % 2), 1);
    }
    for (int i = 0; i <= LOGS_MAX; i++) delete_topic(&of[i]);
}

/* Each request has its own result. */
static void errors(void) {
    open_a(true);
    const int32_t sequences[] = {0, 7, 1};
    for (int i = 0; i < 3; i++)
        CHECK(send_to(&r[i], "a", make_batch(batch, 5, sequences[i], 0), 1, true) ==
              SERVE_QUEUED);
    for (int i = 0; i < 3; i++) CHECK(next(SERVE_ANSWER) == &r[i]);
    check_wrote_at(&r[0], 0);
    CHECK_WROTE(&r[1], 8, &NOT_WROTE("a", 0, OUT_OF_ORDER, .log_start = 0), 1);
    check_wrote_at(&r[2], 1);
    /* With acks=0 one gets no response, or a failure closes its connection. */
    CHECK(queue(&r[0]) == SERVE_QUEUED);
    CHECK(send_to(&r[1], "a", make_batch(batch, -1, -1, 0), 0, true) == SERVE_QUEUED);
    CHECK(next(SERVE_ANSWER) == &r[0] && next(SERVE_SILENT) == &r[1]);
    check_wrote_at(&r[0], 2);
    CHECK(queue(&r[0]) == SERVE_QUEUED);
    CHECK(send_to(&r[1], "a", make_batch(batch, -1, -1, 0), 0, true) == SERVE_QUEUED);
    log_become_follower(a.logs[0], 1);
    CHECK(next(SERVE_ANSWER) == &r[0] && next(SERVE_CLOSE) == &r[1] && is_empty());
    CHECK_WROTE(&r[0], 8, &NOT_WROTE("a", 0, NOT_LEADER), 1);
    CHECK(taken_bytes == 0);
    delete_topic(&a);
}

/* If the group does not fit, each batch is tried separately. */
static void short_of_room(void) {
    open_a(true);
    room_bytes = SHORT_BYTES;
    for (int i = 0; i < 3; i++) CHECK(queue(&r[i]) == SERVE_QUEUED);
    CHECK(send_to(&r[3], "a", make_long(200), 1, true) == SERVE_QUEUED);
    for (int i = 0; i < 4; i++) CHECK(next(SERVE_ANSWER) == &r[i]);
    for (int i = 0; i < 3; i++) check_wrote_at(&r[i], i);
    char cause[LOG_CAUSE_BYTES];
    log_storage_cause(a.logs[0], LOG_E_FULL, true, cause);
    CHECK_WROTE(&r[3], 8, &NOT_WROTE("a", 0, STORAGE, .text = cause), 1);
    CHECK(log_end_offset(a.logs[0]) == 3 && takes == 3 && taken_bytes == 0);
    room_bytes = INT64_MAX;
    delete_topic(&a);
}

static void gone(void) {
    open_a(true);
    for (int first = 0; first < 4; first++) {
        const int64_t end = log_end_offset(a.logs[0]);
        for (int i = 0; i < 4; i++) CHECK(queue(&r[i]) == SERVE_QUEUED);
        /* All are appended then; one after the other is abandoned, in any order. */
        for (int i = 0; i < 2; i++) {
            CHECK(serve_abandon(serve, &r[(first + i) % 4]));
            CHECK(log_end_offset(a.logs[0]) == end + 4 && r[(first + i) % 4].state == NULL);
        }
        for (int i = 0; i < 4; i++) {
            if (i == first || i == (first + 1) % 4) continue;
            CHECK(next(SERVE_ANSWER) == &r[i]);
            check_wrote_at(&r[i], end + i);
            /* New requests come after those already due. */
            CHECK(queue(&r[4 + i]) == SERVE_QUEUED);
        }
        int left = 0;
        for (int i = 0; i < 4; i++) {
            if (i == first || i == (first + 1) % 4) continue;
            CHECK(next(SERVE_ANSWER) == &r[4 + i]);
            check_wrote_at(&r[4 + i], end + 4 + left++);
        }
        CHECK(is_empty());
    }
    delete_topic(&a);
}

/* They wait for replicas like others, each for its own records. */
static void acknowledged(void) {
    struct message woken;
    open_a(false);
    for (int i = 0; i < 2; i++) {
        CHECK(send_to(&r[i], "a", make_batch(batch, -1, -1, 0), -1, true) == SERVE_QUEUED);
        r[i].token = (uint64_t)(10 + i);
        r[i].received_ms = 1000 * i;
    }
    for (int i = 0; i < 2; i++) {
        CHECK(next(SERVE_WAIT) == &r[i] && r[i].deadline_ms == 1000 * i + WAIT_MS);
        CHECK(!r[i].exclusive && !r[i].body_needed);
    }
    for (int i = 0; i < 2; i++) {
        log_advance_high_watermark(a.logs[0], 1 + i);
        await_message(&woken);
        CHECK(woken.token == (uint64_t)(10 + i) && !message_waits());
        CHECK(serve_resume(serve, &r[i], SERVE_WOKEN) == SERVE_ANSWER);
        check_wrote_at(&r[i], i);
    }
    delete_topic(&a);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"turns", turns},
                  {"apart", apart},
                  {"room", room_of_a_group},
                  {"more_logs", more_logs_than_groups},
                  {"errors", errors},
                  {"short", short_of_room},
                  {"gone", gone},
                  {"acknowledged", acknowledged}};
    CHECK(argc == 3);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[2]) == 0) {
            scene_open(argv[1], disk_of(DISK_SYSTEM), 0);
            scenes[i].play();
            scene_close();
            check_given_back();
            puts("ok");
        }
    return 0;
}
