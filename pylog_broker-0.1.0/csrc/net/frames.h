/* Frame sizes and request headers, v1 and v2 (KIP-482), and which api keys and versions are let in.
 */
#ifndef PYLOG_FRAMES_H
#define PYLOG_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FRAMES_API_KEYS_MAX = 128, FRAMES_SIZE_BYTES = 4 };

struct frames_versions {
    int16_t min, max;      /* max -1: not served */
    int16_t flexible_from; /* first version with request header v2; INT16_MAX: none */
};
struct frames_rules {
    struct frames_versions apis[FRAMES_API_KEYS_MAX];
    int32_t request_bytes_max; /* socket.request.max.bytes */
    int32_t control_bytes_max; /* the same of requests that the control plane answers */
};
/* Serves nothing. */
void frames_rules_init(struct frames_rules *rules, int32_t request_bytes_max);

struct frames_header {
    const uint8_t *client_id, *body; /* borrowed; client_id NULL when null */
    size_t body_len;
    int32_t correlation_id, client_id_len;
    int16_t api_key, api_version;
};

/* The length of the frame after its size field, or -1 when it is not legal. */
int32_t frames_size(const struct frames_rules *rules, const uint8_t size[FRAMES_SIZE_BYTES]);
/* Whether a frame of `size` bytes may be that long; `frame`: the `len` bytes of it that are here,
 * perhaps too few to decide. Before memory is taken for it. */
bool frames_fits(const struct frames_rules *rules, int32_t size, const uint8_t *frame, size_t len);
/* `frame` is what follows the size. False: not a request that is served here; the connection is to
 * be closed. ApiVersions of an unknown version passes when it has a header v2: its answer says what
 * is supported. */
bool frames_header(const struct frames_rules *rules, const uint8_t *frame, size_t len,
                   struct frames_header *out);

#endif
