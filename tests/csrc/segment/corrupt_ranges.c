/* Damage in a log: the boundaries of holes, readers that skip them, and reports. Usage:
 * corrupt_ranges DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "log/single_log.h"

static struct log_config config;

/* Twenty small batches in one segment, all flushed, then abandoned. */
static void make_log(void) {
    config = scene_config(1 << 20, 3 * SMALL);
    open_one(config);
    fill(20, 1000);
    CHECK(log_flush(one) == 0);
}

static void change(int batch, int at, const char *bytes, size_t len) {
    played_change(dir, file_of(0, "log"), batch * SMALL + at, bytes, len);
}

static struct segment *segment_of(void) {
    struct segment *s = one->view.segments[0];
    CHECK(segment_pin(s, false) == 0);
    return s;
}

static struct log_damage damages[8];
static uint32_t take_damages(void) { return log_dir_fetch_damages(dir, damages, 8); }

/* Check a hole of a segment: positions [position, end), offsets before and after. */
static void check_hole(struct segment *s, int64_t from, int64_t position, int64_t end,
                       int64_t offset, int64_t next) {
    struct corrupt_range hole;
    CHECK(segment_next_corrupt_range(s, from, &hole));
    CHECK(hole.position == position && hole.end == end);
    CHECK(hole.offset == offset && hole.next_offset == next);
}

static void find_holes(void) {
    struct corrupt_range hole;
    make_log();
    struct segment *s = segment_of();
    CHECK(!segment_next_corrupt_range(s, 0, &hole));
    change(5, BATCH_MAGIC_AT, "\7", 1);
    change(11, BATCH_MAGIC_AT, "\7", 1);
    change(12, BATCH_MAGIC_AT, "\7", 1);
    /* A caller that must not block does not search. */
    CHECK(segment_find_corrupt_range(s, 5 * SMALL, true, &hole) == -EAGAIN);
    CHECK(segment_find_corrupt_range(s, 5 * SMALL, false, &hole) == 1);
    CHECK(hole.position == 5 * SMALL && hole.end == 6 * SMALL && hole.offset == 5);
    CHECK(hole.next_offset == 6 && atomic_load(&s->damaged));
    CHECK(segment_find_corrupt_range(s, 5 * SMALL, true, &hole) == 1);
    CHECK(segment_find_corrupt_range(s, 6 * SMALL - 1, true, &hole) == 1 && hole.offset == 5);
    CHECK(segment_find_corrupt_range(s, 6 * SMALL, true, &hole) == 0);
    CHECK(segment_find_corrupt_range(s, 4 * SMALL, true, &hole) == 0);
    check_hole(s, 0, 5 * SMALL, 6 * SMALL, 5, 6);
    check_hole(s, 6 * SMALL - 1, 5 * SMALL, 6 * SMALL, 5, 6);
    check_hole(s, 6 * SMALL, 11 * SMALL, 13 * SMALL, 11, 13);
    CHECK(!segment_next_corrupt_range(s, 13 * SMALL, &hole));
    CHECK(take_damages() == 2 && damages[0].offset == 5 && damages[0].bytes == SMALL);
    CHECK(damages[0].kind == LOG_DAMAGE_KEPT && damages[0].why == LOG_WHY_HEADER);
    CHECK(damages[1].position == 11 * SMALL && damages[1].bytes == 2 * SMALL);
    segment_unpin(s);
    let_go();
}

static void forget_holes(void) {
    struct corrupt_range hole;
    make_log();
    struct segment *s = segment_of();
    change(5, BATCH_MAGIC_AT, "\7", 1);
    CHECK(segment_find_corrupt_range(s, 5 * SMALL, false, &hole) == 1 && take_damages() == 1);
    segment_forget_corrupt_ranges(s);
    CHECK(!segment_next_corrupt_range(s, 0, &hole));
    CHECK(segment_find_corrupt_range(s, 5 * SMALL, false, &hole) == 1 && take_damages() == 1);
    struct batch_header h = {.base_offset = 3, .batch_length = 66};
    segment_report_batch(s, &h, 3 * SMALL, LOG_WHY_CRC);
    segment_report_batch(s, &h, 3 * SMALL, LOG_WHY_CRC);
    segment_report_batch(s, &h, 2 * SMALL, LOG_WHY_CRC);
    CHECK(take_damages() == 1 && damages[0].offset == 3 && damages[0].bytes == 78);
    h.base_offset = 4;
    segment_report_batch(s, &h, 4 * SMALL, LOG_WHY_RECORDS);
    CHECK(take_damages() == 1 && damages[0].why == LOG_WHY_RECORDS && damages[0].offset == 4);
    segment_unpin(s);
    let_go();
}

/* An impossible header field leads no further than to the next valid batch. */
static void find_where_it_leads(void) {
    static const struct {
        int at;
        const char *bytes;
        size_t len;
        enum log_damage_why why;
    } wrong[] = {{BATCH_LENGTH_AT, "\0\0\1\0", 4, LOG_WHY_CRC},
                 {BATCH_LENGTH_AT, "\0\1\0\0", 4, LOG_WHY_SHORT},
                 {BATCH_LENGTH_AT, "\0\0\0\1", 4, LOG_WHY_HEADER},
                 {0, "\0\0\0\0\0\0\0\2", 8, LOG_WHY_ORDER},
                 {0, "\0\0\0\2\0\0\0\0", 8, LOG_WHY_CRC},
                 {BATCH_LAST_OFFSET_DELTA_AT, "\xff\xff\xff\xff", 4, LOG_WHY_ORDER}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        make_log();
        change(9, wrong[i].at, wrong[i].bytes, wrong[i].len);
        struct segment *s = segment_of();
        struct corrupt_range hole;
        CHECK(segment_find_corrupt_range(s, 9 * SMALL, false, &hole) == 1);
        CHECK(hole.position == 9 * SMALL && hole.end == 10 * SMALL);
        CHECK(hole.offset == 9 && hole.next_offset == 10);
        CHECK(take_damages() == 1 && damages[0].why == wrong[i].why);
        /* Reads before the hole end there, and reads after it start after it. */
        struct log_range range;
        CHECK(read_bytes(3, 1 << 20, &range) == 6 * SMALL && range.next_offset == 9);
        CHECK(read_bytes(9, 1 << 20, &range) == LOG_E_CORRUPT);
        CHECK(read_bytes(10, 1 << 20, &range) == 10 * SMALL);
        CHECK(log_read_damage(one, 9, &range) == 0 && range.position == 9 * SMALL);
        CHECK(range.length == SMALL && range.first_offset == 9 && range.next_offset == 10);
        log_range_release(&range);
        CHECK(log_read_damage(one, 20, &range) == LOG_E_RANGE && range.segment == NULL);
        segment_unpin(s);
        leave();
        CHECK(unlinkat(dir->fd, file_of(0, "log"), 0) == 0);
    }
}

static void find_at_the_ends(void) {
    struct corrupt_range hole;
    make_log();
    change(0, BATCH_MAGIC_AT, "\7", 1);
    change(19, BATCH_MAGIC_AT, "\7", 1);
    struct segment *s = segment_of();
    CHECK(segment_find_corrupt_range(s, 0, false, &hole) == 1 && hole.position == 0 &&
          hole.end == SMALL);
    CHECK(hole.offset == 0 && hole.next_offset == 1);
    check_hole(s, SMALL, 19 * SMALL, 20 * SMALL, 19, -1);
    struct log_range range;
    CHECK(read_bytes(0, 1 << 20, &range) == LOG_E_CORRUPT);
    CHECK(read_bytes(1, 1 << 20, &range) == 18 * SMALL && range.next_offset == 19);
    CHECK(read_bytes(19, 1 << 20, &range) == LOG_E_CORRUPT);
    CHECK(log_read_damage(one, 19, &range) == 0 && range.next_offset == 20);
    CHECK(range.position == 19 * SMALL && range.length == SMALL);
    log_range_release(&range);
    segment_unpin(s);
    let_go();
}

static void fail_to_find(void) {
    struct corrupt_range hole;
    make_log();
    change(5, BATCH_MAGIC_AT, "\7", 1);
    struct segment *s = segment_of();
    for (int after = 0; after < 3; after++) {
        short_of.starved_after = after;
        short_of.starved = 1;
        CHECK(segment_find_corrupt_range(s, 5 * SMALL, false, &hole) == LOG_E_MEMORY);
        CHECK(short_of.starved == 0 && !segment_next_corrupt_range(s, 0, &hole));
    }
    take_damages();
    played_fail(PREAD, ".log", EINTR, 2);
    CHECK(segment_find_corrupt_range(s, 5 * SMALL, false, &hole) == 1 && hole.next_offset == 6);
    segment_forget_corrupt_ranges(s);
    played_fail(PREAD, ".log", EIO, 1);
    CHECK(segment_find_corrupt_range(s, 5 * SMALL, false, &hole) == LOG_E_IO &&
          log_dir_offline(dir));
    segment_unpin(s);
    let_go();
}

/* A start keeps damage below the recovery point and truncates damage above it. */
static void start_with_holes(void) {
    struct log_checkpoint c = from_nothing();
    make_log();
    leave();
    change(5, BATCH_MAGIC_AT, "\7", 1);
    change(8, 70, "\7", 1);
    CHECK(unlinkat(dir->fd, file_of(0, "index"), 0) == 0 || errno == ENOENT);
    c.recovery_point = 20;
    CHECK(open_with(config, c) == 0 && ends_are(0, 0, 0, 20));
    let_go();
    take_damages();
    c.recovery_point = 15;
    CHECK(open_with(config, c) == 0 && ends_are(0, 0, 0, 20));
    struct log_range range;
    CHECK(read_bytes(6, 1 << 20, &range) == 14 * SMALL);
    let_go();
    c.recovery_point = 7;
    CHECK(open_with(config, c) == 0 && ends_are(0, 0, 0, 8));
    CHECK(played_size(dir, file_of(0, "log")) == 8 * SMALL);
    let_go();
    c.recovery_point = 0;
    CHECK(open_with(config, c) == 0 && ends_are(0, 0, 0, 5));
    CHECK(played_size(dir, file_of(0, "log")) == 5 * SMALL);
    let_go();
}

static void truncate_at_holes(void) {
    make_log();
    change(5, BATCH_MAGIC_AT, "\7", 1);
    change(6, BATCH_MAGIC_AT, "\7", 1);
    CHECK(log_truncate(one, 12, -1) == 0 && log_end_offset(one) == 12);
    struct log_range range;
    CHECK(read_bytes(7, 1 << 20, &range) == 5 * SMALL);
    CHECK(log_truncate(one, 6, -1) == 0 && log_end_offset(one) == 5);
    CHECK(played_size(dir, file_of(0, "log")) == 5 * SMALL);
    let_go();
}

int main(int argc, char **argv) {
    static const struct scene scenes[] = {
        {"find", find_holes},      {"forget", forget_holes},   {"lead", find_where_it_leads},
        {"ends", find_at_the_ends}, {"fail", fail_to_find},    {"start", start_with_holes},
        {"truncate", truncate_at_holes}};
    return play_scenes(argc, argv, scenes, sizeof scenes / sizeof *scenes, true);
}
