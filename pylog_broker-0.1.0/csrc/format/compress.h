/* Kafka's codecs over whole blocks of records: one streaming inflater with an output cap, one
 * deflater. Formats: gzip (RFC 1952), snappy (xerial framing, and bare blocks as librdkafka sends),
 * lz4 frame, zstd. Nothing is ever allocated from a size that the input declares. */
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
    COMPRESS_E_CORRUPT = -1, /* the input is not of its codec, or is cut short */
    COMPRESS_E_LIMIT = -2,   /* the output would pass the cap */
    COMPRESS_E_CODEC = -3,   /* no such codec */
    COMPRESS_E_MEMORY = -4,
};

/* Contexts that are costly to make (zstd, lz4, igzip) and the output window; one per thread, made
 * lazily, bounded (INFLATER_WINDOW_BYTES plus the libraries' own states). Two streams may need more
 * while they last: a snappy block, at most what its bytes can truly expand to, and a zstd window,
 * at most 128 MiB as Kafka's clients declare at level 22, of which only what output has filled is
 * ever touched. Both are given back at the end of the stream. */
struct inflater;
struct inflater *inflater_new(void);
void inflater_free(struct inflater *in);

/* Begins a stream. `out_max`: bytes it may inflate to. 0 or a negative compress_error. The input
 * stays borrowed. */
int inflater_begin(struct inflater *in, int codec, const uint8_t *src, size_t len,
                   uint64_t out_max);

/* The next piece of output: 1 and a borrowed chunk (valid until the next call), 0 at the clean end,
 * negative on error. */
int inflater_next(struct inflater *in, const uint8_t **chunk, size_t *len);

/* Deflates a whole block. `level` as the codec has it (Kafka's compression.*.level), INT32_MIN: the
 * codec's default. On success 0, and *out (malloc'd, the caller frees) with *out_len bytes.
 * Java-readable framing: xerial for snappy, 64 KiB independent blocks without content checksum for
 * lz4. */
int compress_block(int codec, int level, const uint8_t *src, size_t len, uint8_t **out,
                   size_t *out_len);

#endif
