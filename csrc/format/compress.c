/* Decodes streams of Kafka's five codecs, chunk by chunk, into one reused window.
 *
 * gzip: RFC 1952 members in sequence, with ISA-L. lz4: one LZ4 frame of independent blocks
 * (Kafka's Java reader supports no other). zstd: frames as in RFC 8878. snappy: either
 * snappy-java's framing (magic, two versions, then blocks, each after an int32 length) or one
 * bare block. A snappy block cannot be streamed: it is decoded in one piece, after its declared
 * size has been checked against the most that its bytes can expand to. */
#include "format/compress.h"

#include <isa-l/igzip_lib.h>
#include <lz4frame.h>
#include <snappy-c.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "format/bytes.h"

enum {
    INFLATER_WINDOW_BYTES = 128 * 1024, /* one zstd block, two lz4 blocks */
    INFLATER_KEEP_BYTES_MAX =
        4 * 1024 * 1024, /* a larger buffer or zstd state is freed after its stream */
    INFLATER_UNPROVEN_BYTES_MAX =
        1024 * 1024, /* for a larger declared size, a dry run comes before the allocation */
    ZSTD_WINDOW_LOG_MAX = 27,
    LZ4_BAD_FRAME_BYTES_MIN = 7,
    XERIAL_HEADER_BYTES = 16,
};

static const uint8_t XERIAL_MAGIC[8] = {0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0};

struct inflater {
    int codec;
    bool done;
    bool xerial;
    const uint8_t *src, *end;
    uint64_t out_left;
    uint8_t *window; /* INFLATER_WINDOW_BYTES, or more while decoding a snappy block */
    size_t window_bytes;
    struct inflate_state *gzip;
    LZ4F_dctx *lz4;
    ZSTD_DCtx *zstd;
};

struct inflater *inflater_new(void) {
    return calloc(1, sizeof(struct inflater));
}

void inflater_free(struct inflater *in) {
    if (in == NULL) {
        return;
    }
    free(in->window);
    free(in->gzip);
    LZ4F_freeDecompressionContext(in->lz4);
    ZSTD_freeDCtx(in->zstd);
    free(in);
}

/* Frees what an earlier stream allocated above the usual size, so that one unusual batch does
 * not keep memory. */
static void inflater_shrink(struct inflater *in) {
    if (in->window_bytes > INFLATER_KEEP_BYTES_MAX) {
        free(in->window);
        in->window = NULL;
        in->window_bytes = 0;
    }
    if (in->zstd != NULL && ZSTD_sizeof_DCtx(in->zstd) > INFLATER_KEEP_BYTES_MAX) {
        ZSTD_freeDCtx(in->zstd);
        in->zstd = NULL;
    }
}

static bool inflater_reserve(struct inflater *in, size_t bytes) {
    if (in->window_bytes >= bytes) {
        return true;
    }
    free(in->window);
    in->window = malloc(bytes);
    in->window_bytes = in->window == NULL ? 0 : bytes;
    return in->window != NULL;
}

static int gzip_begin(struct inflater *in) {
    if (in->gzip == NULL) {
        in->gzip = malloc(sizeof(struct inflate_state));
        if (in->gzip == NULL) {
            return COMPRESS_E_MEMORY;
        }
    }
    isal_inflate_init(in->gzip);
    in->gzip->crc_flag = ISAL_GZIP;
    in->gzip->next_in =
        (uint8_t *)(uintptr_t)in->src; /* only read; the library's field lacks const */
    in->gzip->avail_in = (uint32_t)(in->end - in->src);
    return in->src == in->end ? COMPRESS_E_CORRUPT : 0;
}

/* Kafka's Java reader rejects linked blocks, unknown versions and reserved bits. Consumers must
 * never receive such a frame. */
static int lz4_begin(struct inflater *in) {
    if (in->end - in->src < LZ4_BAD_FRAME_BYTES_MIN) {
        return COMPRESS_E_CORRUPT;
    }
    uint8_t flags = in->src[4];
    bool independent = (flags & 0x20) != 0;
    if (memcmp(in->src, "\x04\x22\x4d\x18", 4) != 0 || flags >> 6 != 1 || !independent ||
        (flags & 0x03) != 0) {
        return COMPRESS_E_CORRUPT;
    }
    if (in->lz4 == NULL && LZ4F_isError(LZ4F_createDecompressionContext(&in->lz4, LZ4F_VERSION))) {
        in->lz4 = NULL;
        return COMPRESS_E_MEMORY;
    }
    LZ4F_resetDecompressionContext(in->lz4);
    return 0;
}

static int zstd_begin(struct inflater *in) {
    if (in->zstd == NULL) {
        in->zstd = ZSTD_createDCtx();
        if (in->zstd == NULL || ZSTD_isError(ZSTD_DCtx_setParameter(in->zstd, ZSTD_d_windowLogMax,
                                                                    ZSTD_WINDOW_LOG_MAX))) {
            ZSTD_freeDCtx(in->zstd);
            in->zstd = NULL;
            return COMPRESS_E_MEMORY;
        }
    }
    ZSTD_DCtx_reset(in->zstd, ZSTD_reset_session_only);
    return in->src == in->end ? COMPRESS_E_CORRUPT : 0;
}

/* Skips snappy-java's header; versions below 1 are rejected, as by snappy-java. Returns 1, or 0
 * without a header. */
static int xerial_header(struct inflater *in) {
    size_t len = (size_t)(in->end - in->src);
    if (len < sizeof XERIAL_MAGIC || memcmp(in->src, XERIAL_MAGIC, sizeof XERIAL_MAGIC) != 0) {
        return 0;
    }
    if (len < XERIAL_HEADER_BYTES || get_i32(in->src + sizeof XERIAL_MAGIC) < 1) {
        return COMPRESS_E_CORRUPT;
    }
    in->src += XERIAL_HEADER_BYTES;
    return 1;
}

static int snappy_begin(struct inflater *in) {
    int found = in->src == in->end ? COMPRESS_E_CORRUPT : xerial_header(in);
    in->xerial = found == 1;
    return found < 0 ? found : 0;
}

static int inflater_open(struct inflater *in) {
    if (in->end - in->src > INT32_MAX) {
        return COMPRESS_E_LIMIT;
    }
    if (in->codec == CODEC_NONE) {
        return 0;
    }
    if (!inflater_reserve(in, INFLATER_WINDOW_BYTES)) {
        return COMPRESS_E_MEMORY;
    }
    switch (in->codec) {
    case CODEC_GZIP: return gzip_begin(in);
    case CODEC_SNAPPY: return snappy_begin(in);
    case CODEC_LZ4: return lz4_begin(in);
    case CODEC_ZSTD: return zstd_begin(in);
    default: return COMPRESS_E_CODEC;
    }
}

int inflater_begin(struct inflater *in, int codec, const uint8_t *src, size_t len,
                   uint64_t out_max) {
    inflater_shrink(in);
    in->codec = codec;
    in->src = src;
    in->end = src + len;
    in->out_left = out_max;
    int rc = inflater_open(in);
    in->done = rc < 0;
    return rc;
}

/* Each of the following functions writes the next bytes to the window and returns their number
 * (0 only at the end, with done set) or an error. */

static int64_t gzip_next(struct inflater *in) {
    struct inflate_state *state = in->gzip;
    for (;;) {
        state->next_out = in->window;
        state->avail_out = INFLATER_WINDOW_BYTES;
        uint32_t in_before = state->avail_in;
        int rc = isal_inflate(state);
        if (rc < 0 || rc == ISAL_NEED_DICT) {
            return COMPRESS_E_CORRUPT;
        }
        size_t produced = INFLATER_WINDOW_BYTES - state->avail_out;
        if (state->block_state == ISAL_BLOCK_FINISH) {
            uint32_t left = state->avail_in;
            const uint8_t *at = state->next_in;
            /* Trailing bytes that do not start another stream are padding: Java ignores them. */
            if (left < 2 || at[0] != 0x1f || at[1] != 0x8b) {
                in->done = true;
                return (int64_t)produced;
            }
            /* The init clears the whole state; the output stays valid because it is in the
             * window. */
            in->src = at;
            if (gzip_begin(in) < 0) {
                in->done = true;
                return (int64_t)produced;
            }
        } else if (produced == 0 && state->avail_in == in_before) {
            return COMPRESS_E_CORRUPT; /* truncated: neither input nor output advances */
        }
        if (produced > 0) {
            return (int64_t)produced;
        }
    }
}

static int64_t lz4_next(struct inflater *in) {
    for (;;) {
        size_t produced = INFLATER_WINDOW_BYTES, used = (size_t)(in->end - in->src);
        size_t hint = LZ4F_decompress(in->lz4, in->window, &produced, in->src, &used, NULL);
        if (LZ4F_isError(hint)) {
            return COMPRESS_E_CORRUPT;
        }
        in->src += used;
        if (hint == 0) {
            /* Java reads one frame and ignores trailing bytes. */
            in->done = true;
            return (int64_t)produced;
        }
        if (produced > 0) {
            return (int64_t)produced;
        }
        if (used == 0 || in->src == in->end) {
            return COMPRESS_E_CORRUPT;
        }
    }
}

static int64_t zstd_next(struct inflater *in) {
    ZSTD_inBuffer input = {in->src, (size_t)(in->end - in->src), 0};
    for (;;) {
        ZSTD_outBuffer output = {in->window, INFLATER_WINDOW_BYTES, 0};
        size_t in_before = input.pos;
        size_t hint = ZSTD_decompressStream(in->zstd, &output, &input);
        if (ZSTD_isError(hint)) {
            return COMPRESS_E_CORRUPT;
        }
        bool all_read = input.pos == input.size;
        if (hint == 0 && all_read) {
            in->done = true;
        }
        if (output.pos > 0 || in->done) {
            in->src += input.pos;
            return (int64_t)output.pos;
        }
        if (input.pos == in_before) {
            return COMPRESS_E_CORRUPT; /* truncated */
        }
    }
}

/* The most that n bytes of snappy can expand to: the densest element produces 64 bytes from 3. */
static uint64_t snappy_expansion_max(size_t n) {
    return (uint64_t)n * 64 / 3 + 64;
}

static int64_t snappy_block(struct inflater *in, const uint8_t *block, size_t len) {
    size_t declared_bytes = 0;
    const char *bytes = (const char *)block;
    if (snappy_uncompressed_length(bytes, len, &declared_bytes) != SNAPPY_OK ||
        declared_bytes > snappy_expansion_max(len)) {
        return COMPRESS_E_CORRUPT;
    }
    if (declared_bytes > in->out_left) {
        return COMPRESS_E_LIMIT;
    }
    if (declared_bytes > INFLATER_UNPROVEN_BYTES_MAX &&
        snappy_validate_compressed_buffer(bytes, len) != SNAPPY_OK) {
        return COMPRESS_E_CORRUPT;
    }
    if (!inflater_reserve(in, declared_bytes)) {
        return COMPRESS_E_MEMORY;
    }
    if (snappy_uncompress(bytes, len, (char *)in->window, &declared_bytes) != SNAPPY_OK) {
        return COMPRESS_E_CORRUPT;
    }
    return (int64_t)declared_bytes;
}

static int64_t snappy_next(struct inflater *in) {
    if (!in->xerial) {
        in->done = true;
        return snappy_block(in, in->src, (size_t)(in->end - in->src));
    }
    while (in->src < in->end) {
        size_t left = (size_t)(in->end - in->src);
        int header = xerial_header(in); /* concatenated streams, as snappy-java reads them */
        if (header == 1) {
            continue;
        }
        if (header < 0 || left < 4) {
            return COMPRESS_E_CORRUPT;
        }
        int32_t len = get_i32(in->src);
        if (len <= 0 || (size_t)len > left - 4) {
            return COMPRESS_E_CORRUPT;
        }
        const uint8_t *block = in->src + 4;
        in->src = block + len;
        int64_t produced = snappy_block(in, block, (size_t)len);
        if (produced != 0) {
            return produced;
        }
    }
    in->done = true;
    return 0;
}

int inflater_next(struct inflater *in, const uint8_t **chunk, size_t *len) {
    if (in->done) {
        inflater_shrink(in);
        return 0;
    }
    int64_t produced;
    *chunk = in->window;
    switch (in->codec) {
    case CODEC_NONE:
        *chunk = in->src;
        produced = in->end - in->src;
        in->done = true;
        break;
    case CODEC_GZIP: produced = gzip_next(in); break;
    case CODEC_SNAPPY:
        produced = snappy_next(in);
        *chunk = in->window;
        break;
    case CODEC_LZ4: produced = lz4_next(in); break;
    case CODEC_ZSTD: produced = zstd_next(in); break;
    default: produced = COMPRESS_E_CODEC; break;
    }
    if (produced >= 0 && (uint64_t)produced > in->out_left) {
        produced = COMPRESS_E_LIMIT;
    }
    if (produced <= 0) {
        in->done = true;
        inflater_shrink(in);
        return (int)produced;
    }
    in->out_left -= (uint64_t)produced;
    *len = (size_t)produced;
    return 1;
}
