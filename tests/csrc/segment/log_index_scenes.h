/* One segment with known batches, and the expected results of its indexes. */
#ifndef PYLOG_LOG_INDEX_SCENES_H
#define PYLOG_LOG_INDEX_SCENES_H

#include "segment/index_search.h"
#include "log/log_simulation.h"

enum { VALUE = 10, BATCH = 61 + 7 + VALUE, INTERVAL = 2 * BATCH };

static struct log_dir *dir;
static struct partition_dir *home;
static struct segment *s;

static inline const char *path_of(const char *extension) {
    static char path[SEGMENT_PATH_BYTES];
    segment_path(s, extension, path);
    return path;
}

static inline void begin(int64_t base, int32_t interval) {
    CHECK(mkdirat(dir->fd, "t-0", 0755) == 0 || errno == EEXIST);
    home = partition_dir_new(dir, "t-0");
    s = segment_new(home, base, 0, -1);
    s->index_interval_bytes = interval;
    CHECK(segment_pin(s, true) == 0);
    segment_index_reset(s);
}

static inline void end(void) {
    segment_unpin(s);
    segment_release(s);
    partition_dir_release(home);
}

/* Append a batch; return true if it got an index entry. */
static inline bool add(struct played_batch b) {
    uint8_t bytes[1 << 13];
    struct batch_header h;
    int64_t at = atomic_load(&s->bytes);
    size_t len = played_make(bytes, b);
    CHECK(pwrite(s->fd, bytes, len, at) == (ssize_t)len);
    CHECK(batch_parse(bytes, len, &h) == 0);
    bool added = segment_index_batch(s, &h, at);
    atomic_store(&s->bytes, at + (int64_t)len);
    return added;
}

/* Append `count` batches of one record from `offset` on, a millisecond apart. */
static inline void fill(int64_t offset, int count) {
    for (int i = 0; i < count; i++)
        add((struct played_batch){.base = offset + i, .time = offset + i, .value_bytes = VALUE});
}

/* Seal the segment, with all entries in the files. */
static inline void seal(void) {
    CHECK(segment_index_write(s, true) == 0);
    atomic_store(&s->sealed, true);
}

static inline int64_t floor_of(int64_t offset) {
    int64_t position = -7;
    CHECK(segment_index_floor(s, offset, false, &position) == 0);
    return position;
}
static inline int64_t border_of(int64_t at) {
    int64_t position = -7;
    CHECK(segment_index_border(s, at, false, &position) == 0);
    return position;
}
static inline int64_t floor_of_time(int64_t time) {
    int64_t offset = -7;
    CHECK(segment_index_floor_time(s, time, &offset) == 0);
    return offset;
}

/* Batches of INTERVAL: every third batch has an entry, from the third on. */
static inline int64_t entry_at(int i) { return 3 * (i + 1); }

/* Check all lookups of `count` batches from offset 100 on. */
static inline void check_all(int count) {
    int entries = (count - 1) / 3;
    int64_t time, offset;
    for (int i = 0; i < count; i++) {
        int64_t n = i / 3 * 3, before = i > 0 ? (i - 1) / 3 * 3 : 0;
        CHECK(floor_of(100 + i) == n * BATCH);
        CHECK(border_of(i * BATCH) == n * BATCH);
        CHECK(border_of(i * BATCH - 1) == before * BATCH);
        CHECK(floor_of_time(100 + i) == 100 + before);
    }
    CHECK(floor_of(0) == 0 && border_of(0) == 0 && floor_of_time(0) == 100);
    CHECK(floor_of(100 + count + 50) == entry_at(entries - 1) * BATCH);
    CHECK(segment_index_last_time(s, &time, &offset) && time == offset);
}

static inline void begin_sealed(int count) {
    begin(100, INTERVAL);
    fill(100, count);
    seal();
    CHECK(segment_index_damaged(s) == 0);
}

/* Reopen as a process that has not read the files yet. */
static inline void reopen(bool sealed) {
    int64_t bytes = atomic_load(&s->bytes), base = s->base_offset;
    segment_unpin(s);
    segment_release(s);
    s = segment_new(home, base, bytes, -1);
    s->index_interval_bytes = INTERVAL;
    atomic_store(&s->sealed, sealed);
    CHECK(segment_pin(s, false) == 0);
}

static inline void change(const char *extension, off_t at, const char *bytes, size_t len) {
    played_change(dir, path_of(extension), at, bytes, len);
}

static inline bool cut_file(const char *extension, off_t bytes) {
    int fd = openat(dir->fd, path_of(extension), O_WRONLY);
    bool done = ftruncate(fd, bytes) == 0;
    close(fd);
    return done;
}

#endif
