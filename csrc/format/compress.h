/* Kafka's codecs over whole blocks of records: a streaming decompressor with an output limit,
 * and a compressor. Formats: gzip (RFC 1952), snappy (xerial framing, and bare blocks as
 * librdkafka sends), lz4 frame, zstd. Sizes declared in the input never determine an allocation. */
#ifndef PYLOG_COMPRESS_H
#define PYLOG_COMPRESS_H

#include <stddef.h>
#include <stdint.h>

enum codec {
    CODEC_NONE = 0,
    CODEC_GZIP = 1,
    CODEC_SNAPPY = 2,
    CODEC_LZ4 = 3,
    CODEC_ZSTD = 4
};

enum compress_error {
    COMPRESS_E_CORRUPT = -1, /* the input is not valid for its codec, or truncated */
    COMPRESS_E_LIMIT = -2,   /* the output would exceed the limit */
    COMPRESS_E_CODEC = -3,   /* unknown codec */
    COMPRESS_E_MEMORY = -4,
};

/* Contexts that are expensive to create (zstd, lz4, igzip), and the output window. One per
 * thread, created lazily, bounded (INFLATER_WINDOW_BYTES plus the libraries' own states). Two
 * kinds of streams may need more temporarily: a snappy block, at most what its bytes can expand
 * to, and a zstd window, at most 128 MiB as Kafka's clients declare at level 22, of which only
 * the part filled with output is touched. Both are freed at the end of the stream. */
struct inflater;
struct inflater *inflater_new(void);
void inflater_free(struct inflater *in);

/* Starts a stream. `out_max`: largest decompressed size in bytes. Returns 0 or a negative
 * compress_error. The input stays borrowed. */
int inflater_begin(struct inflater *in, int codec, const uint8_t *src, size_t len,
                   uint64_t out_max);

/* Returns 1 and the next chunk of output (borrowed until the next call), 0 at the regular end,
 * negative on error. */
int inflater_next(struct inflater *in, const uint8_t **chunk, size_t *len);

/* Compresses a whole block. `level` has the codec's meaning (Kafka's compression.*.level);
 * INT32_MIN: the codec's default. On success returns 0, and *out (malloc'd, freed by the caller)
 * with *out_len bytes. Java can read the framing: xerial for snappy, 64 KiB independent blocks
 * without content checksum for lz4. */
int compress_block(int codec, int level, const uint8_t *src, size_t len, uint8_t **out,
                   size_t *out_len);

#endif
