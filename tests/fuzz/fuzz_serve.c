/* Produce and Fetch requests of any bytes and any served version, against one real topic: no
 * crash, no leak, and every request ends answered, silent or closed. The first two bytes choose
 * api, version and what the control plane says of an unknown topic. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "grants.h"
#include "iopool.h"
#include "log.h"
#include "mailbox.h"
#include "scratch.h"
#include "serve.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t topic_id[16] = {7, 7, 7, 7};
static struct serve *serve;
static struct mailbox *mailbox;

static struct log *open_log(struct iopool *pool) {
    static char dir[] = "/dev/shm/fuzz-serve-XXXXXX";
    int error = 0;
    struct log *log = NULL;
    assert(mkdtemp(dir) != NULL);
    struct log_dir *log_dir = log_dir_new(dir, pool, &error);
    assert(log_dir != NULL);
    struct log_config config = {.segment_ms = INT64_MAX,
                                .retention_ms = -1,
                                .retention_bytes = -1,
                                .flush_messages = INT64_MAX,
                                .flush_ms = INT64_MAX,
                                .timestamp_before_max_ms = INT64_MAX,
                                .timestamp_after_max_ms = INT64_MAX,
                                .producer_id_expiration_ms = 86400000,
                                .inflated_bytes_max = 1 << 20,
                                .segment_bytes = 1 << 20,
                                .segment_index_bytes = 1 << 16,
                                .index_interval_bytes = 4096,
                                .max_message_bytes = 1 << 16,
                                .compression_codec = -1,
                                .min_insync_replicas = 1,
                                .walk_records = true,
                                .cleanup_delete = true};
    struct log_checkpoint checkpoint = {.log_start_offset = -1, .high_watermark = -1};
    assert(log_open(log_dir, "t", 0, topic_id, &config, &checkpoint, 1, &log) == 0);
    assert(log_become_leader(log, 0, true) == 0);
    return log;
}

static void set_up(void) {
    struct iopool *pool = iopool_new(1, 64, scratch_new, scratch_free);
    struct log *log = open_log(pool);
    struct grants *grants = grants_new(16);
    struct topic *topic = topic_new("t", topic_id, false, &log, 1);
    assert(grants_install(grants, topic) == 0);
    assert(grants_allow(grants, 0, topic_id, GRANT_READ | GRANT_WRITE) == 0);
    struct serve_limits limits = {
        .fetch_bytes_max = 1 << 20, .sessions_max = 8, .inline_inflate_bytes = 1 << 30};
    mailbox = mailbox_new(1024);
    serve = serve_new(serve_shared_new(grants, pool, &limits), mailbox);
    assert(serve != NULL);
}

/* A cold read or a check on the pool: wait for its letter as a reactor would. */
static void abandon(struct serve_request *r) {
    struct letter letter;
    while (!serve_abandon(serve, r))
        while (mailbox_take(mailbox, &letter, 1) == 0 || letter.kind != LETTER_IO_DONE) usleep(10);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (serve == NULL) set_up();
    if (size < 2) return 0;
    bool fetch = data[0] & 1;
    /* A copy of its own size: a read past its end is a read past an allocation. */
    uint8_t *body = malloc(size - 1);
    memcpy(body, data + 2, size - 2);
    struct serve_request r = {.body = body,
                              .body_len = size - 2,
                              .token = 1,
                              .api_key = fetch ? 1 : 0,
                              .api_version = (int16_t)(fetch ? 4 + data[1] % 15 : 3 + data[1] % 11)};
    reply_init(&r.reply);
    enum serve_status status = serve_start(serve, &r);
    if (status == SERVE_MISS) {
        for (uint32_t i = 0; i < r.missing_count; i++)
            r.missing[i].error = (int16_t)(data[0] & 2 ? 3 : 0);
        status = serve_resume(serve, &r, SERVE_GRANTED);
    }
    if (status == SERVE_WAIT) status = serve_resume(serve, &r, SERVE_TIMEOUT);
    if (status == SERVE_WAIT) abandon(&r);
    assert(r.state == NULL);
    reply_clear(&r.reply);
    free(body);
    return 0;
}
