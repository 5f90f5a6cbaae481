/* Any bytes as a frame: the header is rejected, or it lies inside the frame and its parts do not
 * overlap. */
#include <stdlib.h>
#include <string.h>

#include "format/bytes.h"
#include "net/frames.h"
#include "serve/api_keys.h"

static void require(int holds) {
    if (!holds) { abort(); }
}

static void check(const struct frames_rules *rules, const uint8_t *frame, size_t len) {
    struct frames_header h;
    if (!frames_header(rules, frame, len, &h)) { return; }
    const struct frames_versions *api = &rules->apis[h.api_key];
    require(h.api_key >= 0 && h.api_key < FRAMES_API_KEYS_MAX && api->max >= 0);
    require(h.api_key == API_VERSIONS ||
            (h.api_version >= api->min && h.api_version <= api->max));
    require(h.body >= frame && h.body + h.body_len == frame + len);
    if (h.client_id != NULL) {
        require(h.client_id_len >= 0 && h.client_id + h.client_id_len <= h.body);
    }
    require(h.correlation_id == get_i32(frame + 4));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 5) { return 0; }
    struct frames_rules rules;
    frames_rules_init(&rules, 1000000);
    int32_t bytes = frames_size(&rules, data);
    require(bytes == -1 || (bytes > 0 && bytes <= 1000000));
    for (int16_t key = 0; key < FRAMES_API_KEYS_MAX; key = (int16_t)(key + 1 + (data[4] & 3))) {
        rules.apis[key] =
            (struct frames_versions){(int16_t)(key & 3), (int16_t)(key & 15), (int16_t)(key & 7)};
    }
    /* A copy that ends where the frame ends, so that the sanitizer detects reads beyond it. */
    uint8_t *frame = malloc(size - 4);
    memcpy(frame, data + 4, size - 4);
    check(&rules, frame, size - 4);
    free(frame);
    return 0;
}
