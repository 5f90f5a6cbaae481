/* Aborted transactions: in memory, in the segment's file, after a truncation and a crash. Usage:
 * log_aborts DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "single_log.h"

static struct log_config config;

static void send_one(int64_t producer, int32_t sequence) {
    struct played_batch b = {.time = 1, .producer = producer + 1, .sequence = sequence,
                             .attributes = BATCH_TRANSACTIONAL};
    CHECK(append(b) == 0);
}

/* Return the overlapping transactions as a reader gets them: "producer@first". */
static const char *between(int64_t offset, int64_t upper) {
    static char text[1024];
    struct log_aborted_list found;
    size_t n = 0;
    text[0] = 0;
    CHECK(log_aborted_between(one, offset, upper, upper, UINT32_MAX, &found) == 0);
    CHECK(found.count <= 32 && found.upper == upper);
    for (uint32_t i = 0; i < found.count; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%lld@%lld", i > 0 ? " " : "",
                              (long long)found.at[i].producer_id,
                              (long long)found.at[i].first_offset);
    free(found.at);
    return text;
}

static uint32_t count_between(int64_t offset, int64_t upper) {
    struct log_aborted_list found;
    CHECK(log_aborted_between(one, offset, upper, upper, UINT32_MAX, &found) == 0);
    free(found.at);
    return found.count;
}

static bool told(int64_t offset, int64_t upper, const char *expected) {
    return strcmp(between(offset, upper), expected) == 0;
}

/* 0: of 1; 1: of 2; 2: abort of 1; 3: of 3, committed at 4; 5: abort of 2; 6: of 1, aborted by
 * 7. */
static void make_aborts(int32_t segment_bytes) {
    config = scene_config(segment_bytes, 100);
    open_one(config);
    send_one(1, 0);
    send_one(2, 0);
    CHECK(told(0, 2, "")); /* An absent file is looked up again once it may exist. */
    CHECK(append_marker(1, 0, false, 0) == 0);
    CHECK(told(0, 3, "1@0"));
    send_one(3, 0);
    CHECK(append_marker(3, 0, true, 0) == 0);
    CHECK(append_marker(2, 0, false, 0) == 0);
    send_one(1, 1);
    CHECK(append_marker(1, 0, false, 0) == 0);
    CHECK(ends_are(0, 8, 8, 8));
}

static void check_told(void) {
    CHECK(told(0, 8, "1@0 2@1 1@6") && told(0, 100, "1@0 2@1 1@6"));
    CHECK(told(2, 8, "1@0 2@1 1@6") && told(3, 8, "2@1 1@6") && told(5, 8, "2@1 1@6"));
    CHECK(told(6, 8, "1@6") && told(7, 8, "1@6") && told(8, 9, ""));
    CHECK(told(0, 1, "1@0") && told(0, 2, "1@0 2@1") && told(0, 6, "1@0 2@1"));
    CHECK(told(0, 7, "1@0 2@1 1@6") && told(3, 6, "2@1") && told(3, 3, "2@1"));
}

/* The list is complete up to out->upper, where the first transaction begins that does not fit. */
static void bound(void) {
    make_aborts(1 << 20);
    for (int flushed = 0; flushed < 2; flushed++) {
        static const struct {
            int64_t offset, keep_below, upper;
            uint32_t count_max, count;
        } looks[] = {{0, 0, 8, 3, 3}, {0, 0, 6, 2, 2}, {0, 0, 1, 1, 1}, {0, 0, 0, 0, 0},
                     {0, 1, 6, 1, 2}, {0, 1, 6, 0, 2}, {0, 2, 8, 0, 3}, {4, 0, 6, 1, 1},
                     {4, 2, 8, 1, 2}, {6, 0, 6, 0, 0}};
        for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
            struct log_aborted_list found;
            CHECK(log_aborted_between(one, looks[i].offset, 8, looks[i].keep_below,
                                      looks[i].count_max, &found) == 0);
            CHECK(found.count == looks[i].count && found.upper == looks[i].upper);
            free(found.at);
        }
        CHECK(log_seal(one, NOW) == 0 && log_flush(one) == 0);
        CHECK(one->view.segments[0]->aborted == NULL);
    }
    let_go();
}

/* A range ends before the batch that contains the offset. */
static void cut_range(void) {
    make_aborts(1 << 20);
    struct log_range range, shorter;
    CHECK(read_bytes(0, 1 << 20, &range) > 0);
    for (int64_t offset = 0; offset <= 8; offset++) {
        CHECK(log_read(one,
                       &(struct log_read_request){
                           .offset = 0, .bytes_max = 1 << 20, .at_least_one = true},
                       &range) == 0);
        if (offset == 0 || offset == 8) {
            CHECK(log_range_cut(&range, offset) == LOG_E_CORRUPT && range.next_offset == 8);
        } else {
            CHECK(log_range_cut(&range, offset) == 0 && range.next_offset == offset);
            CHECK(log_read(one, &(struct log_read_request){.offset = 0, .bytes_max = range.length},
                           &shorter) == 0);
            CHECK(shorter.length == range.length && shorter.next_offset == offset);
            log_range_release(&shorter);
        }
        log_range_release(&range);
    }
    let_go();
}

static void tell(void) {
    make_aborts(1 << 20);
    check_told();
    CHECK(log_flush(one) == 0 && played_size(dir, file_of(0, "txnindex")) == 3 * 34);
    check_told();
    leave();
    /* A clean start accepts the file; any other rebuilds it. */
    CHECK(open_with(config, from_nothing()) == 0);
    log_advance_high_watermark(one, 8);
    check_told();
    CHECK(log_flush(one) == 0 && played_size(dir, file_of(0, "txnindex")) == 3 * 34);
    let_go();
}

/* Each segment contains the transactions whose markers it contains. */
static void tell_of_segments(void) {
    make_aborts(3 * 68);
    CHECK(one->view.segment_count > 2);
    check_told();
    CHECK(log_flush(one) == 0);
    int files = 0;
    int64_t bytes = 0;
    for (uint32_t i = 0; i < one->view.segment_count; i++) {
        int64_t size = played_size(dir, file_of(one->view.segments[i]->base_offset, "txnindex"));
        files += size >= 0;
        bytes += size > 0 ? size : 0;
        if (atomic_load(&one->view.segments[i]->sealed))
            CHECK(one->view.segments[i]->aborted == NULL); /* readers use the file */
    }
    CHECK(files >= 2 && bytes == 3 * 34);
    check_told();
    leave();
    CHECK(open_with(config, from_nothing()) == 0);
    check_told();
    let_go();
}

/* An entry contains the last stable offset after its marker. */
static void write_entries(void) {
    make_aborts(1 << 20);
    uint8_t e[3 * 34];
    CHECK(log_flush(one) == 0);
    CHECK(played_read(dir, file_of(0, "txnindex"), e, sizeof e) == sizeof e);
    static const int64_t expected[3][4] = {{1, 0, 2, 1}, {2, 1, 5, 6}, {1, 6, 7, 8}};
    for (int i = 0; i < 3; i++) {
        CHECK(get_i16(e + 34 * i) == 0);
        for (int k = 0; k < 4; k++) CHECK(get_i64(e + 34 * i + 2 + 8 * k) == expected[i][k]);
    }
    let_go();
}

static void cut(void) {
    make_aborts(1 << 20);
    CHECK(log_flush(one) == 0 && log_truncate(one, 7, -1) == 0);
    CHECK(told(0, 8, "1@0 2@1") && log_open_transaction(one) == 6 && ends_are(0, 6, 7, 7));
    CHECK(played_size(dir, file_of(0, "txnindex")) == 2 * 34);
    CHECK(log_become_leader(one, 1, 1) == 0 && append_marker(1, 0, false, 0) == 0);
    CHECK(told(0, 8, "1@0 2@1 1@6") && played_size(dir, file_of(0, "txnindex")) == 2 * 34);
    CHECK(log_flush(one) == 0 && played_size(dir, file_of(0, "txnindex")) == 3 * 34);
    CHECK(log_truncate(one, 3, -1) == 0 && told(0, 8, "1@0") && log_open_transaction(one) == 1);
    CHECK(played_size(dir, file_of(0, "txnindex")) == 34);
    CHECK(log_truncate(one, 2, -1) == 0 && told(0, 8, "") && log_open_transaction(one) == 0);
    CHECK(played_size(dir, file_of(0, "txnindex")) == 0);
    CHECK(log_truncate(one, 0, -1) == 0 && log_open_transaction(one) == -1);
    let_go();
}

/* Above the recovery point the batches decide, whatever the file contains. */
static void make_anew(void) {
    static const uint8_t junk[60] = {9, 9};
    for (int how = 0; how < 6; how++) {
        make_aborts(1 << 20);
        CHECK(log_flush(one) == 0);
        leave();
        const char *path = file_of(0, "txnindex");
        uint8_t e[4 * 34];
        CHECK(played_read(dir, path, e, sizeof e) == 3 * 34);
        if (how == 0) CHECK(unlinkat(dir->fd, path, 0) == 0);
        if (how == 1) played_write(dir, path, e, 50);
        if (how == 2) played_write(dir, path, junk, sizeof junk);
        if (how == 3) played_change(dir, path, 34 + 10, "\0\0\0\0\0\0\0\4", 8);
        if (how == 4) played_change(dir, path, 3 * 34, e, 34);
        if (how == 5) played_change(dir, path, 34 + 18, "\0\0\0\0\0\0\0\1", 8);
        CHECK(open_with(config, from_nothing()) == 0);
        check_told();
        CHECK(log_flush(one) == 0 && played_size(dir, path) == 3 * 34);
        leave();
        /* Below the recovery point the file is trusted. */
        struct log_checkpoint c = from_nothing();
        c.recovery_point = 8;
        CHECK(open_with(config, c) == 0);
        check_told();
        let_go();
        CHECK(unlinkat(dir->fd, path, 0) == 0);
        CHECK(unlinkat(dir->fd, file_of(0, "log"), 0) == 0);
    }
}

static void fail(void) {
    make_aborts(1 << 20);
    /* A batch whose abort cannot be stored in memory is not appended. */
    send_one(4, 0);
    struct segment *s = one->view.segments[0];
    CHECK(s->aborted != NULL && log_flush(one) == 0);
    played_shorten(PWRITE, "txnindex", 20);
    CHECK(append_marker(4, 0, false, 0) == 0);
    CHECK(log_flush(one) == 0 && log_recovery_point(one) == 9 && atomic_load(&s->aborted_due));
    CHECK(log_flush(one) == 0 && log_recovery_point(one) == 10 && !atomic_load(&s->aborted_due));
    CHECK(played_size(dir, file_of(0, "txnindex")) == 4 * 34);
    leave();
    struct log_checkpoint c = from_nothing();
    c.recovery_point = 10;
    played_fail(PREAD, "txnindex", EIO, 1);
    CHECK(open_with(config, c) == LOG_E_IO && log_dir_offline(dir));
}

/* Among 100 transactions of a few producers, exactly the overlapping ones are found. */
static void tell_among_many(void) {
    config = scene_config(1 << 20, 100);
    open_one(config);
    for (int i = 0; i < 100; i++) {
        send_one(i % 7, i / 7);
        CHECK(append_marker(i % 7, 0, i % 3 == 0, 0) == 0);
    }
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 100; i++) {
            char expected[32] = "";
            if (i % 3 != 0) snprintf(expected, sizeof expected, "%d@%d", i % 7, 2 * i);
            CHECK(told(2 * i, 2 * i + 2, expected) && told(2 * i + 1, 2 * i + 1, expected));
        }
        CHECK(count_between(0, 200) == 66);
        CHECK(log_seal(one, NOW) == 0 && log_flush(one) == 0);
        CHECK(one->view.segments[0]->aborted == NULL);
        CHECK(played_size(dir, file_of(0, "txnindex")) == 66 * 34);
    }
    let_go();
}

enum { ABORTS = 500, LARGE = 2000000 /* 68 MB of entries */ };

/* Aborted transactions with one record each: 2i is aborted by 2i + 1. */
static void make_many_aborts(void) {
    config = scene_config(1 << 22, 4096);
    open_one(config);
    for (int i = 0; i < ABORTS; i++) {
        send_one(1, i);
        CHECK(append_marker(1, 0, false, 0) == 0);
    }
    CHECK(count_between(0, 2 * ABORTS) == ABORTS);
}

/* Write the file of a segment with this many aborts. */
static void write_large(void) {
    uint8_t *entries = malloc((size_t)LARGE * 34);
    CHECK(entries != NULL);
    for (int64_t i = 0; i < LARGE; i++) {
        uint8_t *e = entries + 34 * i;
        put_i16(e, 0);
        put_i64(e + 2, 1);
        put_i64(e + 10, 2 * i);
        put_i64(e + 18, 2 * i + 1);
        put_i64(e + 26, 2 * i + 2);
    }
    played_write(dir, file_of(0, "txnindex"), entries, (size_t)LARGE * 34);
    free(entries);
}

static void read_large(void) {
    make_many_aborts();
    CHECK(log_seal(one, NOW) == 0 && log_flush(one) == 0);
    CHECK(one->view.segments[0]->aborted == NULL);
    write_large();
    CHECK(count_between(0, 2 * ABORTS) == ABORTS && count_between(600, 800) == 100);
    CHECK(count_between(999, 1001) == 2 && told(998, 999, "1@998"));
    let_go();
}

/* A start does not truncate it: it has more entries than the batches above the recovery point. */
static void load_large(void) {
    make_many_aborts();
    CHECK(log_flush(one) == 0);
    leave();
    write_large();
    struct log_checkpoint c = from_nothing();
    c.recovery_point = 2 * ABORTS;
    CHECK(open_with(config, c) == 0);
    CHECK(count_between(0, 2 * ABORTS) == ABORTS);
    CHECK(log_flush(one) == 0 && played_size(dir, file_of(0, "txnindex")) == ABORTS * 34);
    let_go();
}

/* Aborted records must not look committed because their entries cannot be read. */
static void read_damaged(void) {
    struct log_aborted_list found;
    for (int how = 0; how < 3; how++) {
        make_aborts(1 << 20);
        CHECK(log_seal(one, NOW) == 0 && log_flush(one) == 0);
        const char *path = file_of(0, "txnindex");
        uint8_t e[3 * 34];
        CHECK(played_read(dir, path, e, sizeof e) == sizeof e);
        if (how == 0) played_write(dir, path, e, 2 * 34 + 5);
        if (how == 1) played_change(dir, path, 34, "\0\7", 2);
        if (how == 2) played_change(dir, path, 34 + 18, "\0\0\0\0\0\0\0\1", 8);
        CHECK(log_aborted_between(one, 0, 8, 8, 9, &found) == LOG_E_CORRUPT);
        CHECK(found.count == 0 && found.at == NULL && !log_dir_offline(dir));
        let_go();
        CHECK(unlinkat(dir->fd, path, 0) == 0);
        for (int64_t base = 0; base <= 8; base += 8) {
            CHECK(unlinkat(dir->fd, file_of(base, "log"), 0) == 0);
        }
    }
}

/* A second record in the marker's batch, which no coordinator writes, does not hide the abort. */
static void replay_long_marker(void) {
    config = scene_config(1 << 20, 100);
    open_one(config);
    send_one(1, 0);
    static uint8_t record[6000] = {0};
    uint8_t *at = record;
    at += put_uvarint(at, 2 * (sizeof record - 2)); /* zigzag: length of the rest */
    at += 3;                                        /* attributes and both deltas */
    *at++ = 8;                                      /* a key of 4 bytes: version 0, abort */
    at += 4;
    at += put_uvarint(at, 2 * (size_t)(record + sizeof record - at - 3));
    struct batch_summary summary = {0};
    size_t len = scene_batch(made, record, sizeof record, NOW, 1, -1);
    put_i16(made + BATCH_ATTRIBUTES_AT, BATCH_TRANSACTIONAL | BATCH_CONTROL);
    scene_seal(made, len);
    CHECK(batch_parse(made, len, &summary.header) == 0);
    CHECK(log_append(one, made, len, &summary, -1, NOW, &appended) == 0);
    CHECK(told(0, 2, "1@0"));
    leave();
    CHECK(open_with(config, from_nothing()) == 0);
    CHECK(told(0, 2, "1@0"));
    let_go();
}

int main(int argc, char **argv) {
    static const struct scene scenes[] = {
        {"tell", tell},   {"segments", tell_of_segments}, {"entries", write_entries},
        {"cut", cut},     {"anew", make_anew},            {"fail", fail},
        {"many", tell_among_many},
        {"bound", bound}, {"range", cut_range},           {"large", read_large},
        {"load", load_large}, {"damaged", read_damaged},  {"marker", replay_long_marker}};
    return play_scenes(argc, argv, scenes, sizeof scenes / sizeof *scenes, true);
}
