/* Records that compaction retains in one batch, and the transactions that it treats as aborted.
 * Usage: compaction_batches DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "compaction/batch_filter.h"
#include "log/log_simulation.h"

enum { TIME = 1000, RETENTION = 500, BASE = 50 };

static uint8_t bytes[4096], records[2048];
static size_t records_len, bytes_len;
static int32_t record_count;
static struct batch_header h;
static struct offset_map map;
static struct clean_batch_rules rules;
static struct clean_batch_facts facts;
static struct clean_work work;
static struct clean_result kept;

/* Add a record. `value` NULL: a tombstone; `key` NULL: no key. */
static void add(const char *key, const char *value, int64_t time_delta) {
    uint8_t body[512];
    size_t n = 0, key_len = key == NULL ? 0 : strlen(key),
           value_len = value == NULL ? 0 : strlen(value);
    body[n++] = 0;
    n += put_uvarint(body + n, zigzag_encode(time_delta));
    n += put_uvarint(body + n, zigzag_encode(record_count));
    n += put_uvarint(body + n, zigzag_encode(key == NULL ? -1 : (int64_t)key_len));
    memcpy(body + n, key == NULL ? "" : key, key_len);
    n += key_len;
    n += put_uvarint(body + n, zigzag_encode(value == NULL ? -1 : (int64_t)value_len));
    memcpy(body + n, value == NULL ? "" : value, value_len);
    n += value_len;
    body[n++] = 0;
    records_len += put_uvarint(records + records_len, zigzag_encode((int64_t)n));
    memcpy(records + records_len, body, n);
    records_len += n;
    record_count++;
}

static void seal(int16_t attributes, int64_t base_time) {
    bytes_len = scene_batch(bytes, records, records_len, base_time, 7, 3);
    put_i64(bytes, BASE);
    put_i16(bytes + BATCH_ATTRIBUTES_AT, attributes);
    put_i32(bytes + BATCH_LAST_OFFSET_DELTA_AT, record_count > 0 ? record_count - 1 : 4);
    put_i64(bytes + BATCH_MAX_TIMESTAMP_AT, TIME + 90);
    put_i32(bytes + BATCH_RECORD_COUNT_AT, record_count);
    scene_seal(bytes, bytes_len);
    CHECK(batch_parse(bytes, bytes_len, &h) == 0);
    records_len = 0;
    record_count = 0;
}

static void newest(const char *key, int64_t offset) {
    CHECK(offset_map_put(&map, (const uint8_t *)key, strlen(key), offset));
}

static int clean(void) {
    rules.map = &map;
    int result = clean_batch(&rules, bytes, &h, &facts, &work, &kept);
    if (result == 0 && kept.bytes != NULL) {
        struct batch_header of;
        CHECK(batch_parse(kept.bytes, kept.len, &of) == 0 && batch_bytes(&of) == kept.len);
        CHECK(batch_check_crc(kept.bytes, &of) == 0);
        CHECK(of.base_offset == BASE && batch_last_offset(&of) == batch_last_offset(&h));
        CHECK(of.producer_id == 7 && of.base_sequence == 3);
    }
    return result;
}

static struct batch_header made(void) {
    struct batch_header of;
    CHECK(kept.bytes == work.made && batch_parse(kept.bytes, kept.len, &of) == 0);
    return of;
}

static void keep_the_newest(void) {
    add("a", "1", 0);
    add("b", "2", 30);
    add("c", "3", 10);
    seal(0, TIME);
    CHECK(clean() == 0 && kept.bytes == bytes && kept.len == bytes_len);
    CHECK(kept.read == 3 && kept.kept == 3);
    newest("a", BASE);
    newest("b", BASE + 1);
    newest("c", BASE - 1);
    CHECK(clean() == 0 && kept.bytes == bytes && kept.kept == 3);
    newest("b", BASE + 2);
    CHECK(clean() == 0 && kept.read == 3 && kept.kept == 2);
    CHECK(made().record_count == 2 && made().max_timestamp == TIME + 10);
    CHECK(made().base_timestamp == TIME && made().attributes == 0);
    /* Each record is unchanged and follows its predecessor. */
    CHECK(memcmp(kept.bytes + 61, bytes + 61, 9) == 0);
    CHECK(kept.len == bytes_len - 9 && memcmp(kept.bytes + 70, bytes + 79, 9) == 0);
    newest("a", BASE + 100);
    newest("c", BASE + 100);
    CHECK(clean() == 0 && kept.bytes == NULL && kept.read == 3 && kept.kept == 0);
    facts.stays = true;
    CHECK(clean() == 0 && kept.len == 61 && made().record_count == 0 && kept.kept == 0);
    CHECK(made().base_timestamp == TIME + 90 && made().max_timestamp == TIME + 90);
}

static void keep_times_of_the_append(void) {
    add("a", "1", 0);
    add("b", "2", 0);
    seal(BATCH_LOG_APPEND_TIME, TIME);
    newest("a", BASE + 9);
    CHECK(clean() == 0 && made().record_count == 1 && made().max_timestamp == TIME + 90);
    CHECK(made().attributes == BATCH_LOG_APPEND_TIME);
}

static void keep_no_record_without_a_key(void) {
    add(NULL, "1", 0);
    add("", "2", 0);
    seal(0, TIME);
    CHECK(clean() == 0 && kept.kept == 1 && kept.read == 2 && made().record_count == 1);
}

static void keep_what_is_empty(void) {
    seal(0, TIME);
    CHECK(clean() == 0 && kept.bytes == NULL && kept.read == 0);
    facts.stays = true;
    CHECK(clean() == 0 && kept.bytes == bytes && kept.len == 61);
    facts.aborted = true;
    CHECK(clean() == 0 && kept.bytes == bytes && kept.len == 61);
    facts.stays = false;
    CHECK(clean() == 0 && kept.bytes == NULL);
}

static void let_tombstones_age(void) {
    add("a", NULL, 5);
    add("b", "2", 7);
    seal(0, TIME);
    rules.now_ms = 5000;
    CHECK(clean() == 0 && kept.kept == 2 && made().attributes == BATCH_DELETE_HORIZON);
    CHECK(made().base_timestamp == 5000 + RETENTION && made().max_timestamp == TIME + 7);
    CHECK(made().record_count == 2);
    /* The records' times are unchanged. */
    int64_t offset, time;
    struct batch_header of = made();
    CHECK(batch_find_timestamp(kept.bytes, kept.len, TIME + 6, 0, work.inflater, &offset, &time) ==
          1);
    CHECK(offset == BASE + 1 && time == TIME + 7 && of.record_count == 2);
    memcpy(bytes, kept.bytes, kept.len);
    bytes_len = kept.len;
    h = of;
    rules.now_ms = 5000 + RETENTION - 1;
    CHECK(clean() == 0 && kept.bytes == bytes && kept.kept == 2);
    rules.now_ms = 5000 + RETENTION;
    CHECK(clean() == 0 && kept.kept == 1 && made().record_count == 1);
    CHECK(made().attributes == BATCH_DELETE_HORIZON);
    newest("b", BASE + 20);
    CHECK(clean() == 0 && kept.bytes == NULL && kept.kept == 0);
}

static void drop_what_was_aborted(void) {
    add("a", "1", 0);
    seal(BATCH_TRANSACTIONAL, TIME);
    facts.aborted = true;
    CHECK(clean() == 0 && kept.bytes == NULL && kept.read == 1 && kept.kept == 0);
    facts.stays = true;
    CHECK(clean() == 0 && kept.len == 61 && made().record_count == 0);
    CHECK(made().attributes == BATCH_TRANSACTIONAL);
}

static void let_markers_age(void) {
    add("mark", "1", 0);
    seal(BATCH_TRANSACTIONAL | BATCH_CONTROL, TIME);
    newest("mark", 1000); /* not a key of the log */
    rules.now_ms = 5000;
    CHECK(clean() == 0 && kept.bytes == bytes && kept.kept == 1);
    facts.empty_marker = true;
    CHECK(clean() == 0 && made().base_timestamp == 5000 + RETENTION);
    CHECK(made().attributes == (BATCH_TRANSACTIONAL | BATCH_CONTROL | BATCH_DELETE_HORIZON));
    memcpy(bytes, kept.bytes, kept.len);
    h = made();
    rules.now_ms = 5000 + RETENTION - 1;
    CHECK(clean() == 0 && kept.bytes == bytes);
    rules.now_ms++;
    facts.empty_marker = false;
    CHECK(clean() == 0 && kept.bytes == bytes);
    facts.empty_marker = true;
    CHECK(clean() == 0 && kept.bytes == NULL);
    facts.stays = true;
    CHECK(clean() == 0 && made().record_count == 0 && kept.len == 61);
    CHECK(made().attributes == (BATCH_TRANSACTIONAL | BATCH_CONTROL));
}

/* Invalid records: length, times, offsets, key and value. */
static void refuse_records(void) {
    static const struct {
        uint8_t bytes[8];
        uint8_t len;
        int result;
    } cases[] = {{{12, 0, 0, 0, 1, 1, 0}, 7, 0},          {{0}, 1, BATCH_E_RECORD},
                 {{14, 0, 0, 0, 1, 1, 0}, 7, BATCH_E_RECORD}, {{1}, 1, BATCH_E_RECORD},
                 {{2, 0}, 2, BATCH_E_RECORD},             {{4, 0, 0}, 3, BATCH_E_RECORD},
                 {{6, 0, 0, 1}, 4, BATCH_E_RECORD},       {{8, 0, 0, 0, 3}, 5, BATCH_E_RECORD},
                 {{8, 0, 0, 0, 2}, 5, BATCH_E_RECORD},    {{10, 0, 0, 0, 2, 65}, 6, BATCH_E_RECORD},
                 {{10, 0, 0, 0, 1, 1}, 6, 0},             {{10, 0, 0, 0, 1, 3}, 6, BATCH_E_RECORD},
                 {{10, 0, 0, 0, 1, 2}, 6, BATCH_E_RECORD}, {{12, 0, 0, 0, 1, 2, 65}, 7, 0},
                 {{12, 0, 0, 0, 2, 65, 0}, 7, 0},         {{0x80}, 1, BATCH_E_RECORD},
                 {{4, 0, 0x80}, 3, BATCH_E_RECORD}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(records, cases[i].bytes, cases[i].len);
        records_len = cases[i].len;
        record_count = 1;
        seal(0, TIME);
        CHECK(clean() == cases[i].result);
        int mapped = clean_map(&map, bytes, &h, 0, 1 << 20, &work);
        CHECK(mapped == (cases[i].result == 0 ? 1 : BATCH_E_RECORD));
    }
    /* The largest offset delta of a batch. */
    static const struct {
        uint8_t delta[5];
        bool holds;
    } deltas[] = {{{0xfe, 0xff, 0xff, 0xff, 0x0f}, true}, {{0x80, 0x80, 0x80, 0x80, 0x10}, false}};
    for (int i = 0; i < 2; i++) {
        const uint8_t one[] = {20, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0};
        memcpy(records, one, sizeof one);
        memcpy(records + 3, deltas[i].delta, 5);
        records_len = sizeof one;
        record_count = 1;
        seal(0, TIME);
        CHECK(clean() == (deltas[i].holds ? 0 : BATCH_E_RECORD));
    }
}

static void clean_compressed(void) {
    char value[200];
    memset(value, 'v', sizeof value);
    value[199] = 0;
    for (int i = 0; i < 5; i++) add(i % 2 == 0 ? "even" : "odd", value, i);
    size_t plain_len = records_len;
    seal(0, TIME);
    uint8_t head[61], *packed = NULL, plain[2048];
    size_t packed_len;
    memcpy(head, bytes, 61);
    memcpy(plain, bytes + 61, plain_len);
    put_i16(head + BATCH_ATTRIBUTES_AT, CODEC_LZ4);
    CHECK(batch_assemble(head, CODEC_LZ4, INT32_MIN, plain, plain_len, &packed, &packed_len) == 0);
    memcpy(bytes, packed, packed_len);
    bytes_len = packed_len;
    CHECK(batch_parse(bytes, bytes_len, &h) == 0);
    CHECK(clean_map(&map, bytes, &h, BASE, 1 << 20, &work) == 1 && map.count == 2);
    CHECK(offset_map_get(&map, (const uint8_t *)"even", 4) == BASE + 4);
    CHECK(offset_map_get(&map, (const uint8_t *)"odd", 3) == BASE + 3);
    CHECK(clean() == 0 && kept.read == 5 && kept.kept == 2);
    CHECK(made().attributes == CODEC_LZ4 && made().record_count == 2);
    rules.inflated_bytes_max = plain_len - 1;
    CHECK(clean() == BATCH_E_INFLATE_MAX);
    CHECK(clean_map(&map, bytes, &h, BASE, plain_len - 1, &work) == BATCH_E_INFLATE_MAX);
    rules.inflated_bytes_max = plain_len;
    CHECK(clean() == 0);
    newest("even", BASE + 9);
    newest("odd", BASE + 9);
    facts.stays = true;
    CHECK(clean() == 0 && made().record_count == 0 && made().attributes == 0);
    memset(bytes + 61, 0xff, 10);
    CHECK(clean() == BATCH_E_INFLATE);
    free(packed);
}

static void map_some(void) {
    add("a", "1", 0);
    add(NULL, "2", 0);
    add("b", NULL, 0);
    add("a", "3", 0);
    seal(0, TIME);
    CHECK(clean_map(&map, bytes, &h, BASE + 2, 1 << 20, &work) == 1 && map.count == 2);
    CHECK(offset_map_get(&map, (const uint8_t *)"a", 1) == BASE + 3);
    CHECK(offset_map_get(&map, (const uint8_t *)"b", 1) == BASE + 2);
    offset_map_clear(&map);
    CHECK(clean_map(&map, bytes, &h, BASE + 3, 1 << 20, &work) == 1 && map.count == 1);
    for (char c = 'c'; map.count < map.count_max; c++) newest((char[]){c, 0}, 1);
    CHECK(clean_map(&map, bytes, &h, BASE, 1 << 20, &work) == 0);
}

static void starve(void) {
    int failed = 0;
    for (int after = 0;; after++) {
        add("a", NULL, 0);
        add("b", "2", 0);
        seal(0, TIME);
        newest("b", BASE + 5);
        clean_work_free(&(struct clean_work){.kept = work.kept, .plain = work.plain,
                                             .made = work.made});
        work = (struct clean_work){.inflater = work.inflater};
        short_of.starved_after = after;
        short_of.starved = 1;
        int result = clean();
        bool met = short_of.starved == 0;
        short_of.starved = 0;
        CHECK(result == (met ? BATCH_E_MEMORY : 0));
        failed += met;
        if (!met) break;
    }
    CHECK(failed >= 2);
    facts.aborted = facts.stays = true;
    short_of.starved = 1;
    CHECK(clean() == BATCH_E_MEMORY && clean() == 0);
}

/* ---- transactions ---- */

static int follow(struct clean_transactions *open, struct clean_transactions *aborted, int64_t id,
                  int64_t offset, int marker) {
    const uint8_t record[] = {32, 0, 0, 0, 8, 0, 0, 0, (uint8_t)marker, 12, 0, 0, 0, 0, 0, 0, 0};
    size_t len = scene_batch(bytes, record, sizeof record, TIME, id, -1);
    put_i64(bytes, offset);
    put_i16(bytes + BATCH_ATTRIBUTES_AT,
            marker < 0 ? BATCH_TRANSACTIONAL : BATCH_TRANSACTIONAL | BATCH_CONTROL);
    scene_seal(bytes, len);
    CHECK(batch_parse(bytes, len, &h) == 0);
    return clean_follow(open, aborted, &h, bytes);
}

static bool aborts(struct clean_transactions *aborted, int64_t id, int64_t offset) {
    h = (struct batch_header){.producer_id = id, .base_offset = offset,
                              .attributes = BATCH_TRANSACTIONAL};
    bool data = clean_is_aborted(aborted, &h);
    h.attributes = BATCH_TRANSACTIONAL | BATCH_CONTROL;
    CHECK(!clean_is_aborted(aborted, &h));
    h.attributes = 0;
    CHECK(!clean_is_aborted(aborted, &h));
    return data;
}

static void follow_transactions(void) {
    struct clean_transactions open = {NULL, 0, 0}, aborted = {NULL, 0, 0};
    CHECK(follow(&open, &aborted, 2, 10, -1) == 0 && open.count == 1);
    CHECK(follow(&open, &aborted, 2, 11, -1) == 0 && open.count == 1);
    CHECK(follow(&open, &aborted, 1, 12, -1) == 0 && open.count == 2);
    CHECK(follow(&open, &aborted, 3, 13, 0) == 0 && open.count == 2);
    CHECK(follow(&open, &aborted, 2, 15, 0) == 1 && open.count == 1 && aborted.count == 1);
    CHECK(follow(&open, &aborted, 2, 16, -1) == 0 && follow(&open, &aborted, 2, 18, 1) == 1);
    CHECK(follow(&open, &aborted, 2, 20, -1) == 0 && follow(&open, &aborted, 2, 22, 0) == 1);
    CHECK(follow(&open, &aborted, 1, 30, 0) == 1 && open.count == 0 && aborted.count == 3);
    CHECK(follow(&open, NULL, 5, 31, -1) == 0 && follow(&open, NULL, 5, 32, 0) == 1);
    clean_sort(&aborted);
    for (int64_t at = 5; at < 40; at++) {
        CHECK(aborts(&aborted, 2, at) == ((at >= 10 && at <= 15) || (at >= 20 && at <= 22)));
        CHECK(aborts(&aborted, 1, at) == (at >= 12 && at <= 30));
        CHECK(!aborts(&aborted, 3, at) && !aborts(&aborted, 0, at));
    }
    h.attributes = 0;
    CHECK(clean_follow(&open, &aborted, &h, bytes) == 0 && open.count == 0);
    for (int i = 0; i < 40; i++) CHECK(follow(&open, NULL, i, i, -1) == 0);
    CHECK(open.count == 40);
    clean_transactions_free(&open);
    CHECK(open.count == 0 && open.list == NULL);
    short_of.starved = 1;
    CHECK(follow(&open, &aborted, 9, 50, -1) == BATCH_E_MEMORY && open.count == 0);
    clean_transactions_free(&aborted);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } scenes[] = {{"newest", keep_the_newest},  {"times", keep_times_of_the_append},
                  {"keys", keep_no_record_without_a_key}, {"empty", keep_what_is_empty},
                  {"bury", let_tombstones_age}, {"aborted", drop_what_was_aborted},
                  {"markers", let_markers_age}, {"refuse", refuse_records},
                  {"packed", clean_compressed}, {"map", map_some},
                  {"starve", starve},           {"follow", follow_transactions}};
    CHECK(argc == 3);
    played.by = pthread_self();
    rules = (struct clean_batch_rules){&map, TIME, RETENTION, 1 << 20};
    CHECK((work.inflater = inflater_new()) != NULL);
    CHECK(offset_map_init(&map, 20 * KEYMAP_SLOT_BYTES, 0.5));
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(argv[2], scenes[i].name) == 0) scenes[i].run();
    inflater_free(work.inflater);
    clean_work_free(&work);
    offset_map_free(&map);
    puts("ok");
    return 0;
}
