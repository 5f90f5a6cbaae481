/* Re-encodes a batch with another codec: copies the header, decompresses and compresses the
 * whole payload, computes the CRC.
 *
 * The plain payload doubles as output arrives, so that memory follows the data and never a
 * declared size. */
#include <stdlib.h>
#include <string.h>

#include "format/batch.h"
#include "format/bytes.h"
#include "format/crc32c.h"

enum {
    RECODE_GROW_BYTES_MIN = 64 * 1024
};

static int plain_append(uint8_t **plain, size_t *len, size_t *room, const uint8_t *chunk,
                        size_t n) {
    if (*room - *len < n) {
        size_t want = *room * 2 > *len + n ? *room * 2 : *len + n;
        want = want < RECODE_GROW_BYTES_MIN ? (size_t)RECODE_GROW_BYTES_MIN : want;
        uint8_t *grown = realloc(*plain, want);
        if (grown == NULL) {
            return BATCH_E_MEMORY;
        }
        *plain = grown;
        *room = want;
    }
    memcpy(*plain + *len, chunk, n);
    *len += n;
    return 0;
}

int batch_inflate(const uint8_t *p, const struct batch_header *h, uint64_t inflated_bytes_max,
                  struct inflater *in, uint8_t **out, size_t *out_len) {
    size_t len = 0, room = 0;
    uint8_t *plain = NULL;
    const uint8_t *chunk;
    size_t n;
    int rc = inflater_begin(in, batch_codec(h), p + BATCH_HEADER_BYTES,
                            batch_bytes(h) - BATCH_HEADER_BYTES, inflated_bytes_max);
    rc = rc < 0 ? batch_inflate_error(rc) : 1;
    while (rc == 1) {
        rc = inflater_next(in, &chunk, &n);
        if (rc < 0) {
            rc = batch_inflate_error(rc);
        } else if (rc == 1 && plain_append(&plain, &len, &room, chunk, n) < 0) {
            rc = BATCH_E_MEMORY;
        }
    }
    if (rc < 0) {
        free(plain);
        return rc;
    }
    *out = plain;
    *out_len = len;
    return 0;
}

int batch_assemble(const uint8_t *header, int codec, int level, const uint8_t *plain,
                   size_t plain_len, uint8_t **out, size_t *out_len) {
    uint8_t *payload;
    size_t payload_len;
    int rc = compress_block(codec, level, plain, plain_len, &payload, &payload_len);
    if (rc < 0) {
        return batch_inflate_error(rc);
    }
    size_t len = BATCH_HEADER_BYTES + payload_len;
    uint8_t *batch = len > BATCH_BYTES_MAX ? NULL : malloc(len);
    if (batch == NULL) {
        free(payload);
        return len > BATCH_BYTES_MAX ? BATCH_E_TOO_LARGE : BATCH_E_MEMORY;
    }
    memcpy(batch, header, BATCH_HEADER_BYTES);
    memcpy(batch + BATCH_HEADER_BYTES, payload, payload_len);
    free(payload);
    int16_t attributes = (int16_t)((get_i16(header + 21) & ~BATCH_CODEC_MASK) | codec);
    put_i32(batch + 8, (int32_t)(len - BATCH_LOG_OVERHEAD));
    put_i16(batch + 21, attributes);
    put_u32(batch + 17, crc32c_extend(0, batch + 21, len - 21));
    *out = batch;
    *out_len = len;
    return 0;
}

/* Decompresses at most as many bytes as the batch may have if it stays plain. */
static int batch_recode_plain(const uint8_t *p, const struct batch_header *h, int codec,
                              uint64_t inflated_bytes_max, size_t bytes_max, struct inflater *in,
                              uint8_t **plain, size_t *plain_len) {
    uint64_t room = bytes_max < BATCH_HEADER_BYTES ? 0 : bytes_max - BATCH_HEADER_BYTES;
    bool is_bound = codec == CODEC_NONE && room < inflated_bytes_max;
    int rc = batch_inflate(p, h, is_bound ? room : inflated_bytes_max, in, plain, plain_len);
    return is_bound && rc == BATCH_E_INFLATE_MAX ? BATCH_E_TOO_LARGE : rc;
}

int batch_recompress(const uint8_t *p, size_t len, int codec, int level, int64_t inflated_bytes_max,
                     size_t bytes_max, struct inflater *in, uint8_t **out, size_t *out_len) {
    struct batch_header h;
    uint64_t inflated_max = inflated_bytes_max < 0 ? 0 : (uint64_t)inflated_bytes_max;
    uint8_t *inflated = NULL;
    int rc = batch_parse(p, len, &h);
    if (rc < 0) {
        return rc;
    }
    if (len < batch_bytes(&h)) {
        return BATCH_E_SHORT;
    }
    const uint8_t *plain = p + BATCH_HEADER_BYTES;
    size_t plain_len = batch_bytes(&h) - BATCH_HEADER_BYTES;
    if (batch_codec(&h) != CODEC_NONE) {
        rc = batch_recode_plain(p, &h, codec, inflated_max, bytes_max, in, &inflated, &plain_len);
        plain = inflated;
    }
    if (rc == 0) {
        rc = batch_assemble(p, codec, level, plain, plain_len, out, out_len);
    }
    free(inflated);
    if (rc == 0 && *out_len > bytes_max) {
        free(*out);
        *out = NULL;
        rc = BATCH_E_TOO_LARGE;
    }
    return rc;
}
