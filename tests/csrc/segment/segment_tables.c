/* Tables that need no log: leader epochs, producers, keys, names and error codes. Usage:
 * segment_tables DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "segment/index_search.h"
#include "compaction/offset_map.h"
#include "log/log_simulation.h"

/* ---- leader epochs ---- */

static void check_epochs(const struct epochs *e, const char *expected) {
    size_t len;
    char *text = epochs_encode(e, &len);
    CHECK(text != NULL && len == strlen(expected) && memcmp(text, expected, len) == 0);
    free(text);
}

static void assign_epochs(void) {
    struct epochs e = {0};
    CHECK(epochs_last(&e) == -1 && epochs_at(&e, 5) == -1);
    CHECK(!epochs_truncate_end(&e, 0) && !epochs_truncate_start(&e, 5));
    check_epochs(&e, "0\n0\n");
    CHECK(epochs_assign(&e, 2, 10) == 1 && epochs_assign(&e, 2, 15) == 0);
    CHECK(epochs_assign(&e, 4, 20) == 1 && epochs_assign(&e, 7, 30) == 1);
    check_epochs(&e, "0\n3\n2 10\n4 20\n7 30\n");
    CHECK(epochs_at(&e, 9) == -1 && epochs_at(&e, 10) == 2 && epochs_at(&e, 19) == 2);
    CHECK(epochs_at(&e, 20) == 4 && epochs_at(&e, 1000) == 7 && epochs_last(&e) == 7);
    static const struct {
        int32_t asked, found;
        int64_t end;
    } ends[] = {{-1, -1, -1}, {0, 0, 10}, {1, 1, 10}, {2, 2, 20}, {3, 2, 20},
                {4, 4, 30},   {6, 4, 30}, {7, 7, 99}, {8, -1, -1}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        int32_t found;
        int64_t end;
        epochs_end_of(&e, ends[i].asked, 99, &found, &end);
        CHECK(found == ends[i].found && end == ends[i].end);
    }
    /* A new entry removes those that begin at the same offset or later, and those with newer
     * epochs. */
    CHECK(epochs_assign(&e, 8, 20) == 1);
    check_epochs(&e, "0\n2\n2 10\n8 20\n");
    CHECK(epochs_assign(&e, 3, 40) == 1);
    check_epochs(&e, "0\n2\n2 10\n3 40\n");
    CHECK(epochs_assign(&e, 2, 50) == 1);
    check_epochs(&e, "0\n1\n2 10\n");
    for (int i = 3; i <= 5; i++) CHECK(epochs_assign(&e, i, 8 + i) == 1);
    short_of.starved = 1;
    CHECK(epochs_assign(&e, 6, 14) == -1);
    check_epochs(&e, "0\n4\n2 10\n3 11\n4 12\n5 13\n");
    epochs_free(&e);
    CHECK(e.count == 0 && e.entries == NULL);
}

static void cut_epochs(void) {
    struct epochs e = {0};
    for (int i = 1; i <= 5; i++) CHECK(epochs_assign(&e, i, i * 10) == 1);
    CHECK(!epochs_truncate_end(&e, 51));
    CHECK(epochs_truncate_end(&e, 50) && epochs_last(&e) == 4);
    CHECK(epochs_truncate_end(&e, 31) && epochs_last(&e) == 3);
    CHECK(!epochs_truncate_start(&e, 10) && !epochs_truncate_start(&e, 3));
    CHECK(epochs_truncate_start(&e, 11));
    check_epochs(&e, "0\n3\n1 11\n2 20\n3 30\n");
    CHECK(!epochs_truncate_start(&e, 20) && epochs_truncate_start(&e, 21));
    check_epochs(&e, "0\n2\n2 21\n3 30\n");
    CHECK(epochs_truncate_start(&e, 99));
    check_epochs(&e, "0\n1\n3 99\n");
    CHECK(epochs_truncate_end(&e, 0) && e.count == 0);
    epochs_free(&e);
}

static void read_epochs(void) {
    static const char *const good[] = {"0\n0\n",         "0\n0",
                                       "0\n1\n0 0\n",    "0\n1\n2147483647 9223372036854775807\n",
                                       "0\n2\n1 5\n2 5\n", "0\n2\n1 5\n9 6"};
    static const char *const bad[] = {
        "",          "0",           "1\n0\n",          "0\n",      "0\n1\n",
        "0\n2\n1 5\n", "0\n0\n1 5\n", "0\n1\n1 5 \n",    "0\n1\n1\n", "0\n1\n1 \n",
        "0\n1\n-1 5\n", "0\n1\n1 5x\n", "0\n2\n2 5\n2 6\n", "0\n2\n3 5\n2 6\n",
        "0\n2\n1 6\n2 5\n", "0\n1\n2147483648 5\n", "0\n1\n1 9223372036854775808\n",
        "0\n1\n1 99999999999999999990\n", "x\n0\n", "0\nx\n", "0 0\n", "0\n1\n1\n5\n",
        "0\n1\n1 5", "\n0\n"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct epochs e = {0};
        CHECK(epochs_decode(&e, good[i], strlen(good[i])) == 0);
        CHECK((int)e.count == good[i][2] - '0');
        epochs_free(&e);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct epochs e = {0};
        int expected = i == 22 ? 0 : -EINVAL; /* the last newline may be missing */
        CHECK(epochs_decode(&e, bad[i], strlen(bad[i])) == expected);
        CHECK(e.count == (i == 22));
        epochs_free(&e);
    }
}

/* ---- producers ---- */

static int check(const struct producers *p, int64_t id, int16_t epoch, int32_t sequence,
                 int32_t records, int16_t attributes, struct producers_batch *seen) {
    struct batch_header h = {.producer_id = id, .producer_epoch = epoch, .attributes = attributes,
                             .base_sequence = sequence, .last_offset_delta = records - 1};
    return producers_check(p, &h, seen);
}

static void update(struct producers *p, int64_t id, int16_t epoch, int32_t sequence,
                   int32_t records, int64_t offset, int16_t attributes) {
    struct batch_header h = {.producer_id = id, .producer_epoch = epoch, .attributes = attributes,
                             .base_sequence = sequence, .last_offset_delta = records - 1,
                             .base_offset = offset, .max_timestamp = 500 + offset};
    CHECK(producers_update(p, &h, 1000) == 0);
}

static void follow_sequences(void) {
    struct producers p = {0};
    struct producers_batch seen;
    CHECK(check(&p, 1, 0, 77, 1, 0, &seen) == 0); /* unknown producer */
    for (int i = 0; i < 7; i++) update(&p, 1, 3, i * 2, 2, 10 + i * 2, 0);
    CHECK(check(&p, 1, 3, 14, 2, 0, &seen) == 0);
    CHECK(check(&p, 1, 3, 15, 2, 0, &seen) == LOG_E_SEQUENCE);
    CHECK(check(&p, 1, 3, 13, 2, 0, &seen) == LOG_E_SEQUENCE);
    /* The last five batches are remembered completely. */
    for (int i = 2; i < 7; i++) {
        CHECK(check(&p, 1, 3, i * 2, 2, 0, &seen) == 1);
        CHECK(seen.last_offset == 11 + i * 2 && seen.offset_delta == 1);
        CHECK(seen.last_sequence == i * 2 + 1 && seen.timestamp_ms == 510 + i * 2);
        CHECK(check(&p, 1, 3, i * 2, 1, 0, &seen) == LOG_E_SEQUENCE);
        CHECK(check(&p, 1, 3, i * 2 + 1, 1, 0, &seen) == LOG_E_SEQUENCE);
    }
    CHECK(check(&p, 1, 3, 2, 2, 0, &seen) == LOG_E_SEQUENCE);
    /* Epochs: an older one is fenced, a newer one starts at sequence 0. */
    CHECK(check(&p, 1, 2, 14, 2, 0, &seen) == LOG_E_EPOCH);
    CHECK(check(&p, 1, 2, 0, 1, BATCH_CONTROL, &seen) == LOG_E_EPOCH);
    CHECK(check(&p, 1, 4, 0, 2, 0, &seen) == 0);
    CHECK(check(&p, 1, 4, 14, 2, 0, &seen) == LOG_E_SEQUENCE);
    CHECK(check(&p, 1, 3, 99, 1, BATCH_CONTROL, &seen) == 0);
    CHECK(check(&p, 1, 3, -1, 1, 0, &seen) == 0);
    /* Sequences wrap. */
    update(&p, 2, 0, INT32_MAX - 1, 3, 50, 0);
    CHECK(check(&p, 2, 0, INT32_MAX - 1, 3, 0, &seen) == 1 && seen.last_offset == 52);
    CHECK(check(&p, 2, 0, 1, 1, 0, &seen) == 0 && check(&p, 2, 0, 0, 1, 0, &seen) < 0);
    update(&p, 4, 0, INT32_MAX, 1, 60, 0);
    CHECK(check(&p, 4, 0, 0, 1, 0, &seen) == 0);
    /* During its transaction the producer can send only transactional batches. */
    update(&p, 3, 0, 0, 1, 70, BATCH_TRANSACTIONAL);
    CHECK(check(&p, 3, 0, 1, 1, BATCH_TRANSACTIONAL, &seen) == 0);
    CHECK(check(&p, 3, 0, 1, 1, 0, &seen) == LOG_E_TXN_STATE);
    CHECK(check(&p, 3, 1, 0, 1, 0, &seen) == LOG_E_TXN_STATE);
    CHECK(producers_first_open(&p) == 70 && p.count == 4);
    producers_free(&p);
    CHECK(producers_first_open(&p) == -1 && producers_find(&p, 3) == NULL);
}

static bool goes_on(const struct producers *p, struct batch_header before, struct batch_header h) {
    before.producer_id = h.producer_id = 1;
    return producers_continues(p, &before, &h);
}

static void go_on(void) {
    struct producers p = {0};
    const struct batch_header before = {.producer_epoch = 3, .base_sequence = 4,
                                        .last_offset_delta = 1};
    struct batch_header h = {.producer_epoch = 3, .base_sequence = 6, .last_offset_delta = 2};
    CHECK(goes_on(&p, before, h)); /* also for an unknown producer */
    update(&p, 1, 3, 2, 2, 10, 0);
    CHECK(goes_on(&p, before, h));
    h.producer_epoch = 4;
    CHECK(!goes_on(&p, before, h));
    h = (struct batch_header){.producer_epoch = 3, .base_sequence = 7};
    CHECK(!goes_on(&p, before, h));
    h.base_sequence = 5;
    CHECK(!goes_on(&p, before, h));
    h = (struct batch_header){.producer_epoch = 3, .base_sequence = 6,
                              .attributes = BATCH_TRANSACTIONAL};
    CHECK(!goes_on(&p, before, h));
    /* Without sequences, and where they wrap, it needs a full check. */
    h = (struct batch_header){.producer_epoch = 3, .base_sequence = 0};
    struct batch_header last = before;
    last.base_sequence = -1;
    last.last_offset_delta = 0;
    CHECK(!goes_on(&p, last, h));
    last.base_sequence = INT32_MAX;
    CHECK(!goes_on(&p, last, h));
    /* A leader may send anything. */
    h = (struct batch_header){.producer_epoch = 3, .base_sequence = 6, .last_offset_delta = 2};
    update(&p, 1, 3, 6, 3, 12, 0);
    CHECK(!goes_on(&p, before, h));
    producers_free(&p);
}

static void end_transactions(void) {
    struct producers p = {0};
    struct producers_batch seen;
    update(&p, 1, 0, 0, 1, 40, BATCH_TRANSACTIONAL);
    update(&p, 1, 0, 1, 1, 41, BATCH_TRANSACTIONAL);
    update(&p, 2, 0, 0, 1, 30, BATCH_TRANSACTIONAL);
    update(&p, 3, 0, 0, 1, 0, BATCH_TRANSACTIONAL);
    CHECK(producers_first_open(&p) == 0 && producers_find(&p, 1)->transaction_first_offset == 40);
    struct batch_header marker = {.producer_id = 3, .base_offset = 50, .max_timestamp = 2000,
                                  .attributes = BATCH_TRANSACTIONAL | BATCH_CONTROL};
    CHECK(producers_end_transaction(&p, &marker, 6, 1000) == 0);
    const struct producers_entry *e = producers_find(&p, 3);
    CHECK(e->transaction_first_offset == -1 && e->last_marker == 50 && e->coordinator_epoch == 6);
    CHECK(e->seen_ms == 2000 && e->batch_count == 1 && producers_first_open(&p) == 30);
    marker.producer_epoch = 1;
    marker.base_offset = 51;
    CHECK(producers_end_transaction(&p, &marker, -1, 3000) == 0);
    CHECK(e->seen_ms == 3000 && e->epoch == 1 && e->batch_count == 0 && e->last_marker == 51);
    CHECK(e->coordinator_epoch == 6 && check(&p, 3, 1, 5, 1, 0, &seen) == LOG_E_SEQUENCE);
    CHECK(check(&p, 3, 1, 0, 1, 0, &seen) == 0);
    /* For an unknown producer the marker stores epoch -1, and any sequence may follow. */
    marker.producer_id = 9;
    marker.producer_epoch = -1;
    CHECK(producers_end_transaction(&p, &marker, 2, 0) == 0);
    CHECK(check(&p, 9, 4, 33, 1, 0, &seen) == 0 && check(&p, 9, -1, 33, 1, 0, &seen) == 0);
    /* Transactions completely below the log start are over. */
    producers_end_before(&p, 41);
    CHECK(producers_find(&p, 1)->transaction_first_offset == 40);
    CHECK(producers_find(&p, 2)->transaction_first_offset == -1);
    producers_end_before(&p, 42);
    CHECK(producers_first_open(&p) == -1);
    short_of.starved = 1;
    marker.producer_id = 100;
    CHECK(producers_end_transaction(&p, &marker, 0, 0) == LOG_E_MEMORY || p.count == 5);
    short_of.starved = 0;
    producers_free(&p);
}

/* Compared with a plain list: transactions that begin and end in any order, copies and
 * snapshots. */
static void order_open(void) {
    enum { IDS = 64 };
    struct producers p = {0}, other = {0};
    int64_t first[IDS];
    unsigned random = 1;
    size_t len;
    for (int i = 0; i < IDS; i++) first[i] = -1;
    for (int step = 0; step < 5000; step++) {
        random = random * 1103515245u + 12345u;
        int id = (int)(random >> 16) % IDS;
        /* Mostly as in a log; decreasing offsets come from a damaged disk. */
        int64_t offset = random % 16 == 0 ? (int64_t)(random >> 8) % 1000 : 1000 + step;
        struct batch_header marker = {.producer_id = id, .base_offset = offset};
        if (first[id] < 0) {
            update(&p, id, 0, -1, 1, offset, BATCH_TRANSACTIONAL);
            first[id] = offset;
        } else {
            CHECK(producers_end_transaction(&p, &marker, -1, 0) == 0);
            first[id] = -1;
        }
        int64_t oldest = -1;
        uint32_t count = 0;
        for (int i = 0; i < IDS; i++) {
            count += first[i] >= 0;
            if (first[i] >= 0 && (oldest < 0 || first[i] < oldest)) oldest = first[i];
        }
        CHECK(producers_first_open(&p) == oldest && p.open_count == count);
        CHECK(p.open_room <= 4 * IDS);
        if (step % 100 != 0) continue;
        CHECK(producers_copy(&other, &p) == 0 && producers_first_open(&other) == oldest);
        uint8_t *bytes = producers_encode(&p, &len);
        CHECK(bytes != NULL && producers_decode(&p, bytes, len) == 0);
        CHECK(producers_first_open(&p) == oldest && p.open_count == count);
        free(bytes);
    }
    producers_free(&p);
    producers_free(&other);
}

static void grow_and_expire(void) {
    struct producers p = {0}, other = {0};
    for (int i = 0; i < 200; i++) {
        update(&p, i * 7, 1, i, 1, i, i == 150 ? BATCH_TRANSACTIONAL : 0);
        CHECK(p.count == (uint32_t)i + 1 && p.count * 4 <= p.capacity * 3);
    }
    for (int i = 0; i < 200; i++) {
        const struct producers_entry *e = producers_find(&p, i * 7);
        CHECK(e != NULL && e->batches[0].last_sequence == i);
        CHECK(producers_find(&p, i * 7 + 1) == NULL);
    }
    size_t len;
    uint8_t *bytes = producers_encode(&p, &len);
    CHECK(bytes != NULL && producers_decode(&other, bytes, len) == 0 && other.count == 200);
    const struct producers_entry *e = producers_find(&other, 150 * 7);
    CHECK(e->epoch == 1 && e->transaction_first_offset == 150 && e->coordinator_epoch == -1);
    CHECK(e->batch_count == 1 && e->batches[0].last_offset == 150 && e->seen_ms == 1000);
    CHECK(producers_decode(&other, bytes, len - 1) == -EINVAL && other.count == 0);
    CHECK(producers_decode(&other, bytes, 9) == -EINVAL);
    bytes[1] = 2;
    CHECK(producers_decode(&other, bytes, len) == -EINVAL);
    bytes[1] = 1;
    put_i64(bytes + 10, -5);
    put_u32(bytes + 2, crc32c_extend(0, bytes + 6, len - 6));
    CHECK(producers_decode(&other, bytes, len) == -EINVAL && other.count == 0);
    put_i32(bytes + 6, -1);
    put_u32(bytes + 2, crc32c_extend(0, bytes + 6, len - 6));
    CHECK(producers_decode(&other, bytes, len) == -EINVAL);
    free(bytes);
    /* seen_ms is the later of the record's and the append's time. */
    update(&p, 1, 0, 0, 1, 600, 0);
    CHECK(producers_find(&p, 1)->seen_ms == 1100 && producers_find(&p, 7)->seen_ms == 1000);
    producers_expire(&p, 1099, 100);
    CHECK(p.count == 201);
    producers_expire(&p, 1100, 100);
    CHECK(p.count == 2 && producers_find(&p, 1) != NULL && producers_find(&p, 1050) != NULL);
    CHECK(producers_find(&p, 7) == NULL && p.capacity == 4);
    producers_expire(&p, 1200, 100);
    CHECK(p.count == 1 && producers_find(&p, 1) == NULL);
    update(&p, 2, 0, 0, 1, 600, 0);
    producers_end_before(&p, 151);
    producers_expire(&p, 5000, 100);
    CHECK(p.count == 0 && p.slots == NULL && p.capacity == 0);
}

/* Batches before a snapshot, which contains only the last one. */
static void recall(void) {
    struct producers p = {0}, older = {0};
    for (int i = 0; i < 6; i++) update(&older, 1, 0, i, 1, 10 + i, 0);
    update(&p, 1, 0, 5, 1, 15, 0);
    producers_restore_batches(&p, &older);
    struct producers_batch seen;
    CHECK(producers_find(&p, 1)->batch_count == PRODUCERS_BATCHES);
    for (int i = 1; i < 6; i++) {
        CHECK(check(&p, 1, 0, i, 1, 0, &seen) == 1 && seen.last_offset == 10 + i);
    }
    CHECK(check(&p, 1, 0, 0, 1, 0, &seen) == LOG_E_SEQUENCE);
    CHECK(check(&p, 1, 0, 6, 1, 0, &seen) == 0);
    /* Two are known: earlier ones are added, up to five. */
    update(&p, 2, 0, 4, 1, 24, 0);
    update(&p, 2, 0, 5, 1, 25, 0);
    update(&older, 2, 0, 2, 1, 22, 0);
    update(&older, 2, 0, 3, 1, 23, 0);
    update(&older, 2, 0, 4, 1, 24, 0);
    /* Batches of another epoch or with gaps are not added. */
    update(&p, 3, 1, 0, 1, 35, 0);
    update(&older, 3, 0, 0, 1, 34, 0);
    update(&older, 3, 0, 1, 1, 35, 0);
    update(&p, 4, 0, 9, 1, 45, 0);
    update(&older, 4, 0, 7, 1, 43, 0);
    producers_restore_batches(&p, &older);
    CHECK(producers_find(&p, 2)->batch_count == 4);
    for (int i = 2; i < 6; i++) CHECK(check(&p, 2, 0, i, 1, 0, &seen) == 1);
    CHECK(check(&p, 2, 0, 1, 1, 0, &seen) == LOG_E_SEQUENCE);
    CHECK(producers_find(&p, 3)->batch_count == 1 && producers_find(&p, 4)->batch_count == 1);
    CHECK(p.count == 4 && older.count == 4);
    /* Offsets that increase towards older batches come from a damaged disk. */
    update(&p, 5, 0, 5, 1, 55, 0);
    update(&older, 5, 0, 4, 1, 99, 0);
    update(&older, 5, 0, 5, 1, 55, 0);
    producers_restore_batches(&p, &older);
    CHECK(producers_find(&p, 5)->batch_count == 1);
    producers_free(&p);
    producers_free(&older);
}

/* ---- keys ---- */

/* Reference values from another program: SipHash-1-3 of 128 bits with the key 00 01 .. 0f. */
static void hash_keys(void) {
    const uint64_t seed[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
    static const uint64_t expected[][2] = {
        {0xbea58827b2bc7ee7, 0x013030dd6adb62fd},
        {0xa8edd36004376ffc, 0x63f02f2bcc73055e},
        {0x9b836905097f7875, 0x95ea6a8c54c95b85},
        {0x9ff7dc1efaccc56b, 0x43d7eb1277182348},
        {0x5a282bac714e780c, 0x252cbf8fe7928e9f},
        {0x0c625b3489db28f3, 0x3e849526a4295279},
        {0x10e743f7293dd0dc, 0xf8a68539e8b05109},
        {0xc3e0aaf223b98410, 0x77ab4808c82e2fa6},
        {0xb4dae3d5e1fe12aa, 0x99c7f935ab164f72},
        {0x9439f32c04b8dd81, 0x427c1394000e72f4},
        {0x898e495d1d54aa4f, 0xb42fb287c3a40eba},
        {0xdb914455f39a3b72, 0x4e0c6efc3d63d6b1},
        {0xa819489e85923fe5, 0x658cea9f739506dc},
        {0x1d80eac9c758f8b2, 0x4478656d5903d653},
        {0x7222c9db6862e787, 0x78e3645f66cab026},
        {0x6c52bdb205557ec1, 0x09017e1eeccd2129},
        {0xeb8e511557d9a8d0, 0x93179e3df8b013b5},
        {0x8d66bb3ff9264123, 0xecf7bdfee8125197}};
    uint8_t key[32];
    for (uint8_t i = 0; i < sizeof key; i++) key[i] = i;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        struct offset_map_hash h = offset_map_hash_of(seed, key, i);
        CHECK(h.low == expected[i][0] && h.high == expected[i][1]);
    }
}

static void map_keys(void) {
    struct offset_map m;
    CHECK(offset_map_init(&m, 10 * KEYMAP_SLOT_BYTES, 0.9));
    CHECK(m.capacity == 10 && m.count_max == 9);
    for (uint8_t i = 0; i < 9; i++) CHECK(offset_map_put(&m, &i, 1, i * 5));
    uint8_t more = 9, one = 4;
    CHECK(!offset_map_put(&m, &more, 1, 1) && offset_map_get(&m, &more, 1) == -1);
    CHECK(offset_map_put(&m, &one, 1, 1000) && m.count == 9);
    for (uint8_t i = 0; i < 9; i++) CHECK(offset_map_get(&m, &i, 1) == (i == 4 ? 1000 : i * 5));
    offset_map_clear(&m);
    CHECK(m.count == 0 && offset_map_get(&m, &one, 1) == -1 && offset_map_put(&m, &more, 1, 0));
    CHECK(offset_map_get(&m, &more, 1) == 0);
    offset_map_free(&m);
    CHECK(offset_map_init(&m, 0, 1.0) && m.capacity == 2 && m.count_max == 1);
    offset_map_free(&m);
    CHECK(offset_map_init(&m, 4 * KEYMAP_SLOT_BYTES, 0.1) && m.count_max == 1);
    offset_map_free(&m);
    short_of.starved = 1;
    CHECK(!offset_map_init(&m, 4 * KEYMAP_SLOT_BYTES, 0.5));
}

/* ---- names and codes ---- */

static void name_files(void) {
    int64_t offset = -1;
    const char *extension = log_file_extension("00000000000000000123.log", &offset);
    CHECK(extension != NULL && strcmp(extension, "log") == 0 && offset == 123);
    extension = log_file_extension("09876543210987654321.txnindex", &offset);
    CHECK(extension == NULL); /* larger than any offset */
    CHECK(log_file_extension("0000000000000000123.log", &offset) == NULL);
    CHECK(log_file_extension("0000000000000000012x.log", &offset) == NULL);
    CHECK(log_file_extension("x0000000000000000123.log", &offset) == NULL);
    CHECK(log_file_extension("000000000000000001234log", &offset) == NULL);
    CHECK(log_file_extension("99999999999999999999.log", &offset) == NULL);
    char name[64];
    snprintf(name, sizeof name, "%020lld.log", (long long)LOG_OFFSET_MAX);
    CHECK(log_file_extension(name, &offset) != NULL && offset == LOG_OFFSET_MAX);
    snprintf(name, sizeof name, "%020lld.log", (long long)LOG_OFFSET_MAX + 1);
    CHECK(log_file_extension(name, &offset) == NULL);
}

static void code_errors(void) {
    static const int16_t codes[] = {56, 56, 1, 45, 47, 46, 6, 3, 56, 56, 2, 48, 56, 75};
    for (int i = 0; i < 14; i++) CHECK(log_error_code(LOG_E_IO - i) == codes[i]);
    CHECK(log_error_code(0) == 0 && log_error_code(7) == 0);
    CHECK(log_error_code(BATCH_E_CRC) == batch_error_code(BATCH_E_CRC));
    CHECK(log_error_code(BATCH_E_CRC) != 0);
    CHECK(log_error_code(LOG_E_NOT_REPLICA - 1) == batch_error_code(LOG_E_NOT_REPLICA - 1));
    CHECK(log_error_code(LOG_E_IO + 1) == batch_error_code(LOG_E_IO + 1));
    CHECK(log_is_error(LOG_E_IO) && log_is_error(LOG_E_NOT_REPLICA));
    CHECK(!log_is_error(LOG_E_IO + 1) && !log_is_error(LOG_E_NOT_REPLICA - 1));
    CHECK(log_error_is_shortage(LOG_E_FULL) && log_error_is_shortage(LOG_E_MEMORY) &&
          log_error_is_shortage(-ENOSPC));
    CHECK(log_error_is_shortage(-EMFILE) && !log_error_is_shortage(-EIO) &&
          !log_error_is_shortage(LOG_E_IO));
    CHECK(!log_error_is_shortage(0) && !log_error_is_shortage(LOG_E_RANGE) &&
          !log_error_is_shortage(ENOSPC));
}

static void judge_entries(void) {
    uint8_t p[36], t[36];
    static const int32_t offsets[] = {4, 9, 20};
    for (uint32_t i = 0; i < 3; i++) {
        index_put_offset(p + 8 * i, offsets[i], (int32_t)(100 * i));
        index_put_time(t + 12 * i, 50 + i, offsets[i]);
    }
    CHECK(index_offsets_sane(p, 3, 201) && !index_offsets_sane(p, 3, 200));
    CHECK(index_offsets_sane(p, 0, 0) && index_times_sane(t, 3) && index_times_sane(t, 0));
    CHECK(index_offsets_plausible(p, 3, 201) && !index_offsets_plausible(p, 3, 200));
    CHECK(index_offsets_plausible(p, 0, 0) && index_times_plausible(t, 3));
    CHECK(index_rises(p, 0, 0) && index_rises(p, 2, 200) && !index_rises(p, 2, 199));
    CHECK(index_time_rises(t, 0) && index_time_rises(t, 1) && index_time_rises(t, 2));
    /* A repeated offset or position, time or offset. */
    index_put_offset(p + 8, 4, 100);
    CHECK(!index_offsets_sane(p, 3, 201));
    index_put_offset(p + 8, 9, 0);
    CHECK(!index_offsets_sane(p, 3, 201) && !index_rises(p, 1, 500));
    index_put_offset(p + 16, 2, 300);
    CHECK(index_offsets_plausible(p, 3, 301));
    index_put_offset(p + 16, 1, 300);
    CHECK(!index_offsets_plausible(p, 3, 301));
    index_put_offset(p + 16, 20, 0);
    CHECK(!index_offsets_plausible(p, 3, 301) && index_offsets_plausible(p, 1, 1));
    index_put_time(t + 12, 50, 9);
    CHECK(!index_times_sane(t, 3) && !index_time_rises(t, 1) && !index_times_plausible(t, 2));
    CHECK(index_times_plausible(t, 1));
    index_put_time(t + 12, 51, 4);
    CHECK(index_times_sane(t, 3) && index_time_rises(t, 1));
    index_put_time(t + 12, 51, 3);
    CHECK(!index_times_sane(t, 3) && !index_time_rises(t, 1));
    index_put_time(t, 50, -1);
    CHECK(!index_times_sane(t, 1) && !index_time_rises(t, 0));
    index_put_time(t, 50, 0);
    CHECK(index_times_sane(t, 1) && index_time_rises(t, 0));
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } scenes[] = {{"assign", assign_epochs}, {"cut", cut_epochs},     {"read", read_epochs},
                  {"follow", follow_sequences}, {"on", go_on},       {"end", end_transactions},
                  {"grow", grow_and_expire}, {"recall", recall},     {"hash", hash_keys},
                  {"map", map_keys},         {"names", name_files},  {"codes", code_errors},
                  {"judge", judge_entries}, {"open", order_open}};
    CHECK(argc == 3);
    played.by = pthread_self();
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(argv[2], scenes[i].name) == 0) scenes[i].run();
    puts("ok");
    return 0;
}
