/* Aborted transactions: in memory, in the file of their segment, after a cut and a crash. Usage:
 * log_aborts DIRECTORY SCENE. Exit 0, or 1 with a line on stderr. */
#include "log_one.h"

static struct log_config config;

static void send_one(int64_t producer, int32_t sequence) {
    struct played_batch b = {.time = 1, .producer = producer + 1, .sequence = sequence,
                             .attributes = BATCH_TRANSACTIONAL};
    CHECK(append(b) == 0);
}

/* "producer@first" of those that overlap, as a reader gets them. */
static const char *between(int64_t offset, int64_t upper) {
    static char text[1024];
    struct log_aborted found[32];
    size_t n = 0;
    text[0] = 0;
    uint32_t count = log_aborted_between(one, offset, upper, found, 32);
    CHECK(count <= 32);
    for (uint32_t i = 0; i < count; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%lld@%lld", i > 0 ? " " : "",
                              (long long)found[i].producer_id, (long long)found[i].first_offset);
    return text;
}

static bool told(int64_t offset, int64_t upper, const char *expected) {
    return strcmp(between(offset, upper), expected) == 0;
}

/* 0: of 1; 1: of 2; 2: abort of 1; 3: of 3, committed at 4; 5: abort of 2; 6: of 1, which 7
 * aborts. */
static void make_aborts(int32_t segment_bytes) {
    config = scene_config(segment_bytes, 100);
    open_one(config);
    send_one(1, 0);
    send_one(2, 0);
    CHECK(told(0, 2, "")); /* What was not there is looked for again when there may be something. */
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
    struct log_aborted found[2] = {{77, 77}, {77, 77}};
    CHECK(log_aborted_between(one, 0, 8, NULL, 0) == 3);
    CHECK(log_aborted_between(one, 0, 8, found, 1) == 3);
    CHECK(found[0].producer_id == 1 && found[0].first_offset == 0 && found[1].first_offset == 77);
}

static void tell(void) {
    make_aborts(1 << 20);
    check_told();
    CHECK(log_flush(one) == 0 && played_size(dir, file_of(0, "txnindex")) == 3 * 34);
    check_told();
    leave();
    /* A clean start takes the file; another makes it anew. */
    CHECK(open_with(config, from_nothing()) == 0);
    log_advance_high_watermark(one, 8);
    check_told();
    CHECK(log_flush(one) == 0 && played_size(dir, file_of(0, "txnindex")) == 3 * 34);
    let_go();
}

/* Each segment has those whose marker it holds. */
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
            CHECK(one->view.segments[i]->aborted == NULL); /* readers take the file */
    }
    CHECK(files >= 2 && bytes == 3 * 34);
    check_told();
    leave();
    CHECK(open_with(config, from_nothing()) == 0);
    check_told();
    let_go();
}

/* An entry says how far what is stable has come behind it. */
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

/* Whatever the file says of what lies above the recovery point, the batches know. */
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
        /* Below it the file is right. */
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
    /* What cannot be remembered is not appended. */
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

/* Among 100 of a few producers, those that overlap and no others. */
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
        CHECK(log_aborted_between(one, 0, 200, NULL, 0) == 66);
        CHECK(log_seal(one, NOW) == 0 && log_flush(one) == 0);
        CHECK(one->view.segments[0]->aborted == NULL);
        CHECK(played_size(dir, file_of(0, "txnindex")) == 66 * 34);
    }
    let_go();
}

int main(int argc, char **argv) {
    static const struct scene scenes[] = {
        {"tell", tell},   {"segments", tell_of_segments}, {"entries", write_entries},
        {"cut", cut},     {"anew", make_anew},            {"fail", fail},
        {"many", tell_among_many}};
    return play_scenes(argc, argv, scenes, sizeof scenes / sizeof *scenes, true);
}
