/* Any bytes as a batch: the checks never leave the buffer, whole and piecewise walks agree, and
 * accepted batches can be searched and re-encoded. Checksum and length are corrected so that the
 * fuzzer gets past them. */
#include <stdlib.h>
#include <string.h>

#include "format/batch.h"
#include "format/bytes.h"
#include "format/crc32c.h"
#include "format/records.h"

enum {
    FUZZ_INFLATED_MAX = 4 * 1024 * 1024,
    FUZZ_RECODED_MAX = 1024 * 1024
};

static void require(int holds) {
    if (!holds) {
        abort();
    }
}

static void mend(uint8_t *p, size_t len, uint8_t flags) {
    put_i64(p, 0);
    put_i32(p + 8, (int32_t)(len - BATCH_LOG_OVERHEAD));
    p[16] = 2;
    if (flags & 1) {
        int32_t count = p[60] % 8 + 1;
        put_i32(p + 23, count - 1);
        put_i32(p + 57, count);
        p[22] = (uint8_t)(p[22] & ~BATCH_CONTROL);
    }
    put_u32(p + 17, crc32c_extend(0, p + 21, len - 21));
}

/* Compare the payload as plain records, in one piece and in several: same verdict, same
 * findings. */
static void compare_walks(const uint8_t *p, size_t len, const struct batch_rules *rules,
                          uint8_t seed) {
    struct batch_header h;
    if (len < BATCH_HEADER_BYTES || batch_parse(p, len, &h) != 0) {
        return;
    }
    struct records whole, pieces;
    records_begin(&whole, RECORDS_CHECK, &h, rules);
    records_begin(&pieces, RECORDS_CHECK, &h, rules);
    const uint8_t *at = p + BATCH_HEADER_BYTES;
    size_t left = len - BATCH_HEADER_BYTES;
    int rc = records_feed(&whole, at, left);
    int rc_pieces = 0;
    uint32_t state = seed + 1u;
    while (left > 0 && rc_pieces == 0) {
        state = state * 1664525u + 1013904223u;
        size_t step = 1 + (seed & 1 ? 0 : (state >> 24) % 40);
        step = step < left ? step : left;
        /* A separate copy, so that the sanitizer detects reads past the piece. */
        uint8_t *piece = malloc(step);
        memcpy(piece, at, step);
        rc_pieces = records_feed(&pieces, piece, step);
        free(piece);
        at += step;
        left -= step;
    }
    rc = rc == 0 ? records_end(&whole) : rc;
    rc_pieces = rc_pieces == 0 ? records_end(&pieces) : rc_pieces;
    /* For a record that is invalid and also cut off, the errors may differ but not the verdicts. */
    require((rc == 0) == (rc_pieces == 0));
    if (rc == 0) {
        require(whole.count == pieces.count && whole.max_timestamp == pieces.max_timestamp);
        require(whole.max_timestamp_delta == pieces.max_timestamp_delta);
    }
}

static void search_and_recode(uint8_t *p, size_t len, struct inflater *in,
                              const struct batch_rules *rules, int good, uint8_t codec) {
    int64_t offset, timestamp;
    (void)batch_find_timestamp(p, len, 1000, 1, in, &offset, &timestamp);
    (void)batch_find_max_timestamp(p, len, in, &offset, &timestamp);
    uint8_t *out;
    size_t out_len;
    if (batch_recompress(p, len, codec % 5, INT32_MIN, FUZZ_INFLATED_MAX, FUZZ_RECODED_MAX, in,
                         &out, &out_len) == 0) {
        require(out_len <= FUZZ_RECODED_MAX);
        if (good) {
            struct batch_summary summary;
            require(batch_check(out, out_len, rules, in, &summary) == 0);
        }
        free(out);
    }
    batch_stamp(p, 7, 3);
    batch_stamp_max_timestamp(p, len, 5);
    batch_stamp_append_time(p, len, 6);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 4) {
        return 0;
    }
    struct batch_rules rules = {
        .now_ms = 1000000,
        .timestamp_before_max_ms = data[0] & 2 ? 1000 : INT64_MAX,
        .timestamp_after_max_ms = data[0] & 4 ? 1000 : INT64_MAX,
        .inflated_bytes_max = FUZZ_INFLATED_MAX,
        .batch_bytes_max = 1 << 20,
        .key_required = data[0] & 8,
        .log_append_time = data[0] & 16,
        .walk_records = true,
    };
    struct inflater *in = inflater_new();
    size_t len = size - 3;
    uint8_t *p = malloc(len);
    memcpy(p, data + 3, len);
    struct batch_summary summary;
    (void)batch_check(p, len, &rules, in, &summary);
    if (len >= BATCH_HEADER_BYTES) {
        mend(p, len, data[0]);
        int rc = batch_check(p, len, &rules, in, &summary);
        require(batch_error_code(rc) != -1);
        compare_walks(p, len, &rules, data[1]);
        search_and_recode(p, len, in, &rules, rc == 0, data[2]);
    }
    free(p);
    inflater_free(in);
    return 0;
}
