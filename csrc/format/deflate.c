/* Compresses whole blocks with Kafka's codecs, framed so that Kafka's Java readers accept them.
 *
 * gzip levels: ISA-L for the default and 1-3 (ten times zlib's speed), zlib for 4-9, where the
 * user asks for its ratio. */
#include <isa-l/igzip_lib.h>
#include <lz4frame.h>
#include <lz4hc.h>
#include <snappy-c.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "format/bytes.h"
#include "format/compress.h"

enum {
    DEFLATE_BYTES_MAX = 1 << 30,
    DEFLATE_ISAL_LEVEL_MAX = 3,
    DEFLATE_ISAL_LEVEL = 2,
    DEFLATE_LZ4_LEVEL_DEFAULT = 9,          /* Kafka's name for lz4's fast mode */
    DEFLATE_XERIAL_BLOCK_BYTES = 32 * 1024, /* snappy-java's default */
    DEFLATE_XERIAL_HEADER_BYTES = 16,
};

struct deflated {
    uint8_t *p;
    size_t len;
};

static int deflate_none(const uint8_t *src, size_t len, struct deflated *out) {
    out->p = malloc(len + 1);
    if (out->p == NULL) {
        return COMPRESS_E_MEMORY;
    }
    if (len > 0) {
        memcpy(out->p, src, len);
    }
    out->len = len;
    return 0;
}

static int deflate_zlib(int level, const uint8_t *src, size_t len, struct deflated *out) {
    z_stream z = {0};
    if (deflateInit2(&z, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
        return COMPRESS_E_MEMORY;
    }
    size_t bound = deflateBound(&z, len);
    out->p = malloc(bound);
    int rc = Z_MEM_ERROR;
    if (out->p != NULL) {
        z.next_in = (Bytef *)(uintptr_t)src;
        z.avail_in = (uInt)len;
        z.next_out = out->p;
        z.avail_out = (uInt)bound;
        rc = deflate(&z, Z_FINISH);
        out->len = z.total_out;
    }
    deflateEnd(&z);
    return rc == Z_STREAM_END ? 0 : COMPRESS_E_MEMORY;
}

static uint32_t isal_buffer_bytes(int level) {
    switch (level) {
    case 1: return ISAL_DEF_LVL1_DEFAULT;
    case 2: return ISAL_DEF_LVL2_DEFAULT;
    default: return ISAL_DEF_LVL3_DEFAULT;
    }
}

static int deflate_isal(int level, const uint8_t *src, size_t len, struct deflated *out) {
    struct isal_zstream *z = malloc(sizeof *z);
    uint32_t scratch_bytes = isal_buffer_bytes(level);
    uint8_t *scratch = malloc(scratch_bytes);
    /* Stored blocks add 5 bytes per 64 KiB; a bad Huffman block needs at most 9/8. */
    size_t bound = len + len / 8 + 1024;
    out->p = malloc(bound);
    int rc = COMPRESS_E_MEMORY;
    if (z != NULL && scratch != NULL && out->p != NULL) {
        isal_deflate_init(z);
        z->level = (uint32_t)level;
        z->level_buf = scratch;
        z->level_buf_size = scratch_bytes;
        z->gzip_flag = IGZIP_GZIP;
        z->end_of_stream = 1;
        z->flush = NO_FLUSH;
        z->next_in = (uint8_t *)(uintptr_t)src;
        z->avail_in = (uint32_t)len;
        z->next_out = out->p;
        z->avail_out = (uint32_t)bound;
        bool finished = isal_deflate(z) == COMP_OK && z->internal_state.state == ZSTATE_END;
        out->len = bound - z->avail_out;
        rc = finished ? 0 : COMPRESS_E_MEMORY;
    }
    free(z);
    free(scratch);
    return rc;
}

static int deflate_gzip(int level, const uint8_t *src, size_t len, struct deflated *out) {
    if (level > DEFLATE_ISAL_LEVEL_MAX) {
        return deflate_zlib(level > 9 ? 9 : level, src, len, out);
    }
    return deflate_isal(level < 1 ? DEFLATE_ISAL_LEVEL : level, src, len, out);
}

static int deflate_snappy(const uint8_t *src, size_t len, struct deflated *out) {
    size_t blocks = len / DEFLATE_XERIAL_BLOCK_BYTES + 1;
    size_t bound = DEFLATE_XERIAL_HEADER_BYTES +
                   blocks * (4 + snappy_max_compressed_length(DEFLATE_XERIAL_BLOCK_BYTES));
    out->p = malloc(bound);
    if (out->p == NULL) {
        return COMPRESS_E_MEMORY;
    }
    memcpy(out->p, "\x82SNAPPY\0\0\0\0\1\0\0\0\1", DEFLATE_XERIAL_HEADER_BYTES);
    uint8_t *at = out->p + DEFLATE_XERIAL_HEADER_BYTES;
    for (size_t done = 0; done < len;) {
        size_t step = len - done < DEFLATE_XERIAL_BLOCK_BYTES ? len - done
                                                              : (size_t)DEFLATE_XERIAL_BLOCK_BYTES;
        size_t made = snappy_max_compressed_length(step);
        if (snappy_compress((const char *)src + done, step, (char *)at + 4, &made) != SNAPPY_OK) {
            return COMPRESS_E_MEMORY;
        }
        put_u32(at, (uint32_t)made);
        at += 4 + made;
        done += step;
    }
    out->len = (size_t)(at - out->p);
    return 0;
}

static int deflate_lz4(int level, const uint8_t *src, size_t len, struct deflated *out) {
    LZ4F_preferences_t preferences = {
        .frameInfo = {.blockSizeID = LZ4F_max64KB, .blockMode = LZ4F_blockIndependent},
        .compressionLevel = level == INT32_MIN || level == DEFLATE_LZ4_LEVEL_DEFAULT ? 0 : level,
    };
    size_t bound = LZ4F_compressFrameBound(len, &preferences);
    out->p = malloc(bound);
    if (out->p == NULL) {
        return COMPRESS_E_MEMORY;
    }
    out->len = LZ4F_compressFrame(out->p, bound, src, len, &preferences);
    return LZ4F_isError(out->len) ? COMPRESS_E_MEMORY : 0;
}

static int deflate_zstd(int level, const uint8_t *src, size_t len, struct deflated *out) {
    size_t bound = ZSTD_compressBound(len);
    out->p = malloc(bound);
    if (out->p == NULL) {
        return COMPRESS_E_MEMORY;
    }
    out->len =
        ZSTD_compress(out->p, bound, src, len, level == INT32_MIN ? ZSTD_CLEVEL_DEFAULT : level);
    return ZSTD_isError(out->len) ? COMPRESS_E_MEMORY : 0;
}

int compress_block(int codec, int level, const uint8_t *src, size_t len, uint8_t **out,
                   size_t *out_len) {
    struct deflated made = {NULL, 0};
    int rc;
    if (len > DEFLATE_BYTES_MAX) {
        return COMPRESS_E_LIMIT;
    }
    switch (codec) {
    case CODEC_NONE: rc = deflate_none(src, len, &made); break;
    case CODEC_GZIP: rc = deflate_gzip(level, src, len, &made); break;
    case CODEC_SNAPPY: rc = deflate_snappy(src, len, &made); break;
    case CODEC_LZ4: rc = deflate_lz4(level, src, len, &made); break;
    case CODEC_ZSTD: rc = deflate_zstd(level, src, len, &made); break;
    default: rc = COMPRESS_E_CODEC; break;
    }
    if (rc < 0) {
        free(made.p);
        return rc;
    }
    *out = made.p;
    *out_len = made.len;
    return 0;
}
