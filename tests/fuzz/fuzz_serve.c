/* Any bytes as the body of a Produce or Fetch for topics without a grant: rejected, or a miss
 * whose response is bounded; no memory leaks. */
#include <stdlib.h>
#include <string.h>

#include "format/bytes.h"
#include "tables/grants.h"
#include "serve/serve.h"

static void require(int holds) {
    if (!holds) { abort(); }
}

static struct serve *made(void) {
    static struct serve *serve;
    if (serve == NULL) {
        const struct serve_limits limits = {
            .fetch_bytes_max = 1 << 20, .sessions_max = 16, .inline_inflate_bytes = 65536};
        struct mailbox *mailbox = mailbox_new(64);
        struct iopool *pool = iopool_new(1, 64, NULL, NULL);
        serve = serve_new(serve_shared_new(grants_new(1000), pool, &limits), mailbox);
        require(serve != NULL);
    }
    return serve;
}

/* Return a client that exceeds its quota after its first request. */
static struct quota_client *limited(void) {
    static struct quota_client *client;
    if (client == NULL) {
        struct quotas *quotas = quotas_new(11, 1000);
        const struct quota_limit limits[QUOTA_KINDS] = {{(const uint8_t *)"p", 1, 1},
                                                        {(const uint8_t *)"f", 1, 1},
                                                        {(const uint8_t *)"r", 1, 1}};
        require(quotas_install(quotas, 0, NULL, 0, limits, 0) == 0);
        client = quotas_client(quotas, 0, NULL, 0);
        require(client != NULL);
    }
    return client;
}

static enum serve_status decide(struct serve *serve, struct serve_request *r) {
    require(r->missing_count > 0 && r->missing_count <= SERVE_MISSING_MAX);
    for (uint32_t i = 0; i < r->missing_count; i++) {
        struct serve_missing *m = &r->missing[i];
        require(m->name != NULL || m->name_len <= 0);
        m->error = (int16_t)(i % 2 ? 3 : 29);
    }
    return serve_resume(serve, r, SERVE_GRANTED);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) { return 0; }
    struct serve *serve = made();
    uint8_t *body = malloc(size - 1);
    memcpy(body, data + 1, size - 1);
    struct serve_request r = {.body = body, .body_len = size - 1, .token = 1, .correlation_id = 7};
    r.api_key = data[0] & 1;
    r.api_version = (int16_t)(data[0] >> 1 & 31);
    reply_init(&r.reply);
    if (data[0] & 64) {
        r.quota = limited();
        r.frame_bytes = size;
        r.began_ns = quotas_monotonic_ns();
    }
    if (serve_knows(r.api_key, r.api_version)) {
        enum serve_status status = serve_start(serve, &r);
        if (status == SERVE_MISS) { status = decide(serve, &r); }
        if (status == SERVE_ANSWER) {
            require(r.reply.len >= 8 && get_u32(r.reply.bytes) == r.reply.len - 4);
            require(get_i32(r.reply.bytes + 4) == 7 && r.reply.part_count == 0);
        } else if (status == SERVE_WAIT || status == SERVE_MISS) {
            require(serve_abandon(serve, &r));
        }
        require(r.state == NULL);
    }
    reply_clear(&r.reply);
    free(body);
    return 0;
}
