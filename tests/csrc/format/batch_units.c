/* Batches at the limits of their fields, re-encoded, and without memory. Usage: batch_units
 * SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "log/log_scenes.h"
#include "watched.h"

enum { MS = 1000000, RECORD_BYTES = 11, LEN = BATCH_HEADER_BYTES + RECORD_BYTES };

static uint8_t batch[1 << 12];

static size_t make(void) {
    const uint8_t record[] = {20, 0, 0, 0, 2, 'k', 6, 'a', 'b', 'c', 0};
    return scene_batch(batch, record, sizeof record, MS, -1, -1);
}

static void field32(size_t at, int64_t value, size_t len) {
    put_i32(batch + at, (int32_t)value);
    scene_seal(batch, len);
}

static int parse(size_t len) {
    struct batch_header h;
    return batch_parse(batch, len, &h);
}

static void header_is_parsed_to_its_limits(void) {
    static const struct {
        int64_t batch_length;
        size_t len;
        int magic, error;
    } rows[] = {{49, 16, 2, BATCH_E_SHORT},
                {13, 17, 2, BATCH_E_LENGTH},
                {13, 17, 0, BATCH_E_LENGTH},
                {14, 17, 0, BATCH_E_OLD_MAGIC},
                {14, 17, 1, BATCH_E_OLD_MAGIC},
                {14, 17, 3, BATCH_E_MAGIC},
                {14, 17, -1, BATCH_E_MAGIC},
                {48, 61, 2, BATCH_E_LENGTH},
                {49, 17, 2, BATCH_E_SHORT},
                {49, 60, 2, BATCH_E_SHORT},
                {49, 61, 2, 0},
                {BATCH_BYTES_MAX - 12, 61, 2, 0},
                {BATCH_BYTES_MAX - 11, 61, 2, BATCH_E_TOO_LARGE},
                {INT32_MAX - 12, 17, 2, BATCH_E_TOO_LARGE},
                {INT32_MAX - 11, 17, 2, BATCH_E_LENGTH},
                {-1, 17, 2, BATCH_E_LENGTH}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        make();
        put_i32(batch + BATCH_LENGTH_AT, (int32_t)rows[i].batch_length);
        batch[BATCH_MAGIC_AT] = (uint8_t)rows[i].magic;
        CHECK(parse(rows[i].len) == rows[i].error);
    }
    struct batch_header h;
    for (int i = 0; i < BATCH_HEADER_BYTES; i++) batch[i] = (uint8_t)i;
    put_i32(batch + BATCH_LENGTH_AT, 100);
    batch[BATCH_MAGIC_AT] = 2;
    CHECK(batch_parse(batch, BATCH_HEADER_BYTES, &h) == 0);
    CHECK(h.base_offset == 0x0001020304050607 && h.batch_length == 100 && h.magic == 2);
    CHECK(h.leader_epoch == 0x0c0d0e0f && h.crc == 0x11121314 && h.attributes == 0x1516);
    CHECK(h.last_offset_delta == 0x1718191a && h.base_timestamp == 0x1b1c1d1e1f202122);
    CHECK(h.max_timestamp == 0x232425262728292a && h.producer_id == 0x2b2c2d2e2f303132);
    CHECK(h.producer_epoch == 0x3334 && h.base_sequence == 0x35363738);
    CHECK(h.record_count == 0x393a3b3c);
}

static struct batch_summary summary;
static struct inflater *inflater;

static int check(size_t len, const struct batch_rules *rules) {
    memset(&summary, 0x77, sizeof summary);
    return batch_check(batch, len, rules, inflater, &summary);
}

static void a_producers_batch_is_checked_in_order(void) {
    struct batch_rules rules = {.now_ms = MS,
                                .timestamp_before_max_ms = INT64_MAX,
                                .timestamp_after_max_ms = INT64_MAX,
                                .inflated_bytes_max = 1 << 20,
                                .batch_bytes_max = -1,
                                .walk_records = true};
    make();
    CHECK(check(0, &rules) == BATCH_E_EMPTY && summary.header.batch_length == 0);
    CHECK(summary.max_timestamp == -1 && summary.max_timestamp_delta == -1);
    CHECK(summary.bad_record_count == 0 && summary.inflated_bytes == 0);
    CHECK(check(LEN, &rules) == 0 && summary.inflated_bytes == RECORD_BYTES);
    CHECK(summary.max_timestamp == MS && summary.max_timestamp_delta == 0);
    CHECK(check(LEN - 1, &rules) == BATCH_E_SHORT && check(LEN + 1, &rules) == BATCH_E_MANY);
    rules.batch_bytes_max = LEN;
    CHECK(check(LEN, &rules) == 0);
    rules.batch_bytes_max = LEN - 1;
    CHECK(check(LEN, &rules) == BATCH_E_TOO_LARGE);
    rules.batch_bytes_max = 0;
    CHECK(check(LEN, &rules) == BATCH_E_TOO_LARGE);
    put_i64(batch, 1);
    CHECK(check(LEN, &rules) == BATCH_E_BASE_OFFSET);
    put_i32(batch + BATCH_LENGTH_AT, BATCH_BYTES_MAX);
    CHECK(check(LEN, &rules) == BATCH_E_SHORT);
    rules.batch_bytes_max = -1;
    /* Of several faults the first is reported: CRC, codec, count, control, sequence. */
    make();
    put_i16(batch + BATCH_ATTRIBUTES_AT, BATCH_CONTROL | 5);
    put_i64(batch + BATCH_PRODUCER_ID_AT, 0);
    field32(BATCH_RECORD_COUNT_AT, 0, LEN);
    batch[LEN - 1] ^= 1;
    CHECK(check(LEN, &rules) == BATCH_E_CRC);
    batch[LEN - 1] ^= 1;
    CHECK(check(LEN, &rules) == BATCH_E_CODEC);
    put_i16(batch + BATCH_ATTRIBUTES_AT, BATCH_CONTROL);
    scene_seal(batch, LEN);
    CHECK(check(LEN, &rules) == BATCH_E_COUNT);
    field32(BATCH_LAST_OFFSET_DELTA_AT, -1, LEN); /* consistent but invalid */
    CHECK(check(LEN, &rules) == BATCH_E_COUNT);
    field32(BATCH_LAST_OFFSET_DELTA_AT, 1, LEN);
    field32(BATCH_RECORD_COUNT_AT, 1, LEN);
    CHECK(check(LEN, &rules) == BATCH_E_COUNT);
    field32(BATCH_LAST_OFFSET_DELTA_AT, 0, LEN);
    CHECK(check(LEN, &rules) == BATCH_E_CONTROL);
    put_i16(batch + BATCH_ATTRIBUTES_AT, 0);
    scene_seal(batch, LEN);
    CHECK(check(LEN, &rules) == BATCH_E_SEQUENCE);
    field32(BATCH_BASE_SEQUENCE_AT, 0, LEN);
    CHECK(check(LEN, &rules) == 0);
    /* Without a walk the header is trusted. */
    put_i64(batch + BATCH_MAX_TIMESTAMP_AT, MS + 7);
    batch[LEN - 1] ^= 1;
    scene_seal(batch, LEN);
    CHECK(check(LEN, &rules) == BATCH_E_RECORD);
    rules.walk_records = false;
    CHECK(check(LEN, &rules) == 0 && summary.max_timestamp == MS + 7);
    CHECK(summary.max_timestamp_delta == -1 && summary.inflated_bytes == 0);
}

/* A count that cannot fit into the bytes is rejected before anything is inflated. */
static void counts_are_held_against_the_bytes(void) {
    struct batch_rules rules = {.now_ms = MS,
                                .timestamp_before_max_ms = INT64_MAX,
                                .timestamp_after_max_ms = INT64_MAX,
                                .inflated_bytes_max = RECORD_BYTES,
                                .batch_bytes_max = -1,
                                .walk_records = true};
    uint8_t *gzip;
    size_t len;
    make();
    CHECK(batch_assemble(batch, CODEC_GZIP, INT32_MIN, batch + BATCH_HEADER_BYTES, RECORD_BYTES,
                         &gzip, &len) == 0);
    memcpy(batch, gzip, len);
    free(gzip);
    CHECK(check(len, &rules) == 0 && summary.inflated_bytes == RECORD_BYTES);
    rules.inflated_bytes_max = RECORD_BYTES - 1;
    CHECK(check(len, &rules) == BATCH_E_INFLATE_MAX);
    rules.inflated_bytes_max = -1;
    CHECK(check(len, &rules) == BATCH_E_INFLATE_MAX);
    rules.inflated_bytes_max = 1 << 20;
    struct inflater *own = inflater;
    inflater = NULL;
    CHECK(check(len, &rules) == BATCH_E_MEMORY);
    inflater = own;
    batch[len - 12] ^= 0xff;
    scene_seal(batch, len);
    CHECK(check(len, &rules) < 0);
}

static void errors_have_codes_and_words(void) {
    static const struct {
        int error;
        int16_t code;
    } rows[] = {{0, 0},
                {BATCH_E_SHORT, 87},       {BATCH_E_LENGTH, 2},      {BATCH_E_MAGIC, 2},
                {BATCH_E_OLD_MAGIC, 87},   {BATCH_E_CRC, 2},         {BATCH_E_COUNT, 87},
                {BATCH_E_RECORD, 87},      {BATCH_E_KEY, 87},        {BATCH_E_TIMESTAMP, 32},
                {BATCH_E_CODEC, 76},       {BATCH_E_INFLATE, 2},     {BATCH_E_INFLATE_MAX, 10},
                {BATCH_E_TOO_LARGE, 10},   {BATCH_E_CONTROL, 87},    {BATCH_E_SEQUENCE, 87},
                {BATCH_E_BASE_OFFSET, 87}, {BATCH_E_MANY, 87},       {BATCH_E_EMPTY, 87},
                {BATCH_E_MEMORY, -1},      {BATCH_E_APPEND_TIME, 32}, {BATCH_E_APPEND_TIME - 1, -1},
                {1, -1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK(batch_error_code(rows[i].error) == rows[i].code);
        const bool known = rows[i].error <= 0 && rows[i].error >= BATCH_E_APPEND_TIME;
        CHECK((strcmp(batch_error_text(rows[i].error), "Unknown error") != 0) == known);
        CHECK((strlen(batch_error_text(rows[i].error)) > 0) == (rows[i].error != 0));
    }
    CHECK(batch_inflate_error(COMPRESS_E_LIMIT) == BATCH_E_INFLATE_MAX);
    CHECK(batch_inflate_error(COMPRESS_E_CODEC) == BATCH_E_CODEC);
    CHECK(batch_inflate_error(COMPRESS_E_MEMORY) == BATCH_E_MEMORY);
    CHECK(batch_inflate_error(-1000) == BATCH_E_INFLATE);
}

static void stamping_keeps_the_checksum_valid(void) {
    struct batch_header h;
    make();
    batch_stamp(batch, 0x0102030405060708, 0x11121314);
    CHECK(batch_parse(batch, LEN, &h) == 0 && batch_check_crc(batch, &h) == 0);
    CHECK(h.base_offset == 0x0102030405060708 && h.leader_epoch == 0x11121314);
    batch_stamp_append_time(batch, LEN, MS + 1);
    CHECK(batch_parse(batch, LEN, &h) == 0 && batch_check_crc(batch, &h) == 0);
    CHECK(h.attributes == BATCH_LOG_APPEND_TIME && h.max_timestamp == MS + 1);
    /* A different time or only the attribute bit is a change. */
    CHECK(batch_stamp_max_timestamp(batch, LEN, MS + 1));
    CHECK(!batch_stamp_max_timestamp(batch, LEN, MS + 1));
    CHECK(batch_stamp_max_timestamp(batch, LEN, MS + 2));
    CHECK(batch_parse(batch, LEN, &h) == 0 && batch_check_crc(batch, &h) == 0);
    CHECK(h.attributes == 0 && h.max_timestamp == MS + 2);
    batch[LEN - 1] ^= 1;
    CHECK(batch_check_crc(batch, &h) == BATCH_E_CRC);
}

/* Parse the marker of a batch with the first `len` bytes of this record; *epoch is 99 if there
 * is none. */
static int marker(const uint8_t *record, size_t len, int32_t *epoch) {
    struct batch_header h;
    size_t whole = scene_batch(batch, record, len, MS, 5, -1);
    /* Bytes after the record do not belong to it. */
    memset(batch + whole, 2, 64);
    *epoch = 99;
    CHECK(batch_parse(batch, whole, &h) == 0);
    return batch_marker(batch, &h, epoch);
}

static void a_marker_says_its_type_and_its_epoch(void) {
    uint8_t record[] = {30, 0, 0, 0, 8, 0, 0, 0, 1, 12, 0, 0, 0, 0, 1, 7, 0};
    const size_t key_at = 4, value_at = 9;
    int32_t epoch;
    CHECK(marker(record, sizeof record, &epoch) == 1 && epoch == 0x0107);
    record[8] = 0;
    CHECK(marker(record, sizeof record, &epoch) == 0 && epoch == 0x0107);
    record[7] = 3;
    CHECK(marker(record, sizeof record, &epoch) == 0x300);
    record[7] = 0;
    /* A short or truncated value has no epoch; with a short or truncated key it is no marker. */
    for (size_t len = 0; len < sizeof record - 1; len++) {
        int type = marker(record, len, &epoch);
        CHECK(type == (len < value_at ? -1 : 0) && epoch == 99);
    }
    CHECK(marker(record, sizeof record - 1, &epoch) == 0 && epoch == 0x0107);
    record[value_at] = 10;
    CHECK(marker(record, sizeof record, &epoch) == 0 && epoch == 99);
    record[key_at] = 6;
    CHECK(marker(record, sizeof record, &epoch) == -1);
    record[key_at] = 100;
    CHECK(marker(record, sizeof record, &epoch) == -1);
    /* Nor is a compressed batch. */
    record[key_at] = 8;
    struct batch_header h;
    marker(record, sizeof record, &epoch);
    CHECK(batch_parse(batch, BATCH_HEADER_BYTES, &h) == 0);
    CHECK(batch_marker(batch, &h, &epoch) == 0);
    h.attributes = CODEC_GZIP;
    CHECK(batch_marker(batch, &h, &epoch) == -1);
}

/* ---- times ---- */

/* Write records at these times after the first. */
static size_t make_times(const int8_t *after_ms, int count) {
    uint8_t records[64], *to = records;
    for (int i = 0; i < count; i++) {
        const uint8_t after = (uint8_t)(after_ms[i] * 2), delta = (uint8_t)(i * 2);
        const uint8_t record[] = {14, 0, after, delta, 1, 2, 'v', 0};
        memcpy(to, record, sizeof record);
        to += sizeof record;
    }
    size_t len = scene_batch(batch, records, (size_t)(to - records), MS, -1, -1);
    put_i64(batch, 40);
    put_i32(batch + BATCH_RECORD_COUNT_AT, count);
    put_i32(batch + BATCH_LAST_OFFSET_DELTA_AT, count - 1);
    put_i64(batch + BATCH_MAX_TIMESTAMP_AT, MS + 9);
    scene_seal(batch, len);
    return len;
}

static void records_are_found_by_timestamp(void) {
    const int8_t after_ms[] = {3, 9, 1, 9};
    size_t len = make_times(after_ms, 4);
    int64_t offset = -5, ms = -5;
#define FIND(target, from, of_len)                                                                 \
    batch_find_timestamp(batch, of_len, target, from, inflater, &offset, &ms)
    CHECK(FIND(MS, 0, len) == 1 && offset == 40 && ms == MS + 3);
    CHECK(FIND(MS + 4, 0, len) == 1 && offset == 41 && ms == MS + 9);
    CHECK(FIND(MS, 42, len) == 1 && offset == 42 && ms == MS + 1);
    CHECK(FIND(MS + 2, 42, len) == 1 && offset == 43 && ms == MS + 9);
    offset = ms = -5;
    CHECK(FIND(MS + 10, 0, len) == 0 && FIND(MS, 44, len) == 0);
    CHECK(FIND(MS, 0, len - 1) == BATCH_E_SHORT && FIND(MS, 0, 16) == BATCH_E_SHORT);
    CHECK(offset == -5 && ms == -5);
#define MAX(of_len) batch_find_max_timestamp(batch, of_len, inflater, &offset, &ms)
    CHECK(MAX(len - 1) == BATCH_E_SHORT && MAX(16) == BATCH_E_SHORT && offset == -5);
    CHECK(MAX(len) == 1 && offset == 41 && ms == MS + 9);
    batch[len - 1] = 2; /* a missing header */
    offset = -5;
    CHECK(MAX(len) < 0 && offset == -5 && FIND(MS + 10, 0, len) < 0);
}

/* ---- re-encoding ---- */

static void check_recoded(int codec, size_t bytes_max, int64_t inflated_max, int error) {
    static uint8_t first[1 << 12];
    uint8_t *out = NULL;
    size_t out_len = 0, len = (size_t)get_i32(batch + BATCH_LENGTH_AT) + BATCH_LOG_OVERHEAD;
    memcpy(first, batch, len);
    int rc = batch_recompress(batch, len, codec, INT32_MIN, inflated_max, bytes_max, inflater, &out,
                              &out_len);
    CHECK(rc == error && memcmp(first, batch, len) == 0);
    if (rc != 0) {
        CHECK(out == NULL);
        return;
    }
    struct batch_header h;
    CHECK(batch_parse(out, out_len, &h) == 0 && batch_bytes(&h) == out_len);
    CHECK(batch_check_crc(out, &h) == 0 && out_len <= bytes_max);
    CHECK(h.attributes == (BATCH_TRANSACTIONAL | codec) && h.base_timestamp == MS);
    memcpy(batch, out, out_len);
    free(out);
}

static void batch_is_reencoded_within_its_limits(void) {
    make();
    put_i16(batch + BATCH_ATTRIBUTES_AT, BATCH_TRANSACTIONAL);
    scene_seal(batch, LEN);
    static uint8_t plain[LEN];
    memcpy(plain, batch, LEN);
    check_recoded(CODEC_GZIP, 10, 1 << 20, BATCH_E_TOO_LARGE);
    for (int codec = CODEC_GZIP; codec <= CODEC_ZSTD; codec++) {
        check_recoded(codec, 1 << 12, 1 << 20, 0);
        const size_t len = (size_t)get_i32(batch + BATCH_LENGTH_AT) + BATCH_LOG_OVERHEAD;
        check_recoded(codec, len - 1, 1 << 20, BATCH_E_TOO_LARGE);
        check_recoded(codec, len, 1 << 20, 0);
        /* Uncompressed, the batch may exceed neither the size limit nor the inflated limit. */
        check_recoded(CODEC_NONE, LEN - 1, 1 << 20, BATCH_E_TOO_LARGE);
        check_recoded(CODEC_NONE, BATCH_HEADER_BYTES - 1, 1 << 20, BATCH_E_TOO_LARGE);
        check_recoded(CODEC_NONE, 1 << 12, RECORD_BYTES - 1, BATCH_E_INFLATE_MAX);
        check_recoded(CODEC_NONE, 1 << 12, -1, BATCH_E_INFLATE_MAX);
        check_recoded(CODEC_NONE, LEN, RECORD_BYTES, 0);
        CHECK(memcmp(batch, plain, LEN) == 0);
    }
    uint8_t *out;
    size_t out_len;
    CHECK(batch_recompress(batch, LEN - 1, CODEC_LZ4, INT32_MIN, 1 << 20, 1 << 12, inflater, &out,
                           &out_len) == BATCH_E_SHORT);
    CHECK(batch_recompress(batch, 16, CODEC_LZ4, INT32_MIN, 1 << 20, 1 << 12, inflater, &out,
                           &out_len) == BATCH_E_SHORT);
    CHECK(batch_recompress(batch, LEN, 9, INT32_MIN, 1 << 20, 1 << 12, inflater, &out,
                           &out_len) == BATCH_E_CODEC);
}

/* Several times the output that an inflater produces at once. */
static void a_long_batch_comes_back_as_it_was(void) {
    enum { BYTES = 700001 };
    uint8_t *records = malloc(BYTES), *gzip, *plain;
    size_t gzip_len, plain_len;
    struct batch_header h;
    for (int i = 0; i < BYTES; i++) records[i] = (uint8_t)(i * 31 >> 4);
    make();
    CHECK(batch_assemble(batch, CODEC_LZ4, INT32_MIN, records, BYTES, &gzip, &gzip_len) == 0);
    CHECK(batch_parse(gzip, gzip_len, &h) == 0 && batch_bytes(&h) == gzip_len);
    CHECK(batch_inflate(gzip, &h, BYTES, inflater, &plain, &plain_len) == 0);
    CHECK(plain_len == BYTES && memcmp(plain, records, BYTES) == 0);
    free(plain);
    CHECK(batch_inflate(gzip, &h, BYTES - 1, inflater, &plain, &plain_len) == BATCH_E_INFLATE_MAX);
    /* Allocations fail one after the other. */
    int rc = BATCH_E_MEMORY;
    for (long n = 0; rc != 0; n++) {
        CHECK(n < 30 && rc == BATCH_E_MEMORY);
        blocks_left = n;
        rc = batch_inflate(gzip, &h, BYTES, inflater, &plain, &plain_len);
        blocks_left = -1;
    }
    free(plain);
    rc = BATCH_E_MEMORY;
    for (long n = 0; rc != 0; n++) {
        uint8_t *out = NULL;
        size_t out_len;
        CHECK(n < 30 && rc == BATCH_E_MEMORY);
        blocks_left = n;
        rc = batch_recompress(gzip, gzip_len, CODEC_LZ4, INT32_MIN, BYTES, 1 << 20, inflater, &out,
                              &out_len);
        blocks_left = -1;
        free(out);
    }
    free(gzip);
    free(records);
}

static void recoded(void) {
    batch_is_reencoded_within_its_limits();
    a_long_batch_comes_back_as_it_was();
}

static void checked(void) {
    a_producers_batch_is_checked_in_order();
    counts_are_held_against_the_bytes();
    errors_have_codes_and_words();
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"parsed", header_is_parsed_to_its_limits},
                  {"checked", checked},
                  {"stamped", stamping_keeps_the_checksum_valid},
                  {"markers", a_marker_says_its_type_and_its_epoch},
                  {"times", records_are_found_by_timestamp},
                  {"recoded", recoded}};
    CHECK(argc == 2);
    inflater = inflater_new();
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[1]) == 0) {
            scenes[i].play();
            inflater_free(inflater);
            check_given_back();
            puts("ok");
        }
    return 0;
}
