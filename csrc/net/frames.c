/* Request header v1: api key, api version, correlation id, client id (nullable string). v2 adds
 * tagged fields. The client id keeps its two-byte length in v2. Fuzzed by tests/fuzz/fuzz_frames.c.
 */
#include "net/frames.h"

#include "format/assertion.h"
#include "serve/api_keys.h"
#include "serve/wire.h"

void frames_rules_init(struct frames_rules *rules, int32_t request_bytes_max) {
    for (int i = 0; i < FRAMES_API_KEYS_MAX; i++)
        rules->apis[i] = (struct frames_versions){.min = 0, .max = -1, .flexible_from = INT16_MAX};
    rules->request_bytes_max = request_bytes_max;
    rules->control_bytes_max = request_bytes_max;
}

int32_t frames_size(const struct frames_rules *rules, const uint8_t size[FRAMES_SIZE_BYTES]) {
    assert_slow(rules->request_bytes_max > 0);
    int32_t bytes = get_i32(size);
    return bytes <= 0 || bytes > rules->request_bytes_max ? -1 : bytes;
}

bool frames_fits(const struct frames_rules *rules, int32_t size, const uint8_t *frame, size_t len) {
    if (size <= rules->control_bytes_max || len < sizeof(int16_t)) return true;
    int16_t api_key = (int16_t)(frame[0] << 8 | frame[1]);
    return api_key == API_PRODUCE || api_key == API_FETCH;
}

bool frames_header(const struct frames_rules *rules, const uint8_t *frame, size_t len,
                   struct frames_header *out) {
    assert_slow(len <= (size_t)rules->request_bytes_max); /* checked by frames_size */
    struct cursor c = {frame, frame + len};
    out->api_key = cursor_i16(&c);
    out->api_version = cursor_i16(&c);
    out->correlation_id = cursor_i32(&c);
    if (c.p == NULL || out->api_key < 0 || out->api_key >= FRAMES_API_KEYS_MAX) return false;
    const struct frames_versions *api = &rules->apis[out->api_key];
    bool known = out->api_version >= api->min && out->api_version <= api->max;
    bool ask = out->api_key == API_VERSIONS && api->max >= 0;
    if (!known && !ask) return false;
    struct wire_string client_id = wire_string(&c, false);
    out->client_id = client_id.p;
    out->client_id_len = client_id.len;
    wire_skip_tags(&c, known ? out->api_version >= api->flexible_from : out->api_version > 0);
    if (c.p == NULL) return false;
    out->body = c.p;
    out->body_len = (size_t)(c.end - c.p);
    assert_slow(out->body_len < len);
    return true;
}

enum frames_result frames_next(const struct frames_rules *rules, int32_t bytes_max, bool raw,
                               const uint8_t *bytes, size_t pending, size_t *frame_bytes,
                               struct frames_header *out) {
    assert_slow(pending >= FRAMES_SIZE_BYTES);
    int32_t size = frames_size(rules, bytes);
    const uint8_t *frame = bytes + FRAMES_SIZE_BYTES;
    if (size <= 0 || size > bytes_max ||
        !frames_fits(rules, size, frame, pending - FRAMES_SIZE_BYTES))
        return FRAMES_ILLEGAL;
    *frame_bytes = FRAMES_SIZE_BYTES + (size_t)size;
    if (pending < *frame_bytes) return FRAMES_MORE;
    if (raw) {
        *out = (struct frames_header){.body = frame, .body_len = (size_t)size};
        return FRAMES_READY;
    }
    return frames_header(rules, frame, (size_t)size, out) ? FRAMES_READY : FRAMES_ILLEGAL;
}
