/* The indexes of one segment after truncations and file faults. Usage: log_index_faults
 * DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "log_index_scenes.h"

/* Truncate the segment before its batch number `keep`. */
static void cut_to(int keep) {
    segment_index_truncate(s, 100 + keep, keep * BATCH);
    atomic_store(&s->bytes, keep * BATCH);
    s->since_entry_bytes = 0;
}

static void check_entries(uint32_t offsets, uint32_t times) {
    CHECK(segment_index_entries(s, false) == offsets);
    CHECK(segment_index_entries(s, true) == times);
}

/* Entries at and above the truncation are removed: 3, 6, 9 ... have one. */
static void cut_in_memory(void) {
    for (int keep = 0; keep <= 10; keep++) {
        begin(100, INTERVAL);
        fill(100, 10);
        cut_to(keep);
        uint32_t left = keep == 0 ? 0 : (uint32_t)(keep - 1) / 3;
        check_entries(left, left);
        CHECK(s->last_indexed_time == (left == 0 ? INT64_MIN : 100 + 3 * left));
        if (keep > 3) check_all(keep);
        end();
    }
}

static void cut_in_files(void) {
    for (int keep = 0; keep <= 10; keep++) {
        begin_sealed(10);
        check_entries(3, 3);
        cut_to(keep);
        uint32_t left = keep == 0 ? 0 : (uint32_t)(keep - 1) / 3;
        check_entries(left, left);
        CHECK(s->last_indexed_time == (left == 0 ? INT64_MIN : 100 + 3 * left));
        CHECK(played_size(dir, path_of("index")) == 8 * left);
        CHECK(played_size(dir, path_of("timeindex")) == 12 * left);
        if (keep > 3) check_all(keep);
        CHECK(!s->index_lost);
        end();
    }
    /* Later times are compared with the remaining entries. */
    begin_sealed(10);
    cut_to(7);
    s->since_entry_bytes = INTERVAL + 1;
    CHECK(add((struct played_batch){.base = 107, .time = 104, .value_bytes = VALUE}));
    check_entries(3, 3);
    CHECK(segment_index_write(s, false) == 0);
    CHECK(played_size(dir, path_of("index")) == 24 && played_size(dir, path_of("timeindex")) == 36);
    end();
}

/* Some entries are in the files, others in memory. */
static void cut_in_both(void) {
    const int in_files = 3 * 512;
    for (int step = 0; step < 8; step++) {
        static const int keeps[] = {3 * 512 + 20, 3 * 512 + 4, 3 * 512 + 3, 3 * 512 + 1,
                                    3 * 512, 3 * 300 + 1, 3 * 300, 2};
        begin(100, INTERVAL);
        fill(100, in_files + 30);
        CHECK(s->offset_count == 512 && s->tail->offset_count == 9);
        cut_to(keeps[step]);
        uint32_t left = (uint32_t)(keeps[step] - 1) / 3;
        check_entries(left, left);
        CHECK(s->offset_count == (left < 512 ? left : 512) && s->time_count == s->offset_count);
        CHECK(played_size(dir, path_of("index")) == 8 * s->offset_count);
        CHECK(s->last_indexed_time == (left == 0 ? INT64_MIN : 100 + 3 * left));
        if (left > 0) check_all(keeps[step]);
        end();
    }
}

/* A hard link shares the files: it keeps them, and here they are rebuilt. */
static void cut_shared(void) {
    begin_sealed(10);
    CHECK(linkat(dir->fd, path_of("index"), dir->fd, "t-0/branch", 0) == 0);
    cut_to(7);
    CHECK(played_size(dir, "t-0/branch") == 24 && played_size(dir, path_of("index")) == 0);
    struct stat st;
    CHECK(fstatat(dir->fd, "t-0/branch", &st, 0) == 0 && st.st_nlink == 1);
    CHECK(played_size(dir, path_of("timeindex")) == 24);
    end();
    CHECK(unlinkat(dir->fd, "t-0/branch", 0) == 0);
    /* An unreadable index is restarted, in the files too. */
    begin_sealed(10);
    reopen(true);
    CHECK(cut_file("index", 9));
    cut_to(7);
    check_entries(0, 0);
    CHECK(!s->index_lost && s->last_indexed_time == INT64_MIN);
    end();
    /* A deleted file is not re-created. */
    begin_sealed(10);
    CHECK(floor_of(105) == 3 * BATCH);
    CHECK(unlinkat(dir->fd, path_of("index"), 0) == 0);
    cut_to(7);
    CHECK(played_size(dir, path_of("index")) == -1);
    end();
}

/* ---- completing the index before a flush ---- */

static void finish(void) {
    begin(100, INTERVAL);
    fill(100, 20);
    atomic_store(&s->sealed, true);
    CHECK(segment_index_has_pending(s));
    played_fail(PWRITE, "timeindex", ENOSPC, 1);
    CHECK(segment_index_finish(s) == 0 && segment_index_has_pending(s));
    played_fail(OPENAT, "timeindex", EMFILE, 2);
    CHECK(segment_index_finish(s) == 0 && segment_index_has_pending(s));
    played_fail(PWRITE, "timeindex", EIO, 1);
    CHECK(segment_index_finish(s) == -EIO && segment_index_has_pending(s));
    CHECK(segment_index_finish(s) == 0 && !segment_index_has_pending(s));
    CHECK(played_size(dir, path_of("index")) == 48 && played_size(dir, path_of("timeindex")) == 84);
    CHECK(s->tail == NULL && segment_index_finish(s) == 0);
    check_all(20);
    end();
    /* A segment removed with its files is no disk fault. */
    begin(100, INTERVAL);
    fill(100, 20);
    s->removed = true;
    CHECK(segment_index_finish(s) == 0);
    CHECK(segment_index_write(s, true) == -ENOENT);
    s->removed = false;
    played_fail(OPENAT, ".index", ENOENT, 2);
    CHECK(segment_index_finish(s) == -ENOENT);
    end();
    /* An index file truncated externally is rebuilt, even if entries are waiting for it. */
    begin_sealed(20);
    CHECK(floor_of(119) == 18 * BATCH);
    CHECK(cut_file("index", 8));
    s->tail = calloc(1, sizeof *s->tail);
    fill(120, 3);
    CHECK(segment_index_write(s, false) == 0 && s->index_lost);
    CHECK(played_size(dir, path_of("index")) == 8 && !segment_index_has_pending(s));
    CHECK(segment_index_write(s, true) == 0 && played_size(dir, path_of("index")) == 8);
    CHECK(segment_index_finish(s) == 0 && !s->index_lost);
    CHECK(played_size(dir, path_of("index")) == 56);
    check_all(23);
    end();
}

/* ---- a disk that cannot read an index ---- */

static void probe(void) {
    int64_t found;
    /* An interrupted read is retried. */
    begin_sealed(20);
    change("index", 20, "\0\0\0\1", 4);
    CHECK(segment_index_floor(s, 109, false, &found) == 0);
    change("index", 20, "\0\0\0\1", 4);
    played_fail(PREAD, "index", EINTR, 1);
    CHECK(segment_index_floor(s, 110, false, &found) == 0 && found == 9 * BATCH);
    CHECK(!log_dir_offline(dir));
    /* It does not matter who rewrote the file in between, nor if it cannot be opened now. */
    change("index", 20, "\0\0\0\1", 4);
    played_fail(OPENAT, "index", EACCES, 2);
    CHECK(segment_index_floor(s, 110, false, &found) == 0 && found == 9 * BATCH);
    CHECK(!log_dir_offline(dir));
    end();
    begin_sealed(20);
    change("index", 20, "\0\0\0\1", 4);
    played_fail(PREAD, "timeindex", EIO, 1);
    CHECK(segment_index_floor(s, 110, false, &found) == LOG_E_IO);
    const char *call;
    CHECK(log_dir_offline(dir) && log_dir_failure(dir, &call) == EIO);
    CHECK(strcmp(call, "read of an index") == 0);
    end();
}

static void fail_to_make(void) {
    int64_t found;
    begin_sealed(20);
    segment_index_invalidate(s);
    played_fail(PWRITE, "index", EIO, 2);
    CHECK(segment_index_floor(s, 110, false, &found) == 0);
    CHECK(log_dir_offline(dir) && log_dir_failure(dir, NULL) == EIO);
    end();
}

/* If the index's pages are not in memory, a non-blocking lookup returns EAGAIN. */
static void evicted(void) {
    int64_t found;
    begin(100, INTERVAL);
    fill(100, 3 * 1030);
    short_of.evicted = true;
    CHECK(segment_index_floor(s, 3000, true, &found) == 0); /* of the active end: just written */
    seal();
    CHECK(segment_index_floor(s, 3000, false, &found) == 0 && found == 2898 * BATCH);
    CHECK(segment_index_floor(s, 3000, true, &found) == -EAGAIN);
    CHECK(segment_index_border(s, 2900 * BATCH, true, &found) == -EAGAIN);
    short_of.evicted = false;
    CHECK(segment_index_floor(s, 3000, true, &found) == 0 && found == 2898 * BATCH);
    end();
    begin_sealed(2);
    short_of.evicted = true;
    CHECK(segment_index_floor(s, 101, true, &found) == 0 && found == 0);
    short_of.evicted = false;
    end();
}

/* Without memory there is no entry, and a scan finds the batch. */
static void starved(void) {
    begin(100, INTERVAL);
    fill(100, 3);
    short_of.starved = 1;
    CHECK(!add((struct played_batch){.base = 103, .time = 103, .value_bytes = VALUE}));
    check_entries(0, 0);
    fill(104, 3);
    check_entries(1, 1);
    end();
    for (int after = 1; after <= 2; after++) {
        begin(100, INTERVAL);
        fill(100, 3);
        short_of.starved_after = after;
        short_of.starved = 1;
        bool added = add((struct played_batch){.base = 103, .time = 103, .value_bytes = VALUE});
        CHECK(added == (after == 2));
        check_entries(after == 2, 0);
        fill(104, 3);
        check_entries(after == 2 ? 2 : 1, 1);
        CHECK(floor_of_time(110) == 106);
        end();
    }
    begin(100, INTERVAL);
    short_of.starved = 1;
    CHECK(segment_index_write(s, true) == 0);
    CHECK(played_size(dir, path_of("index")) == 0 && played_size(dir, path_of("timeindex")) == 0);
    end();
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } scenes[] = {{"memory", cut_in_memory}, {"files", cut_in_files},   {"both", cut_in_both},
                  {"shared", cut_shared},    {"finish", finish},        {"probe", probe},
                  {"fail", fail_to_make},    {"evicted", evicted},      {"starved", starved}};
    CHECK(argc == 3);
    struct iopool *pool = iopool_new(1, 16, NULL, NULL);
    dir = played_directory(argv[1], pool);
    played_still(dir);
    int before = played_descriptors();
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(argv[2], scenes[i].name) == 0) scenes[i].run();
    CHECK(played_descriptors() == before);
    log_dir_free(dir);
    iopool_free(pool);
    puts("ok");
    return 0;
}
