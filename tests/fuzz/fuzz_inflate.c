/* Any bytes as a compressed block: output and memory are bounded. Blocks from our deflaters
 * inflate to the original. */
#include <stdlib.h>
#include <string.h>

#include "format/compress.h"

enum {
    FUZZ_OUT_MAX = 8 * 1024 * 1024
};

static void require(int holds) {
    if (!holds) {
        abort();
    }
}

static void inflate_any(struct inflater *in, int codec, const uint8_t *src, size_t len) {
    const uint8_t *chunk;
    size_t n, total = 0;
    int rc = inflater_begin(in, codec, src, len, FUZZ_OUT_MAX);
    while (rc >= 0 && (rc = inflater_next(in, &chunk, &n)) == 1) {
        require(n > 0);
        total += n;
        /* Read both ends, so that the sanitizer checks the length. */
        volatile uint8_t last = chunk[n - 1] ^ chunk[0];
        (void)last;
        require(total <= FUZZ_OUT_MAX);
    }
    require(rc == 0 || rc == COMPRESS_E_CORRUPT || rc == COMPRESS_E_LIMIT);
}

static void round_trip(struct inflater *in, int codec, int level, const uint8_t *src, size_t len) {
    uint8_t *out;
    size_t out_len;
    require(compress_block(codec, level, src, len, &out, &out_len) == 0);
    const uint8_t *chunk;
    size_t n, at = 0;
    int rc = inflater_begin(in, codec, out, out_len, len);
    while (rc >= 0 && (rc = inflater_next(in, &chunk, &n)) == 1) {
        require(n <= len - at && memcmp(chunk, src + at, n) == 0);
        at += n;
    }
    require(rc == 0 && at == len);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct inflater *in; /* static, so that the state after one stream meets the next */
    if (size < 2) {
        return 0;
    }
    if (in == NULL) {
        in = inflater_new();
    }
    size_t len = size - 2;
    uint8_t *src = malloc(len + 1);
    memcpy(src, data + 2, len);
    uint8_t *exact = realloc(src, len > 0 ? len : 1);
    int codec = 1 + data[0] % 4;
    inflate_any(in, codec, exact, len);
    if (data[0] & 0x80) {
        round_trip(in, codec, data[1] & 0x80 ? INT32_MIN : 1 + data[1] % 9, exact, len);
    }
    free(exact);
    return 0;
}
