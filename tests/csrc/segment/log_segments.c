/* One segment among others of its directory: descriptors, preallocation, truncation and scans,
 * on a failing disk. Usage: log_segments DIRECTORY SCENE. Exits with 0, or with 1 and a line on
 * stderr. */
#include "log/log_simulation.h"

enum { KIB = 1024, MIB = 1024 * KIB };

static struct log_dir *dir;
static struct partition_dir *home;

static struct segment *make(int64_t base) {
    struct segment *s = segment_new(home, base, 0, -1);
    CHECK(s != NULL && s->fd == -1 && atomic_load(&s->pins) == -1);
    CHECK(segment_pin(s, true) == 0 && s->fd >= 0 && atomic_load(&s->pins) == 1);
    return s;
}

static void drop(struct segment *s) {
    segment_unpin(s);
    segment_release(s);
}

static bool is_open(const struct segment *s) { return s->fd >= 0; }

static uint32_t open_count(void) {
    struct log_dir_stats figures;
    log_dir_read_stats(dir, &figures);
    return (uint32_t)figures.open_files;
}

static size_t write_batches(struct segment *s, int count, uint32_t value_bytes) {
    uint8_t bytes[1 << 13];
    size_t len = 0;
    for (int i = 0; i < count; i++) {
        struct played_batch b = {.base = s->base_offset + i, .value_bytes = value_bytes};
        len = played_make(bytes, b);
        off_t at = atomic_load(&s->bytes);
        CHECK(pwrite(s->fd, bytes, len, at) == (ssize_t)len);
        atomic_store(&s->bytes, at + (int64_t)len);
    }
    return len;
}

/* ---- descriptors ---- */

static void keep_few_open(void) {
    struct segment *s[6];
    log_dir_set_open_files(dir, 3);
    for (int i = 0; i < 6; i++) s[i] = make(i * 10);
    CHECK(open_count() == 6); /* Files in use stay open. */
    for (int i = 0; i < 6; i++) segment_unpin(s[i]);
    CHECK(open_count() == 6);
    /* The next check closes the surplus, files not used since the last check first. */
    log_dir_set_open_files(dir, 3);
    CHECK(open_count() == 3);
    for (int i = 0; i < 6; i++) CHECK(is_open(s[i]) == (i >= 3));
    CHECK(segment_pin(s[4], false) == 0);
    segment_unpin(s[4]);
    CHECK(segment_pin(s[0], false) == 0);
    CHECK(open_count() == 3 && is_open(s[4]) && is_open(s[0]));
    /* Neither files with unflushed bytes, nor files in use, nor preallocated files. */
    for (int i = 0; i < 6; i++)
        if (is_open(s[i]) && i != 0) atomic_store(&s[i]->dirty, true);
    CHECK(segment_pin(s[1], false) == 0);
    CHECK(open_count() == 4);
    for (int i = 0; i < 6; i++) atomic_store(&s[i]->dirty, false);
    atomic_store(&s[4]->preallocating, true);
    log_dir_set_open_files(dir, 1);
    CHECK(open_count() == 3 && is_open(s[0]) && is_open(s[1]) && is_open(s[4]));
    atomic_store(&s[4]->preallocating, false);
    log_dir_set_open_files(dir, 0); /* at least one */
    CHECK(open_count() == 2 && is_open(s[0]) && is_open(s[1]));
    segment_unpin(s[0]);
    segment_unpin(s[1]);
    log_dir_set_open_files(dir, 1);
    CHECK(open_count() == 1 && dir->open_max == 1);
    for (int i = 0; i < 6; i++) segment_release(s[i]);
    CHECK(open_count() == 0 && dir->clock == NULL);
    log_dir_set_open_files(dir, 100);
}

/* An open does not check all files that wait for the disk: the next open continues there. */
static void look_at_few(void) {
    enum { MANY = 2 * EVICT_SCAN_MAX + 1 };
    struct segment *s[MANY + 3];
    log_dir_set_open_files(dir, MANY);
    for (int i = 0; i < MANY; i++) {
        s[i] = make(i * 10);
        segment_unpin(s[i]);
        atomic_store(&s[i]->used, false);
        atomic_store(&s[i]->dirty, i != MANY - 1);
    }
    CHECK(open_count() == MANY && dir->clock == s[0] && !atomic_load(&dir->over_limit));
    for (int i = MANY; i < MANY + 2; i++) {
        s[i] = make(i * 10);
        CHECK(open_count() == (uint32_t)i + 1 && atomic_load(&dir->over_limit));
    }
    s[MANY + 2] = make((MANY + 2) * 10);
    CHECK(open_count() == MANY + 2 && !is_open(s[MANY - 1]));
    for (int i = 0; i < MANY; i++) atomic_store(&s[i]->dirty, false);
    log_dir_set_open_files(dir, MANY); /* This one checks all. */
    CHECK(open_count() == MANY && !atomic_load(&dir->over_limit));
    for (int i = MANY; i < MANY + 3; i++) segment_unpin(s[i]);
    for (int i = 0; i < MANY + 3; i++) segment_release(s[i]);
    log_dir_set_open_files(dir, 100);
}

static void open_again(void) {
    struct segment *s = make(0);
    write_batches(s, 1, 10);
    segment_unpin(s);
    log_dir_set_open_files(dir, 1);
    struct segment *other = make(10);
    CHECK(!is_open(s));
    CHECK(segment_pin(s, false) == 0 && played_size(dir, "t-0/00000000000000000000.log") == 78);
    CHECK(segment_pin(s, false) == 0 && atomic_load(&s->pins) == 2);
    segment_unpin(s);
    segment_unpin(s);
    /* A new file takes the name, and readers keep the old one. */
    CHECK(linkat(dir->fd, "t-0/00000000000000000000.log", dir->fd, "t-0/branch", 0) == 0);
    segment_release(s);
    s = make(0);
    CHECK(played_size(dir, "t-0/branch") == 78);
    CHECK(played_size(dir, "t-0/00000000000000000000.log") == 0);
    /* A removed file is never reopened; a file that cannot be opened now is retried. */
    segment_unpin(s);
    drop(other);
    other = make(20);
    CHECK(!is_open(s));
    s->removed = true;
    CHECK(segment_pin(s, false) == -ENOENT && !is_open(s));
    s->removed = false;
    played_fail(OPENAT, "000.log", EMFILE, 2);
    CHECK(segment_pin(s, false) == -EMFILE && open_count() == 1);
    played_fail(OPENAT, "000.log", EIO, 1);
    CHECK(segment_pin(s, false) == -EIO && atomic_load(&s->pins) == -1);
    segment_unpin(other);
    log_dir_set_open_files(dir, 100);
    /* If descriptors run out, an idle file is closed. */
    played_fail(OPENAT, "000.log", ENFILE, 1);
    CHECK(segment_pin(s, false) == 0 && open_count() == 1 && !is_open(other));
    drop(s);
    segment_release(other);
    CHECK(unlinkat(dir->fd, "t-0/branch", 0) == 0);
}

/* ---- preallocation ---- */

static void await_end(struct segment *s) {
    while (atomic_load(&s->preallocating)) usleep(100);
}

static int64_t allocated_from, allocated_bytes, allocations;
static int allocate_error;
static int counting_fallocate(int fd, int mode, off_t from, off_t len) {
    CHECK(mode == FALLOC_FL_KEEP_SIZE && fd >= 0);
    allocated_from = from;
    allocated_bytes = len;
    allocations++;
    errno = allocate_error;
    return allocate_error == 0 ? 0 : -1;
}

static struct disk counting_disk(void) {
    struct disk disk = *log_dir_disk(dir);
    disk.fallocate = counting_fallocate;
    return disk;
}

static void take_ahead(void) {
    static const struct {
        int64_t bytes, allocated, limit, from, taken; /* taken 0: none */
        bool whole;
    } cases[] = {
        {64 * KIB - 1, 0, MIB, 0, 0, false},
        {64 * KIB, 0, MIB, 64 * KIB, 256 * KIB, false},
        {256 * KIB, 0, 100 * MIB, 256 * KIB, 256 * KIB, false},
        {MIB, 0, 100 * MIB, MIB, MIB, false},
        {40 * MIB, 0, 100 * MIB, 40 * MIB, 16 * MIB, false},
        {90 * MIB, 0, 100 * MIB, 90 * MIB, 10 * MIB, false},
        {84 * MIB, 0, 100 * MIB, 84 * MIB, 16 * MIB, false},
        {100 * MIB, 0, 100 * MIB, 0, 0, false},
        {101 * MIB, 0, 100 * MIB, 0, 0, false},
        {2 * MIB, 3 * MIB, 100 * MIB, 3 * MIB, 2 * MIB, false},
        {2 * MIB, 3 * MIB + 1, 100 * MIB, 0, 0, false},
        {2 * MIB, 100 * MIB, 100 * MIB, 0, 0, false},
        {2 * MIB, INT64_MAX, 100 * MIB, 0, 0, false},
        {0, 0, MIB, 0, MIB, true},
        {1000, 0, MIB, 1000, MIB - 1000, true},
        {1000, MIB, MIB, 0, 0, true},
    };
    struct disk disk = counting_disk();
    log_dir_set_disk(dir, &disk);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct segment *s = make((int64_t)i);
        atomic_store(&s->bytes, cases[i].bytes);
        atomic_store(&s->allocated, cases[i].allocated);
        allocations = 0;
        segment_preallocate(s, cases[i].limit, cases[i].whole);
        await_end(s);
        CHECK(allocations == (cases[i].taken > 0));
        if (allocations > 0) {
            CHECK(allocated_from == cases[i].from && allocated_bytes == cases[i].taken);
            CHECK(atomic_load(&s->allocated) == cases[i].from + cases[i].taken);
        } else {
            CHECK(atomic_load(&s->allocated) == cases[i].allocated);
        }
        CHECK(atomic_load(&s->pins) == 1 && atomic_load(&s->references) == 1);
        atomic_store(&s->bytes, 0);
        drop(s);
    }
}

static void take_none(void) {
    struct disk disk = counting_disk();
    log_dir_set_disk(dir, &disk);
    struct segment *s = make(0);
    atomic_store(&s->bytes, MIB);
    /* One preallocation is running. */
    atomic_store(&s->preallocating, true);
    segment_preallocate(s, 100 * MIB, false);
    CHECK(allocations == 0 && atomic_load(&s->preallocating));
    atomic_store(&s->preallocating, false);
    /* Without space the file grows by its writes, and preallocation is not retried. */
    allocate_error = ENOSPC;
    segment_preallocate(s, 100 * MIB, false);
    await_end(s);
    CHECK(allocations == 1 && atomic_load(&s->allocated) == INT64_MAX);
    segment_preallocate(s, 100 * MIB, false);
    CHECK(allocations == 1 && !log_dir_offline(dir));
    /* The reserve is not used. */
    allocate_error = 0;
    atomic_store(&s->allocated, 0);
    short_of.total_blocks = 1000 * MIB;
    short_of.free_blocks = 20 * MIB;
    log_dir_set_reserve(dir, 20 * MIB - MIB + 1);
    int64_t free_bytes, total_bytes;
    CHECK(log_dir_measure_space(dir, &free_bytes, &total_bytes));
    segment_preallocate(s, 100 * MIB, false);
    await_end(s);
    CHECK(allocations == 1 && atomic_load(&s->allocated) == 0);
    log_dir_set_reserve(dir, 20 * MIB - MIB);
    CHECK(log_dir_measure_space(dir, &free_bytes, &total_bytes));
    segment_preallocate(s, 100 * MIB, false);
    await_end(s);
    CHECK(allocations == 2 && atomic_load(&dir->room_bytes) == 0);
    /* The last check found space, but none is left at the preallocation. */
    atomic_store(&s->allocated, 0);
    atomic_store(&dir->room_bytes, MIB);
    short_of.free_blocks--;
    segment_preallocate(s, 100 * MIB, false);
    await_end(s);
    CHECK(allocations == 2 && atomic_load(&s->allocated) == MIB);
    /* A segment sealed during a preallocation is trimmed when both have finished. */
    log_dir_set_reserve(dir, 0);
    atomic_store(&s->allocated, 0);
    atomic_store(&s->sealed, true);
    segment_preallocate(s, 100 * MIB, false);
    await_end(s);
    CHECK(allocations == 3 && atomic_load(&s->allocated) == 0);
    CHECK(played_size(dir, "t-0/00000000000000000000.log") == MIB);
    drop(s);
    memset(&short_of, 0, sizeof short_of);
}

static void trim(void) {
    struct segment *s = make(0);
    size_t len = write_batches(s, 2, 10);
    CHECK(ftruncate(s->fd, 5000) == 0);
    CHECK(segment_trim(s) == 0 && played_size(dir, "t-0/00000000000000000000.log") == 5000);
    atomic_store(&s->allocated, 8000);
    played_fail(FTRUNCATE, NULL, EIO, 1);
    CHECK(segment_trim(s) == -EIO && atomic_load(&s->allocated) == 8000);
    atomic_store(&s->preallocating, true);
    segment_trim_sealed(s);
    CHECK(atomic_load(&s->allocated) == 8000);
    atomic_store(&s->preallocating, false);
    segment_trim_sealed(s);
    CHECK(atomic_load(&s->allocated) == 0);
    CHECK(played_size(dir, "t-0/00000000000000000000.log") == (int64_t)(2 * len));
    drop(s);
}

/* ---- truncation ---- */

static const char *const NAME = "t-0/00000000000000000000.log";

static void cut(void) {
    struct segment *s = make(0);
    size_t len = write_batches(s, 3, 10);
    played_fail(FTRUNCATE, NULL, EIO, 1);
    CHECK(segment_cut(s, (int64_t)len) == -EIO && !log_dir_offline(dir));
    CHECK(played_size(dir, NAME) == (int64_t)(3 * len));
    uint32_t synced = played.counts[FDATASYNC];
    CHECK(segment_cut(s, (int64_t)(2 * len)) == 0 && played.counts[FDATASYNC] == synced + 1);
    CHECK(played_size(dir, NAME) == (int64_t)(2 * len));
    played_fail(FDATASYNC, NULL, ENOSPC, 1);
    const char *call;
    CHECK(segment_cut(s, 0) == LOG_E_IO && log_dir_offline(dir));
    CHECK(log_dir_failure(dir, &call) == ENOSPC && strcmp(call, "fdatasync") == 0);
    drop(s);
}

/* A hard-linked file is copied up to the truncation, and its indexes lose their names. */
static void cut_shared(void) {
    struct segment *s = make(0);
    int64_t len = (int64_t)write_batches(s, 300, 8000);
    CHECK(!segment_is_shared(s));
    played_write(dir, "t-0/00000000000000000000.index", "12345678", 8);
    played_write(dir, "t-0/00000000000000000000.timeindex", "123456789012", 12);
    CHECK(linkat(dir->fd, NAME, dir->fd, "t-0/branch", 0) == 0 && segment_is_shared(s));
    static const struct {
        enum played_call call;
        int error;
        const char *of;
    } faults[] = {{OPENAT, EACCES, "cleaned"}, {PREAD, EIO, NULL},   {PWRITE, ENOSPC, NULL},
                  {FDATASYNC, EIO, NULL},      {RENAMEAT, EIO, NULL}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        played_fail(faults[i].call, faults[i].of, faults[i].error, 1);
        CHECK(segment_cut(s, 299 * len) == -faults[i].error);
        CHECK(segment_is_shared(s) && played_size(dir, NAME) == 300 * len);
    }
    short_of.starved = 1;
    CHECK(segment_cut(s, 299 * len) == -ENOMEM);
    played_shorten(PREAD, NULL, 0);
    CHECK(segment_cut(s, 299 * len) == -EIO);
    played_write(dir, "t-0/00000000000000000000.index", "12345678", 8);
    played_write(dir, "t-0/00000000000000000000.timeindex", "123456789012", 12);
    played_fail(PREAD, NULL, EINTR, 1);
    played_shorten(PWRITE, NULL, 1000);
    uint32_t synced = played.counts[FDATASYNC];
    int fd = s->fd;
    played_note();
    CHECK(segment_cut(s, 299 * len) == 0 && played.counts[FDATASYNC] == synced + 1);
    CHECK(s->fd == fd && !segment_is_shared(s));
    /* The name is synced, too. */
    const char *renamed = strstr(played.notes, "rename ");
    CHECK(renamed != NULL && strstr(renamed, "\nfsync ") != NULL);
    CHECK(played_size(dir, NAME) == 299 * len && played_size(dir, "t-0/branch") == 300 * len);
    CHECK(played_size(dir, "t-0/00000000000000000000.index") == -1);
    CHECK(played_size(dir, "t-0/00000000000000000000.timeindex") == -1);
    CHECK(played_size(dir, "t-0/00000000000000000000.log.cleaned") == -1);
    static uint8_t own[300 << 13], branch[300 << 13];
    CHECK(played_read(dir, NAME, own, sizeof own) == 299 * len);
    CHECK(played_read(dir, "t-0/branch", branch, sizeof branch) == 300 * len);
    CHECK(memcmp(own, branch, (size_t)(299 * len)) == 0);
    drop(s);
    CHECK(unlinkat(dir->fd, "t-0/branch", 0) == 0);
}

/* ---- reads and scans ---- */

static void read_whole(void) {
    struct segment *s = make(0);
    int64_t len = (int64_t)write_batches(s, 2, 10);
    uint8_t bytes[400], expected[400];
    CHECK(pread(s->fd, expected, sizeof expected, 0) == 2 * len);
    played_fail(PREAD, NULL, EINTR, 2);
    CHECK(segment_read(s, 0, bytes, (size_t)len) == 0);
    CHECK(memcmp(bytes, expected, (size_t)len) == 0);
    played_shorten(PREAD, NULL, 7);
    CHECK(segment_read(s, len, bytes, (size_t)len) == 0);
    CHECK(memcmp(bytes, expected + len, (size_t)len) == 0);
    CHECK(segment_read(s, len, bytes, (size_t)len + 1) == LOG_E_CORRUPT && !log_dir_offline(dir));
    played_fail(PREAD, NULL, ENOMEM, 1);
    CHECK(segment_read(s, 0, bytes, 1) == LOG_E_MEMORY && !log_dir_offline(dir));
    played_fail(PREAD, NULL, EIO, 1);
    CHECK(segment_read(s, 0, bytes, 1) == LOG_E_IO && log_dir_failure(dir, NULL) == EIO);
    drop(s);
}

/* Consecutive headers, for any part of them in the window. */
static void scan(void) {
    static const uint32_t sizes[] = {0, 10, 3000, 4030, 4035, 4036, 4100, 8000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int nowait = 0; nowait < 2; nowait++) {
            struct segment *s = make((int64_t)i * 1000);
            size_t len = write_batches(s, 70, sizes[i]);
            struct segment_scan scan;
            struct batch_header h;
            int64_t seen = 0;
            segment_scan_begin(&scan, s, 0, atomic_load(&s->bytes), nowait);
            played_fail(PREAD, ".log", EINTR, 1);
            while (segment_scan_peek(&scan, &h) == 1) {
                CHECK(h.base_offset == s->base_offset + seen++);
                CHECK(batch_bytes(&h) == len);
                segment_scan_skip(&scan, &h);
            }
            CHECK(seen == 70 && segment_scan_peek(&scan, &h) == 0);
            CHECK(scan.position == scan.end && scan.corrupt_end == -1);
            played_heal();
            drop(s);
        }
}

static int peek_at(struct segment *s, int64_t position, int64_t end) {
    struct segment_scan scan;
    struct batch_header h;
    segment_scan_begin(&scan, s, position, end, false);
    scan.strict = true;
    return segment_scan_peek(&scan, &h);
}

static void scan_ends(void) {
    struct segment *s = make(100);
    int64_t len = (int64_t)write_batches(s, 2, 10), bytes = 2 * len;
    CHECK(peek_at(s, len, bytes) == 1 && peek_at(s, bytes, bytes) == 0);
    CHECK(peek_at(s, len, len + 1) == LOG_E_CORRUPT && peek_at(s, len, len + 60) == LOG_E_CORRUPT);
    CHECK(peek_at(s, len, bytes - 1) == LOG_E_CORRUPT);
    CHECK(peek_at(s, len, bytes + 1) == 1); /* and one byte after it */
    CHECK(peek_at(s, len + 1, bytes) == LOG_E_CORRUPT);
    played_shorten(PREAD, NULL, 60);
    CHECK(peek_at(s, 0, bytes) == LOG_E_CORRUPT);
    played_shorten(PREAD, NULL, 61);
    CHECK(peek_at(s, 0, bytes) == 1);
    /* Offsets below the segment's base are invalid. */
    played_change(dir, "t-0/00000000000000000100.log", 7, "\x63", 1);
    CHECK(peek_at(s, 0, bytes) == LOG_E_CORRUPT);
    played_fail(PREAD, NULL, ENOMEM, 1);
    CHECK(peek_at(s, len, bytes) == LOG_E_MEMORY);
    played_fail(PREAD, NULL, EIO, 1);
    CHECK(peek_at(s, len, bytes) == LOG_E_IO && log_dir_offline(dir));
    drop(s);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } scenes[] = {{"few", keep_few_open}, {"looks", look_at_few},
                  {"again", open_again}, {"ahead", take_ahead},
                  {"none", take_none},    {"trim", trim},        {"cut", cut},
                  {"shared", cut_shared}, {"read", read_whole},  {"scan", scan},
                  {"ends", scan_ends}};
    CHECK(argc == 3);
    struct iopool *pool = iopool_new(1, 16, NULL, NULL);
    dir = played_directory(argv[1], pool);
    played_still(dir);
    CHECK(mkdirat(dir->fd, "t-0", 0755) == 0);
    home = partition_dir_new(dir, "t-0");
    int before = played_descriptors();
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(argv[2], scenes[i].name) == 0) scenes[i].run();
    CHECK(played_descriptors() == before);
    CHECK(atomic_load(&home->references) == 1);
    partition_dir_release(home);
    log_dir_free(dir);
    iopool_free(pool);
    puts("ok");
    return 0;
}
