/* A doubling array. */
#include "serve/grant_requests.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { GRANT_REQUESTS_CAPACITY_MIN = 4 };

bool grant_requests_add(struct grant_requests *m, struct serve_request *r, struct topic_key key,
                        uint8_t right) {
    assert(r->missing_count <= m->room);
    if (r->missing_count >= SERVE_MISSING_MAX) return false;
    if (r->missing_count == m->room) {
        uint32_t room = m->room == 0 ? GRANT_REQUESTS_CAPACITY_MIN : m->room * 2;
        struct serve_missing *grown = realloc(m->topics, room * sizeof *grown);
        if (grown == NULL) return false;
        m->topics = grown;
        m->room = room;
    }
    struct serve_missing *missing = &m->topics[r->missing_count++];
    *missing = (struct serve_missing){.name_len = -1, .partition = -1};
    if (key.by_id) {
        assert(key.len == TOPIC_ID_BYTES);
        memcpy(missing->id, key.bytes, TOPIC_ID_BYTES);
    } else {
        assert(key.len <= INT16_MAX); /* wire_string rejects longer names */
        missing->name = key.bytes;
        missing->name_len = (int32_t)key.len;
    }
    r->missing = m->topics;
    r->missing_right = right;
    return true;
}

static bool names(const struct serve_missing *missing, struct topic_key key) {
    if (key.by_id) return memcmp(missing->id, key.bytes, TOPIC_ID_BYTES) == 0;
    return missing->name_len == (int32_t)key.len &&
           memcmp(missing->name, key.bytes, key.len) == 0;
}

int16_t grant_requests_result(const struct serve_request *r, struct topic_key key, uint32_t *at) {
    assert(*at == 0 || *at < r->missing_count);
    for (uint32_t n = 0; n < r->missing_count; n++) {
        uint32_t i = *at + n < r->missing_count ? *at + n : *at + n - r->missing_count;
        if (!names(&r->missing[i], key)) continue;
        *at = i;
        return r->missing[i].error > 0 ? r->missing[i].error : 0;
    }
    return 0;
}

bool grant_requests_retry(struct grant_requests *m, struct serve_request *r) {
    assert(m->rounds <= GRANT_REQUEST_ROUNDS_MAX);
    if (m->rounds == GRANT_REQUEST_ROUNDS_MAX) return false;
    m->rounds++;
    r->missing_count = 0;
    return true;
}
