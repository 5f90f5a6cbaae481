/* Any bytes as Produce and Fetch of granted topics, through grants, sessions, checks and logs to
 * responses. Each request ends with one response of the declared size or with none, and appended
 * records can be read.
 *
 * Input: a byte of flags, then requests: kind, length (16 bits), body. The high bit of a kind
 * corrects the checksums of apparent batches. */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/bytes.h"
#include "format/crc32c.h"
#include "log_manager/log_manager.h"
#include "tables/grants.h"
#include "log/log.h"
#include "serve/serve.h"
#include "scratch.h"

enum {
    FUZZ_NOW = 1000000,
    FUZZ_PARTITIONS = 3,
    FUZZ_REQUESTS_MAX = 16,
    FUZZ_WAIT_MS = 10000
};

static struct log_dir *directory;
static struct serve *serve;
static struct grants *grants;
static struct mailbox *mailbox;
static char root[] = "/dev/shm/fuzz_granted.XXXXXX";
static uint32_t number;

static void end(void) { clear(root, 1); }

static void begin(void) {
    const struct serve_limits limits = {
        .fetch_bytes_max = 1 << 20, .sessions_max = 4, .inline_inflate_bytes = 4096};
    int error;
    if (serve != NULL) { return; }
    require(mkdtemp(root) != NULL);
    atexit(end);
    struct iopool *pool = iopool_new(1, 64, NULL, NULL);
    directory = log_dir_new(root, pool, &error);
    mailbox = mailbox_new(64);
    grants = grants_new(10);
    serve = serve_new(serve_shared_new(grants, pool, &limits), mailbox);
    require(directory != NULL && serve != NULL);
}

/* ---- topics: two partitions with logs, the second compacted, and one on another broker ---- */

static void open_topic(const char *name, uint8_t id, uint8_t flags, struct log **logs) {
    const uint8_t topic_id[16] = {id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id};
    const struct log_checkpoint checkpoint = {.log_start_offset = -1, .high_watermark = -1};
    struct log_config config = {.segment_ms = 1 << 30,
                                .retention_ms = -1,
                                .retention_bytes = -1,
                                .flush_messages = INT64_MAX,
                                .flush_ms = INT64_MAX,
                                .timestamp_before_max_ms = INT64_MAX,
                                .timestamp_after_max_ms = INT64_MAX,
                                .segment_bytes = 1000,
                                .segment_index_bytes = 1 << 20,
                                .index_interval_bytes = 100,
                                .max_message_bytes = 1 << 20,
                                .inflated_bytes_max = 1 << 20,
                                .compression_level = INT32_MIN,
                                .compression_codec = flags & 1 ? (int8_t)(flags >> 1 & 3) : -1,
                                .log_append_time = flags & 8,
                                .walk_records = true,
                                .acks_all_flush = flags & 16,
                                .min_insync_replicas = flags & 32 ? 2 : 1,
                                .producer_id_expiration_ms = INT64_MAX};
    char topic[32];
    snprintf(topic, sizeof topic, "%s%u", name, number);
    for (int i = 0; i < FUZZ_PARTITIONS - 1; i++) {
        config.cleanup_compact = i == 1;
        config.cleanup_delete = i == 0;
        require(log_open(directory, topic, i, topic_id, &config, &checkpoint, FUZZ_NOW, &logs[i]) ==
                0);
        require(log_become_leader(logs[i], 0, 1) == 0);
    }
    logs[FUZZ_PARTITIONS - 1] = NULL;
    struct topic *made = topic_new(name, topic_id, flags & 64, logs, FUZZ_PARTITIONS);
    require(made != NULL && grants_install(grants, made) == 0);
    topic_release(made);
    require(grants_allow(grants, 0, topic_id, GRANT_READ | GRANT_WRITE) == 0);
}

static void close_topic(const char *name, struct log **logs) {
    char path[512];
    grants_remove(grants, name, (uint16_t)strlen(name));
    for (int i = 0; i < FUZZ_PARTITIONS - 1; i++) {
        require(log_start_offset(logs[i]) <= log_end_offset(logs[i]));
        log_abandon(logs[i]);
        log_release(logs[i]);
        snprintf(path, sizeof path, "%s/%s%u-%d", root, name, number, i);
        clear(path, 1);
    }
}

/* ---- requests ---- */

static void mend(uint8_t *p, size_t len) {
    for (size_t at = 0; at + 61 <= len; at++) {
        size_t batch = (size_t)get_u32(p + at + 8) + 12;
        if (p[at + 16] != 2 || batch < 61 || batch > len - at) { continue; }
        put_u32(p + at + 17, crc32c_extend(0, p + at + 21, batch - 21));
        at += batch - 1;
    }
}

static void check_answer(const struct serve_request *r) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->reply.part_count; i++) {
        bytes += (uint64_t)r->reply.parts[i].range.length;
        require(r->reply.parts[i].bytes_end <= r->reply.len);
    }
    require(!r->reply.failed && bytes == r->reply.file_bytes);
    require(r->reply.len >= 8 && get_u32(r->reply.bytes) == r->reply.len + bytes - 4);
    require(get_i32(r->reply.bytes + 4) == 7);
}

/* Advance time for requests that wait for an offset; deliver the message that a job's request
 * awaits. */
static enum serve_status resume(struct serve_request *r) {
    struct message message;
    struct pollfd ready = {.fd = mailbox_fd(mailbox), .events = POLLIN};
    if (r->deadline_ms != INT64_MAX) { return serve_resume(serve, r, SERVE_TIMEOUT); }
    for (;;) {
        while (mailbox_take(mailbox, &message, 1) == 1) {
            if (message.token == r->token && message.kind == MESSAGE_IO_DONE) {
                return serve_resume(serve, r, SERVE_IO_DONE);
            }
        }
        if (!mailbox_arm(mailbox)) { continue; }
        require(poll(&ready, 1, FUZZ_WAIT_MS) == 1);
        mailbox_disarm(mailbox);
    }
}

static enum serve_status decide(struct serve_request *r) {
    require(r->missing_count > 0 && r->missing_count <= SERVE_MISSING_MAX);
    for (uint32_t i = 0; i < r->missing_count; i++) { r->missing[i].error = 3; }
    return serve_resume(serve, r, SERVE_GRANTED);
}

static void ask(uint8_t kind, const uint8_t *data, size_t len, uint64_t token) {
    uint8_t *body = malloc(len + 1);
    memcpy(body, data, len);
    struct serve_request r = {.body = body, .body_len = len, .token = token, .correlation_id = 7};
    r.api_key = kind & 1;
    r.api_version = (int16_t)(kind >> 1 & 31);
    reply_init(&r.reply);
    if (kind & 128) { mend(body, len); }
    if (serve_knows(r.api_key, r.api_version)) {
        enum serve_status status = serve_start(serve, &r);
        while (status == SERVE_MISS || status == SERVE_WAIT) {
            status = status == SERVE_MISS ? decide(&r) : resume(&r);
        }
        if (status == SERVE_ANSWER) { check_answer(&r); }
        require(r.state == NULL);
    }
    reply_clear(&r.reply);
    free(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct log *plain[FUZZ_PARTITIONS], *other[FUZZ_PARTITIONS];
    if (size < 4) { return 0; }
    begin();
    number++;
    open_topic("t", 'i', data[0], plain);
    open_topic("topic", 'j', (uint8_t)(data[0] >> 1), other);
    const uint8_t *p = data + 1;
    size_t len = size - 1;
    for (uint64_t i = 0; i < FUZZ_REQUESTS_MAX && len >= 3; i++) {
        size_t body = (size_t)p[1] << 8 | p[2];
        if (body > len - 3) { body = len - 3; }
        ask(p[0], p + 3, body, (uint64_t)number << 8 | i);
        p += 3 + body;
        len -= 3 + body;
    }
    struct message message;
    while (mailbox_take(mailbox, &message, 1) == 1) {}
    close_topic("t", plain);
    close_topic("topic", other);
    require(!log_dir_offline(directory));
    return 0;
}
