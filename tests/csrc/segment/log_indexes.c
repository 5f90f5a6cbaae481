/* The indexes of one segment, entry by entry. Usage: log_indexes DIRECTORY SCENE. Exits with 0,
 * or with 1 and a line on stderr. */
#include "log_index_scenes.h"

static void count_due(void) {
    begin(100, INTERVAL);
    fill(100, 4);
    CHECK(segment_index_entries(s, true) == 1);
    CHECK(floor_of_time(103) == 100 && floor_of_time(104) == 103);
    CHECK(floor_of(102) == 0 && floor_of(103) == 3 * BATCH && border_of(4 * BATCH) == 3 * BATCH);
    end();
    begin(100, INTERVAL);
    for (int i = 0; i < 8; i++)
        CHECK(add((struct played_batch){.base = 100 + i, .time = 100 + i, .value_bytes = VALUE}) ==
              (i == 3 || i == 6));
    CHECK(segment_index_entries(s, false) == 2 && segment_index_entries(s, true) == 2);
    CHECK(s->first_timestamp == 100);
    check_all(8);
    int64_t time, offset;
    CHECK(segment_index_last_time(s, &time, &offset) && time == 106 && offset == 106);
    CHECK(segment_index_has_pending(s));
    seal();
    /* The last batch's time gets an extra entry. */
    CHECK(segment_index_entries(s, false) == 2 && segment_index_entries(s, true) == 3);
    CHECK(played_size(dir, path_of("index")) == 16);
    CHECK(played_size(dir, path_of("timeindex")) == 36);
    CHECK(!segment_index_has_pending(s));
    check_all(8);
    CHECK(segment_index_last_time(s, &time, &offset) && time == 107 && offset == 107);
    CHECK(segment_index_damaged(s) == 0);
    end();
}

/* Times that do not increase have no entry, nor has a batch that compaction emptied. */
static void times_rise(void) {
    begin(0, 0);
    int64_t time, offset;
    CHECK(!segment_index_last_time(s, &time, &offset));
    CHECK(!add((struct played_batch){.base = 0, .time = 0}));
    CHECK(segment_largest_of(s).timestamp == 0 && segment_largest_of(s).offset == 0);
    CHECK(add((struct played_batch){.base = 1, .time = 0}));
    CHECK(segment_index_entries(s, true) == 1);
    CHECK(segment_index_last_time(s, &time, &offset) && time == 0 && offset == 0);
    CHECK(add((struct played_batch){.base = 2, .time = 50, .empty = true}));
    CHECK(segment_index_entries(s, true) == 1 && segment_largest_of(s).timestamp == 0);
    CHECK(add((struct played_batch){.base = 3, .time = 40, .records = 5}));
    CHECK(segment_index_entries(s, true) == 2);
    CHECK(segment_index_last_time(s, &time, &offset) && time == 40 && offset == 7);
    CHECK(add((struct played_batch){.base = 8, .time = 40}));
    CHECK(add((struct played_batch){.base = 9, .time = 39}));
    CHECK(segment_index_entries(s, true) == 2 && segment_index_entries(s, false) == 5);
    CHECK(segment_largest_of(s).timestamp == 40 && segment_largest_of(s).offset == 7);
    CHECK(floor_of_time(40) == 0 && floor_of_time(41) == 7 && floor_of_time(1) == 0);
    seal();
    CHECK(segment_index_entries(s, true) == 2);
    CHECK(floor_of_time(40) == 0 && floor_of_time(41) == 7);
    CHECK(segment_index_damaged(s) == 0);
    end();
    /* A single batch has only a time entry. */
    begin(0, 0);
    add((struct played_batch){.base = 0, .time = 0});
    seal();
    CHECK(played_size(dir, path_of("index")) == 0);
    CHECK(played_size(dir, path_of("timeindex")) == 12);
    CHECK(segment_index_last_time(s, &time, &offset) && time == 0 && offset == 0);
    CHECK(floor_of(0) == 0 && floor_of_time(5) == 0 && border_of(1000) == 0);
    CHECK(segment_index_damaged(s) == 0);
    end();
    /* After a clean start the latest time is known, but not its batch. */
    begin(100, 0);
    atomic_store(&s->largest_timestamp, 500);
    seal();
    CHECK(segment_index_entries(s, true) == 0 && played_size(dir, path_of("timeindex")) == 0);
    end();
    /* A segment of empty batches has no time. */
    begin(0, 0);
    add((struct played_batch){.base = 0, .time = 9, .empty = true});
    add((struct played_batch){.base = 1, .time = 9, .empty = true});
    seal();
    CHECK(played_size(dir, path_of("index")) == 8 && played_size(dir, path_of("timeindex")) == 0);
    CHECK(!segment_index_last_time(s, &time, &offset));
    CHECK(floor_of(1) == 61 && floor_of_time(5) == 0);
    CHECK(segment_index_damaged(s) >= 0);
    end();
}

/* The first 512 entries are written to the files together, then each further 512. */
static void write_in_groups(void) {
    begin(100, INTERVAL);
    CHECK(played_size(dir, path_of("index")) == -1);
    fill(100, 3 * 511 + 1);
    CHECK(segment_index_entries(s, false) == 511 && played_size(dir, path_of("index")) == -1);
    fill(100 + 3 * 511 + 1, 3);
    CHECK(played_size(dir, path_of("index")) == 512 * 8);
    CHECK(played_size(dir, path_of("timeindex")) == 512 * 12);
    CHECK(segment_index_entries(s, false) == 512 && segment_index_entries(s, true) == 512);
    CHECK(s->tail->offset_count == 0 && s->tail->time_count == 0);
    fill(100 + 3 * 512 + 1, 3 * 20);
    CHECK(played_size(dir, path_of("index")) == 512 * 8 && s->tail->offset_count == 20);
    check_all(3 * 532 + 1);
    seal();
    CHECK(played_size(dir, path_of("index")) == 532 * 8);
    check_all(3 * 532 + 1);
    CHECK(segment_index_damaged(s) == 0);
    end();
}

/* Entries without disk space stay in memory until the next request or until their number
 * doubles. */
static void wait_for_room(void) {
    begin(100, INTERVAL);
    played_fail(PWRITE, "index", ENOSPC, -1);
    fill(100, 3 * 512 + 1);
    uint32_t tries = played.counts[PWRITE];
    CHECK(tries == 2 && s->tail->offset_count == 512 && s->offset_count == 0);
    fill(100 + 3 * 512 + 1, 3 * 511);
    CHECK(played.counts[PWRITE] == tries);
    check_all(3 * 1023 + 1);
    CHECK(segment_index_write(s, false) == -ENOSPC);
    CHECK(s->tail->offset_count == 1023 && played_size(dir, path_of("index")) == 0);
    CHECK(segment_index_write(s, true) == -ENOSPC && segment_index_has_pending(s));
    played_heal();
    played_shorten(PWRITE, ".index", 7);
    CHECK(segment_index_write(s, true) == -ENOSPC && s->tail->offset_count == 1023);
    CHECK(s->tail->time_count == 0 && s->time_count == 1023);
    CHECK(played_size(dir, path_of("index")) == 0);
    fill(100 + 3 * 1023 + 1, 3);
    CHECK(s->offset_count == 1024 && s->tail->offset_count == 0);
    check_all(3 * 1024 + 1);
    seal();
    check_all(3 * 1024 + 1);
    end();
}

/* Whatever was in the files before, they contain exactly the written entries. */
static void write_over_others(void) {
    uint8_t junk[200];
    memset(junk, 7, sizeof junk);
    begin(100, INTERVAL);
    fill(100, 8);
    played_write(dir, path_of("index"), junk, sizeof junk);
    CHECK(linkat(dir->fd, path_of("index"), dir->fd, "t-0/branch", 0) == 0);
    played_write(dir, path_of("timeindex"), junk, sizeof junk);
    struct stat before, after;
    CHECK(fstatat(dir->fd, path_of("timeindex"), &before, 0) == 0);
    seal();
    /* The hard-linked file is unchanged; the other one is reused. */
    CHECK(played_size(dir, "t-0/branch") == sizeof junk);
    CHECK(played_size(dir, path_of("index")) == 16);
    CHECK(fstatat(dir->fd, path_of("timeindex"), &after, 0) == 0);
    CHECK(after.st_ino == before.st_ino && after.st_size == 36);
    check_all(8);
    end();
    /* A file that temporarily cannot be opened is kept; a file that never can is replaced. */
    begin(100, INTERVAL);
    fill(100, 8);
    played_write(dir, path_of("index"), junk, sizeof junk);
    played_fail(OPENAT, ".index", EMFILE, 2);
    CHECK(segment_index_write(s, true) == -EMFILE);
    CHECK(played_size(dir, path_of("index")) == sizeof junk && segment_index_has_pending(s));
    played_fail(OPENAT, ".index", EACCES, 1);
    CHECK(segment_index_write(s, true) == 0 && !segment_index_has_pending(s));
    CHECK(played_size(dir, path_of("index")) == 16);
    end();
    begin(100, INTERVAL);
    fill(100, 8);
    played_write(dir, path_of("index"), junk, sizeof junk);
    played_fail(FTRUNCATE, ".index", EIO, 1);
    CHECK(segment_index_write(s, true) == -EIO);
    CHECK(segment_index_write(s, true) == 0 && played_size(dir, path_of("index")) == 16);
    end();
}

/* ---- files changed by other programs ---- */

/* Check that every lookup matches the batches. */
static void check_made_anew(void) {
    check_all(20);
    CHECK(played_size(dir, path_of("index")) == 6 * 8);
    CHECK(played_size(dir, path_of("timeindex")) == 7 * 12);
    CHECK(!s->index_lost && !s->rebuilt && !segment_index_has_pending(s));
    CHECK(segment_largest_of(s).timestamp == 119 && segment_largest_of(s).offset == 119);
    CHECK(!log_dir_offline(dir));
    end();
}

static void find_missing(void) {
    static const char *const files[] = {"index", "timeindex"};
    for (int i = 0; i < 2; i++) {
        begin_sealed(20);
        reopen(true);
        CHECK(unlinkat(dir->fd, path_of(files[i]), 0) == 0);
        CHECK(segment_index_damaged(s) == 1);
        check_made_anew();
        /* Truncated inside an entry, and to fewer entries. */
        begin_sealed(20);
        reopen(true);
        CHECK(cut_file(files[i], 30));
        CHECK(segment_index_damaged(s) == 1);
        check_made_anew();
        begin_sealed(20);
        reopen(true);
        CHECK(cut_file(files[i], 24));
        CHECK(segment_index_damaged(s) == 1);
        end();
        /* A file that temporarily cannot be opened still exists, and is not rebuilt. */
        begin_sealed(20);
        reopen(true);
        played_fail(OPENAT, files[i], EMFILE, -1);
        int64_t found;
        CHECK(segment_index_damaged(s) == -EMFILE);
        CHECK(segment_index_floor(s, 119, false, &found) == -EMFILE);
        CHECK(segment_index_floor_time(s, 119, &found) == -EMFILE);
        CHECK(!segment_index_last_time(s, &found, &found));
        played_heal();
        check_all(20);
        end();
    }
    /* The active segment's index is repaired by the next append: until then a scan finds
     * everything. */
    begin_sealed(20);
    reopen(false);
    CHECK(unlinkat(dir->fd, path_of("index"), 0) == 0);
    CHECK(floor_of(119) == 0 && border_of(20 * BATCH) == 0 && floor_of_time(119) == 100);
    CHECK(played_size(dir, path_of("index")) == -1);
    end();
    /* A non-blocking caller does not rebuild it. */
    begin_sealed(20);
    reopen(true);
    int64_t found;
    CHECK(unlinkat(dir->fd, path_of("index"), 0) == 0);
    CHECK(segment_index_floor(s, 119, true, &found) == -EAGAIN);
    CHECK(played_size(dir, path_of("index")) == -1);
    CHECK(segment_index_floor(s, 119, false, &found) == 0 && found == 18 * BATCH);
    CHECK(segment_index_floor(s, 118, true, &found) == 0 && found == 18 * BATCH);
    end();
}

/* Wrong entries: detected immediately where that is cheap, otherwise by a lookup that they
 * mislead. */
static void find_wrong(void) {
    /* Last entry beyond the segment; below the first; fewer offsets than entries. */
    static const char *const last[] = {"\0\0\0\x13\0\1\0\0", "\0\0\0\x13\0\0\0\1",
                                       "\0\0\0\4\0\0\5\x7c"};
    for (int i = 0; i < 3; i++) {
        begin_sealed(20);
        reopen(true);
        change("index", 40, last[i], 8);
        check_made_anew();
        begin_sealed(20);
        reopen(true);
        change("index", 40, last[i], 8);
        CHECK(segment_index_damaged(s) == 1);
        end();
    }
    begin_sealed(20);
    reopen(true);
    change("timeindex", 6 * 12, "\0\0\0\0\0\0\0\1", 8);
    check_made_anew();
    /* A wrong entry in the middle, in a file that is already mapped. */
    begin_sealed(20);
    change("index", 16 + 4, "\0\0\0\1", 4);
    CHECK(floor_of(110) == 9 * BATCH);
    check_made_anew();
    begin_sealed(20);
    change("index", 16 + 4, "\0\0\0\1", 4);
    CHECK(border_of(0x100) == 3 * BATCH);
    check_made_anew();
    static const char *const times[] = {"\0\0\0\0\0\0\0\1", "\0\0\0\0\0\0\0\x6d\xff\xff\xff\xff",
                                        "\0\0\0\0\0\0\0\x6d\0\0\0\1"};
    for (int i = 0; i < 3; i++) {
        begin_sealed(20);
        change("timeindex", 24, times[i], i == 0 ? 8 : 12);
        CHECK(floor_of_time(111) == 109);
        check_made_anew();
        begin_sealed(20);
        change("timeindex", 24, times[i], i == 0 ? 8 : 12);
        CHECK(segment_index_damaged(s) == 1);
        end();
    }
    begin_sealed(20);
    change("timeindex", 72 + 8, "\0\0\0\1", 4);
    int64_t time, offset;
    CHECK(segment_index_last_time(s, &time, &offset) && time == 119 && offset == 119);
    check_made_anew();
}

/* An index that lacks a batch's due entry, or the latest time. */
static void find_short(void) {
    begin_sealed(20);
    CHECK(cut_file("index", 40) && segment_index_damaged(s) == 1);
    CHECK(segment_index_damaged(s) == 1);
    end();
    begin_sealed(20);
    CHECK(cut_file("timeindex", 72) && segment_index_damaged(s) == 1);
    end();
    /* Until the next due entry nothing is missing, if its times are not later. */
    begin(100, INTERVAL);
    for (int i = 0; i < 7; i++)
        add((struct played_batch){.base = 100 + i, .time = 50, .value_bytes = VALUE});
    seal();
    CHECK(segment_index_damaged(s) == 0);
    for (int i = 7; i < 9; i++)
        add((struct played_batch){.base = 100 + i, .time = 50, .value_bytes = VALUE});
    CHECK(segment_index_damaged(s) == 0);
    add((struct played_batch){.base = 109, .time = 50, .value_bytes = VALUE});
    CHECK(segment_index_damaged(s) == 1);
    end();
    begin(100, INTERVAL);
    add((struct played_batch){.base = 100, .time = 50});
    seal();
    add((struct played_batch){.base = 101, .time = 90, .empty = true});
    CHECK(segment_index_damaged(s) == 0);
    add((struct played_batch){.base = 102, .time = 51});
    CHECK(segment_index_damaged(s) == 1);
    end();
    /* Damaged batches do not count as missing. */
    begin_sealed(20);
    played_change(dir, path_of("log"), 19 * BATCH + 8, "\xff", 1);
    CHECK(segment_index_damaged(s) == 0);
    end();
}

static void distrust(void) {
    begin_sealed(20);
    CHECK(floor_of(119) == 18 * BATCH);
    segment_index_invalidate(s);
    CHECK(s->index_lost && s->maps.at[0] == NULL);
    CHECK(segment_index_finish(s) == 0 && !s->index_lost);
    CHECK(floor_of(119) == 18 * BATCH);
    segment_index_invalidate(s); /* Once is enough: the batches may be wrong instead. */
    CHECK(!s->index_lost);
    check_made_anew();
}

static void run(const char *name) {
    if (strcmp(name, "due") == 0) count_due();
    if (strcmp(name, "times") == 0) times_rise();
    if (strcmp(name, "groups") == 0) write_in_groups();
    if (strcmp(name, "room") == 0) wait_for_room();
    if (strcmp(name, "others") == 0) write_over_others();
    if (strcmp(name, "missing") == 0) find_missing();
    if (strcmp(name, "wrong") == 0) find_wrong();
    if (strcmp(name, "short") == 0) find_short();
    if (strcmp(name, "distrust") == 0) distrust();
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    struct iopool *pool = iopool_new(1, 16, NULL, NULL);
    dir = played_directory(argv[1], pool);
    played_still(dir);
    int before = played_descriptors();
    run(argv[2]);
    CHECK(played_descriptors() == before);
    log_dir_free(dir);
    iopool_free(pool);
    puts("ok");
    return 0;
}
