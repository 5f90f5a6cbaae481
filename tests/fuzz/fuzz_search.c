/* Any bytes as a fetched partition that is searched: reads stay inside, every sequence of limits
 * finds the same records, and a search without tests finds them all. The first half of the input
 * may also be one JSON document. */
#include <stdlib.h>
#include <string.h>

#include "columns/search.h"
#include "format/bytes.h"
#include "format/crc32c.h"

enum {
    FUZZ_INFLATED_MAX = 4 * 1024 * 1024,
    FUZZ_BYTES_MAX = 8 * 1024 * 1024
};

static const struct json_step STEPS[] = {
    {(const uint8_t *)"a", 1, 0}, {NULL, 0, 1}, {(const uint8_t *)"b", 1, 0}};
static const char *const TEXTS[] = {"7", "true", "a", "v", "key", "header", "-1.5e3", "\xc3\xa9"};

static void require(int holds) {
    if (!holds) {
        abort();
    }
}

/* Correct magic and checksum of the batches. */
static void mend(uint8_t *p, size_t len) {
    while (len >= BATCH_HEADER_BYTES) {
        size_t batch = (size_t)get_u32(p + 8) + BATCH_LOG_OVERHEAD;
        if (batch > len || batch < BATCH_HEADER_BYTES) {
            batch = len;
            put_i32(p + 8, (int32_t)(len - BATCH_LOG_OVERHEAD));
        }
        p[16] = 2;
        put_u32(p + 17, crc32c_extend(0, p + 21, batch - 21));
        p += batch;
        len -= batch;
    }
}

/* Makes a valid test from three bytes. */
static struct search_test test_of(const uint8_t *p) {
    struct search_test t = {.group = p[2] >> 7};
    t.field = (enum search_field)(p[0] % SEARCH_FIELD_COUNT);
    t.op = (enum search_op)(p[1] % SEARCH_OP_COUNT);
    if (!search_test_is_valid(&t)) {
        t.field = SEARCH_VALUE_JSON;
    }
    if (!search_test_is_valid(&t)) {
        t.op = SEARCH_CONTAINS;
    }
    const char *text = TEXTS[p[2] & 7];
    t.text = (const uint8_t *)text;
    t.text_len = strlen(text);
    t.name = (const uint8_t *)"header";
    t.name_len = 6;
    t.steps = STEPS + (p[2] >> 3 & 1);
    t.step_count = p[2] >> 4 & 1 ? 2 : 0;
    t.kind = (p[2] & 7) == 0 || (p[2] & 7) == 6 ? JSON_NUMBER
             : (p[2] & 7) == 1                  ? JSON_LITERAL
                                                : JSON_STRING;
    t.low = p[0];
    t.high = INT64_MAX;
    require(search_test_is_valid(&t));
    return t;
}

static uint64_t search_all(const uint8_t *p, size_t len, const struct search_test *tests,
                           size_t count, int64_t rows, int64_t bytes, struct columns *c) {
    struct inflater *in = inflater_new();
    struct columns_source s;
    memset(&s, 0, sizeof s);
    s.p = p;
    s.end = p + len;
    s.inflater = in;
    s.inflated_bytes_max = FUZZ_INFLATED_MAX;
    s.check_crc = true;
    require(in != NULL && columns_source_begin(&s, NULL, 0) == 0);
    memset(c, 0, sizeof *c);
    c->bytes_max = FUZZ_BYTES_MAX;
    c->with_headers = true;
    struct search search = {.tests = tests, .test_count = count, .end_offset = INT64_MAX};
    int64_t n = 0, position = s.next_offset;
    while (n >= 0 && !s.exhausted) {
        int64_t before = search.records;
        n = search_append(&search, &s, c, 0, rows, bytes);
        require(n <= rows && s.next_offset >= position && search.records >= before + n);
        require(n != 0 || s.exhausted || search.records > before || s.error < 0);
        position = s.next_offset;
    }
    columns_source_end(&s);
    inflater_free(in);
    free(search.decoded);
    require(c->rows <= (size_t)search.records);
    return (uint64_t)search.records;
}

static void find_in_document(const uint8_t *p, size_t len) {
    uint8_t *copy = malloc(len > 0 ? len : 1), *out = malloc(len > 0 ? len : 1);
    memcpy(copy, p, len);
    for (size_t count = 0; count <= 3; count++) {
        struct json_value v;
        if (!json_find(copy, len, STEPS, count, &v)) {
            continue;
        }
        require(v.text >= copy && v.text + v.len <= copy + len);
        bool valid;
        if (v.kind == JSON_STRING) {
            size_t n = json_decode_string(&v, out);
            require(n <= v.len && json_compare_string(&v, out, n) == 0);
        } else if (v.kind == JSON_NUMBER) {
            require(json_compare_numbers(v.text, v.len, v.text, v.len, &valid) == 0 && valid);
        }
    }
    free(copy);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 10) {
        return 0;
    }
    size_t len = size - 9;
    uint8_t *p = malloc(len);
    memcpy(p, data + 9, len);
    find_in_document(p, len / 2);
    if (data[0] & 8) {
        mend(p, len);
    }
    struct search_test tests[] = {test_of(data + 1), test_of(data + 4)};
    if (tests[0].group > tests[1].group) {
        tests[1].group = tests[0].group;
    }
    struct columns whole, steps, all;
    uint64_t records = search_all(p, len, tests, 2, INT64_MAX, INT64_MAX, &whole);
    require(records == search_all(p, len, tests, 2, data[7] % 9 + 1, data[8] + 1, &steps));
    require(search_all(p, len, NULL, 0, INT64_MAX, INT64_MAX, &all) == all.rows);
    require(records == all.rows && whole.rows == steps.rows && whole.rows <= all.rows);
    for (size_t i = 0; i < whole.rows; i++) {
        require(whole.offsets[i] == steps.offsets[i]);
    }
    columns_clear(&whole);
    columns_clear(&steps);
    columns_clear(&all);
    free(p);
    return 0;
}
