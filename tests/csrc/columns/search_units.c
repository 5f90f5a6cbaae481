/* JSON paths, comparisons and searches at their limits. Every document has its own allocation, so
 * that the sanitizer finds each read outside it. Usage: search_units SCENE. */
#include "columns/search.h"
#include "format/bytes.h"
#include "format/crc32c.h"
#include "scene_names.h"

static struct json_step name(const char *text) {
    return (struct json_step){.name = (const uint8_t *)text, .name_len = strlen(text), .index = 0};
}

static struct json_step at(int64_t index) {
    return (struct json_step){.name = NULL, .name_len = 0, .index = index};
}

/* Finds the path in a copy of the document. Returns the value's text, NULL if there is none. */
static const char *find(const char *text, size_t len, const struct json_step *steps, size_t count) {
    static char found[256];
    uint8_t *copy = malloc(len > 0 ? len : 1);
    struct json_value value;
    memcpy(copy, text, len);
    bool present = json_find(copy, len, steps, count, &value);
    if (present) {
        CHECK(value.text >= copy && value.text + value.len <= copy + len);
        size_t n = value.len < sizeof found - 1 ? value.len : sizeof found - 1;
        memcpy(found, value.text, n);
        found[n] = 0;
    }
    free(copy);
    return present ? found : NULL;
}

static bool finds(const char *text, const char *wanted, const struct json_step *steps,
                  size_t count) {
    const char *found = find(text, strlen(text), steps, count);
    return found == NULL || wanted == NULL ? found == wanted : strcmp(found, wanted) == 0;
}

SCENE(path_finds_members_and_elements) {
    const struct json_step id[] = {name("customer"), name("id")};
    CHECK(finds("{\"customer\":{\"id\":7}}", "7", id, 2));
    CHECK(finds(" {\"id\":1, \"x\":[{\"id\":2}], \"customer\" : { \"z\":\"}\", \"id\" : 7 } }", "7",
                id, 2));
    CHECK(finds("{\"c\\u0075stomer\":{\"id\":\"a\\\"b\"}}", "a\\\"b", id, 2));
    CHECK(finds("{\"customer\":[7]}", NULL, id, 2));
    CHECK(finds("{\"customer\":{}}", NULL, id, 2));
    CHECK(finds("{\"customer\":{\"id\":1,\"id\":2}}", "1", id, 2));
    const struct json_step second[] = {name("a"), at(1), at(0)};
    CHECK(finds("{\"a\":[[1],[2,3]]}", "2", second, 3));
    CHECK(finds("{\"a\":[[1],[]]}", NULL, second, 3));
    CHECK(finds("{\"a\":[[1]]}", NULL, second, 3));
    CHECK(finds("{\"a\":[[1],]}", NULL, second, 3));
    CHECK(finds("\"root\"", "root", NULL, 0));
    CHECK(finds("plain text", NULL, NULL, 0));
    CHECK(finds("1x", NULL, NULL, 0));
    const struct json_step b = name("b");
    CHECK(finds("{\"a\": NaN, \"b\": null}", "null", &b, 1));
    CHECK(finds("", NULL, NULL, 0));
    CHECK(finds("   ", NULL, NULL, 0));
}

SCENE(truncated_documents_have_no_such_value) {
    const char *text = "{\"a\\\"b\": [1, {\"x\": \"\\u00e9]}\"}, true], "
                       "\"wanted\": {\"n\": [0, \"end\"]}}";
    const struct json_step steps[] = {name("wanted"), name("n"), at(1)};
    CHECK(finds(text, "end", steps, 3));
    for (size_t len = 0; len < strlen(text) - 3; len++) {
        CHECK(find(text, len, steps, 3) == NULL);
    }
    /* Any byte may be damaged: nothing outside the document is read. */
    for (size_t i = 0; i < strlen(text); i++) {
        for (int byte = 0; byte < 256; byte += 3) {
            char copy[128];
            strcpy(copy, text);
            copy[i] = (char)byte;
            (void)find(copy, strlen(text), steps, 3);
        }
    }
}

SCENE(deep_documents_need_no_stack) {
    enum { DEPTH = 2000000 };
    char *text = malloc(2 * DEPTH + 32);
    memset(text, '[', DEPTH);
    memset(text + DEPTH, ']', DEPTH);
    memcpy(text, "{\"x\":", 5);
    strcpy(text + 2 * DEPTH - 5, ",\"y\":1}");
    const struct json_step y = name("y");
    CHECK(finds(text, "1", &y, 1));
    text[2 * DEPTH - 6] = ' ';
    CHECK(finds(text, NULL, &y, 1));
    free(text);
}

SCENE(numbers_are_compared_exactly) {
    static const struct {
        const char *a, *b;
        int order;
    } rows[] = {{"7", "7", 0},
                {"7.0", "7", 0},
                {"70e-1", "7", 0},
                {"0.007e3", "7", 0},
                {"-7", "7", -1},
                {"9223372036854775807", "9223372036854775806", 1},
                {"18446744073709551615", "18446744073709551616", -1},
                {"9007199254740993", "9007199254740992", 1},
                {"-9007199254740993", "-9007199254740992", -1},
                {"0.1", "0.10000000000000000001", -1},
                {"1e400", "1e399", 1},
                {"-0", "0.000e9", 0},
                {"0", "1e-999999999999999999999", -1},
                {"1e999999999999999999999", "5", 1},
                {"10", "9", 1},
                {"1.5", "1.05", 1},
                {"007", "7", 0}};
    bool valid;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const uint8_t *a = (const uint8_t *)rows[i].a, *b = (const uint8_t *)rows[i].b;
        size_t a_len = strlen(rows[i].a), b_len = strlen(rows[i].b);
        CHECK(json_compare_numbers(a, a_len, b, b_len, &valid) == rows[i].order && valid);
        CHECK(json_compare_numbers(b, b_len, a, a_len, &valid) == -rows[i].order && valid);
    }
    static const char *wrong[] = {"", "-", "1.", ".5", "1e", "1e+", "1x", "--1", "1.2.3", "1e5.0"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        (void)json_compare_numbers((const uint8_t *)wrong[i], strlen(wrong[i]),
                                   (const uint8_t *)"1", 1, &valid);
        CHECK(!valid);
    }
}

SCENE(strings_are_decoded_for_comparison) {
    static const struct {
        const char *raw, *text;
    } rows[] = {{"a\\nb", "a\nb"},
                {"\\\"\\\\\\/\\b\\f\\r\\t", "\"\\/\b\f\r\t"},
                {"\\u00e9\\u20AC", "\xc3\xa9\xe2\x82\xac"},
                {"\\ud83d\\ude00!", "\xf0\x9f\x98\x80!"},
                {"\\ud83dx", "\xed\xa0\xbdx"},
                {"\\ud83d\\u0041", "\xed\xa0\xbd" "A"},
                {"\\u00g0", "\\u00g0"},
                {"\\q", "\\q"},
                {"\\u12", "\\u12"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t len = strlen(rows[i].raw), wanted = strlen(rows[i].text);
        uint8_t *raw = malloc(len), *out = malloc(len);
        memcpy(raw, rows[i].raw, len);
        struct json_value value = {JSON_STRING, true, raw, len};
        CHECK(json_compare_string(&value, (const uint8_t *)rows[i].text, wanted) == 0);
        CHECK(json_compare_string(&value, (const uint8_t *)rows[i].text, wanted - 1) == 1);
        CHECK(json_decode_string(&value, out) == wanted);
        CHECK(memcmp(out, rows[i].text, wanted) == 0);
        free(raw);
        free(out);
    }
}

/* ---- searches */

enum { ROOM = 4096 };

/* Returns the length of a batch of `count` records with these values, from offset `base` on. */
static size_t batch_of(uint8_t *p, int64_t base, const char *const *values, int32_t count) {
    uint8_t *at = p + BATCH_HEADER_BYTES;
    memset(p, 0, BATCH_HEADER_BYTES);
    for (int32_t i = 0; i < count; i++) {
        size_t len = strlen(values[i]);
        CHECK(len < 50);
        const uint8_t head[] = {(uint8_t)(2 * (len + 6)), 0, 0, (uint8_t)(2 * i), 1,
                                (uint8_t)(2 * len)};
        memcpy(at, head, sizeof head);
        memcpy(at + sizeof head, values[i], len);
        at += sizeof head + len;
        *at++ = 0;
    }
    size_t len = (size_t)(at - p);
    put_i64(p, base);
    put_i32(p + BATCH_LENGTH_AT, (int32_t)len - BATCH_LOG_OVERHEAD);
    p[BATCH_MAGIC_AT] = 2;
    put_i32(p + 23, count - 1);
    put_i64(p + 43, 77);
    put_i32(p + 57, count);
    put_u32(p + 17, crc32c_extend(0, p + 21, len - 21));
    return len;
}

static void begin(struct columns_source *s, const uint8_t *p, size_t len) {
    memset(s, 0, sizeof *s);
    s->p = p;
    s->end = p + len;
    s->check_crc = true;
    s->inflated_bytes_max = ROOM;
    CHECK(columns_source_begin(s, NULL, 0) == 0);
}

static struct search_test contains(const char *text) {
    return (struct search_test){.field = SEARCH_RECORD_VALUE, .op = SEARCH_CONTAINS,
                                .text = (const uint8_t *)text, .text_len = strlen(text)};
}

SCENE(search_stops_at_its_limits_and_continues_there) {
    const char *values[] = {"ax", "b", "cx", "dx", "ex"};
    uint8_t data[ROOM];
    size_t len = batch_of(data, 10, values, 5);
    len += batch_of(data + len, 20, values, 5);
    struct search_test test = contains("x");
    struct search search = {.tests = &test, .test_count = 1, .end_offset = 23};
    struct columns columns = {.bytes_max = ROOM, .with_headers = true};
    struct columns_source source;
    begin(&source, data, len);
    CHECK(search_append(&search, &source, &columns, 0, 2, ROOM) == 2);
    CHECK(source.next_offset == 13 && search.records == 3);
    CHECK(search_append(&search, &source, &columns, 0, 9, 1) == 2); /* the rest of the views */
    CHECK(source.next_offset == 15);
    CHECK(search_append(&search, &source, &columns, 0, 9, ROOM) == 2);
    CHECK(source.next_offset == 23 && search.records == 8 && columns.rows == 6);
    CHECK(search_append(&search, &source, &columns, 0, 9, ROOM) == 0);
    CHECK(columns.offsets[5] == 22 && columns.run_count == 1 && columns.runs[0].count == 6);
    columns_source_end(&source);
    columns_clear(&columns);
}

SCENE(full_columns_keep_the_position_before_the_record) {
    const char *values[] = {"12345", "12345", "12345"};
    uint8_t data[ROOM];
    size_t len = batch_of(data, 0, values, 3);
    struct search search = {.end_offset = INT64_MAX};
    struct columns columns = {.bytes_max = 12};
    struct columns_source source;
    begin(&source, data, len);
    CHECK(search_append(&search, &source, &columns, 3, 9, ROOM) == 2);
    CHECK(search_append(&search, &source, &columns, 3, 9, ROOM) == COLUMNS_FULL);
    CHECK(source.next_offset == 2 && search.records == 2);
    columns_clear(&columns);
    CHECK(search_append(&search, &source, &columns, 3, 9, ROOM) == 1 && search.records == 3);
    columns_source_end(&source);
    columns_clear(&columns);
}

SCENE(groups_are_joined_by_and_with_alternatives_inside) {
    const char *values[] = {"ab", "bc", "ca", "b"};
    uint8_t data[ROOM];
    size_t len = batch_of(data, 0, values, 4);
    struct search_test tests[] = {contains("a"), contains("c"), contains("b"), contains("")};
    tests[2].group = 1;
    tests[3] = (struct search_test){.group = 2, .field = SEARCH_PRODUCER_ID, .op = SEARCH_BETWEEN,
                                    .low = 77, .high = 77};
    struct search search = {.tests = tests, .test_count = 4, .end_offset = INT64_MAX};
    struct columns columns = {.bytes_max = ROOM};
    struct columns_source source;
    begin(&source, data, len);
    CHECK(search_append(&search, &source, &columns, 0, 9, ROOM) == 2);
    CHECK(columns.offsets[0] == 0 && columns.offsets[1] == 1 && search.records == 4);
    columns_source_end(&source);
    columns_clear(&columns);
}

SCENE(damaged_batches_are_errors_after_the_records_before_them) {
    const char *values[] = {"x1", "x2", "x3"};
    uint8_t data[ROOM];
    size_t first = batch_of(data, 0, values, 3), len = first + batch_of(data + first, 3, values, 3);
    struct search_test test = contains("x");
    for (size_t i = first; i < len; i++) {
        for (int bit = 0; bit < 8; bit++) {
            uint8_t *copy = malloc(len);
            memcpy(copy, data, len);
            copy[i] ^= (uint8_t)(1 << bit);
            struct search search = {.tests = &test, .test_count = 1, .end_offset = INT64_MAX};
            struct columns columns = {.bytes_max = ROOM, .with_headers = true};
            struct columns_source source;
            begin(&source, copy, len);
            source.check_crc = (bit & 1) == 0;
            int64_t found = search_append(&search, &source, &columns, 0, 100, ROOM);
            CHECK(found >= 3 && found <= 6);
            found = search_append(&search, &source, &columns, 0, 100, ROOM);
            CHECK(found <= 0 && search.records <= 6);
            columns_source_end(&source);
            columns_clear(&columns);
            free(copy);
        }
    }
}

SCENE(impossible_comparisons_are_rejected) {
    struct search_test test = contains("x");
    CHECK(search_test_is_valid(&test));
    test.op = SEARCH_LESS;
    CHECK(!search_test_is_valid(&test));
    test.field = SEARCH_VALUE_JSON;
    CHECK(search_test_is_valid(&test));
    test.op = SEARCH_IS_NULL;
    CHECK(!search_test_is_valid(&test));
    test.field = SEARCH_TIMESTAMP;
    CHECK(!search_test_is_valid(&test));
    test.field = SEARCH_FIELD_COUNT;
    test.op = SEARCH_BETWEEN;
    CHECK(!search_test_is_valid(&test));
}
