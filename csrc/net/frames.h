/* Parses frame sizes and request headers, v1 and v2 (KIP-482), and checks API keys and versions. */
#ifndef PYLOG_FRAMES_H
#define PYLOG_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FRAMES_API_KEYS_MAX = 128, FRAMES_SIZE_BYTES = 4 };

struct frames_versions {
    int16_t min, max;      /* max -1: not supported */
    int16_t flexible_from; /* first version with request header v2; INT16_MAX: none */
};
struct frames_rules {
    struct frames_versions apis[FRAMES_API_KEYS_MAX];
    int32_t request_bytes_max; /* socket.request.max.bytes */
    int32_t control_bytes_max; /* same limit for requests that the control plane answers */
};
/* Initializes rules that support no API. */
void frames_rules_init(struct frames_rules *rules, int32_t request_bytes_max);

struct frames_header {
    const uint8_t *client_id, *body; /* borrowed; client_id is NULL if null */
    size_t body_len;
    int32_t correlation_id, client_id_len;
    int16_t api_key, api_version;
};

/* Returns the length of the frame after its size field, or -1 if it is invalid. */
int32_t frames_size(const struct frames_rules *rules, const uint8_t size[FRAMES_SIZE_BYTES]);
/* Returns true if a frame of `size` bytes is allowed, given the first `len` bytes of it in
 * `frame`. Returns true if they are too few to decide. Call it before allocating memory for the
 * frame. */
bool frames_fits(const struct frames_rules *rules, int32_t size, const uint8_t *frame, size_t len);
/* Parses the header; `frame` starts after the size. Returns false if the request is not
 * supported: close the connection. An unknown version of ApiVersions is accepted if it has
 * header v2: its response lists the supported versions. */
bool frames_header(const struct frames_rules *rules, const uint8_t *frame, size_t len,
                   struct frames_header *out);

enum frames_result { FRAMES_MORE, FRAMES_ILLEGAL, FRAMES_READY };
/* Parses the next frame of `pending` bytes, at least FRAMES_SIZE_BYTES. bytes_max: limit for the
 * frame after its size. raw: it is a SASL token without a header. *frame_bytes: its size with the
 * size field, once it is known to be legal. With FRAMES_READY, *out is its header; of a raw frame
 * only the body. */
enum frames_result frames_next(const struct frames_rules *rules, int32_t bytes_max, bool raw,
                               const uint8_t *bytes, size_t pending, size_t *frame_bytes,
                               struct frames_header *out);

#endif
