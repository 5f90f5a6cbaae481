/* Reads: the boundaries of ranges, readers' hints, times and epochs. Usage: log_reads DIRECTORY
 * SCENE. Exits with 0, or with 1 and a line on stderr. */
#include <sys/uio.h>

#include "single_log.h"

static struct log_config config_of(int32_t segment_bytes) {
    return scene_config(segment_bytes, 3 * SMALL);
}

static struct log_range range;

static int32_t got; /* bytes */
static int read_from(int64_t offset, int32_t bytes_max, enum log_bound bound, bool at_least_one) {
    int result = log_read(
        one,
        &(struct log_read_request){
            .offset = offset, .bound = bound, .bytes_max = bytes_max, .at_least_one = at_least_one},
        &range);
    got = range.length;
    CHECK((range.segment != NULL) == (result == 0 && got > 0));
    CHECK(range.fd == (range.segment == NULL ? -1 : range.segment->fd));
    log_range_release(&range);
    CHECK(range.segment == NULL && range.fd == -1 && range.length == 0);
    return result;
}

/* Close all files but the one that contains this offset. */
static void keep_open(int64_t offset) {
    CHECK(log_flush(one) == 0);
    log_dir_set_open_files(dir, 1);
    CHECK(read_from(offset, 1, LOG_BOUND_END, true) == 0 && dir->open_count == 1);
}

static bool reads(int64_t offset, int32_t bytes_max, int64_t position, int64_t next) {
    int64_t first = offset;
    if (log_read(one,
                 &(struct log_read_request){
                     .offset = offset, .bytes_max = bytes_max, .at_least_one = true},
                 &range) != 0)
        return false;
    bool as_expected = range.position == position && range.next_offset == next &&
                       range.first_offset == first && range.log_end_offset == log_end_offset(one);
    int32_t length = range.length;
    log_range_release(&range);
    return as_expected && length == (next - first) * SMALL;
}

/* Without readers' hints, and with them. */
static void read_borders(void) {
    open_one(config_of(50 * SMALL));
    fill(120, 1);
    CHECK(segments_begin("0 50 100"));
    for (int round = 0; round < 2; round++)
        for (int64_t at = 0; at < 120; at++) {
            int64_t segment = at / 50 * 50, end = segment == 100 ? 120 : segment + 50;
            int64_t place = (at - segment) * SMALL;
            if (round == 0) {
                log_append_lock(one);
                log_view_change(one);
                free(one->view.hints);
                one->view.hints = NULL;
                log_view_changed(one);
                log_append_unlock(one);
            }
            CHECK(reads(at, 1 << 20, place, end));
            CHECK(reads(at, (int32_t)(end - at) * SMALL, place, end));
            if (end - at < 2) continue;
            CHECK(reads(at, 2 * SMALL, place, at + 2));
            CHECK(reads(at, 2 * SMALL - 1, place, at + 1));
            CHECK(reads(at, 0, place, at + 1) && reads(at, -5, place, at + 1));
            CHECK(reads(at, (int32_t)(end - at) * SMALL - 1, place, end - 1));
        }
    CHECK(read_from(10, SMALL - 1, LOG_BOUND_END, false) == 0);
    CHECK(got == 0 && range.next_offset == 10);
    CHECK(read_from(10, SMALL, LOG_BOUND_END, false) == 0 && range.next_offset == 11);
    CHECK(read_from(120, 100, LOG_BOUND_END, true) == 0 && range.next_offset == 120);
    CHECK(range.first_offset == 120 && got == 0);
    CHECK(read_from(121, 100, LOG_BOUND_END, true) == LOG_E_RANGE);
    CHECK(range.log_end_offset == 120 && range.high_watermark == 120);
    CHECK(log_move_start(one, 60, NOW) == 0);
    CHECK(read_from(59, 100, LOG_BOUND_END, true) == LOG_E_RANGE && range.log_start_offset == 60);
    CHECK(reads(60, 1 << 20, 10 * SMALL, 100));
    let_go();
}

static void read_within_batches(void) {
    open_one(config_of(1 << 20));
    for (int i = 0; i < 30; i++)
        CHECK(append((struct played_batch){.time = i, .records = 10, .value_bytes = 10}) == 0);
    for (int64_t at = 0; at < 300; at++) {
        CHECK(read_from(at, 1, LOG_BOUND_END, true) == 0);
        CHECK(range.position == at / 10 * SMALL && range.next_offset == at / 10 * 10 + 10);
        CHECK(range.first_offset == (at % 10 == 0 || range.first_offset == at ? at : at / 10 * 10));
    }
    let_go();
}

static void read_up_to_bounds(void) {
    open_one(config_of(10 * SMALL));
    CHECK(log_lead_replicas(one, 1, 2) == 0);
    fill(25, 1);
    struct played_batch b = {.time = 1, .producer = 3, .attributes = BATCH_TRANSACTIONAL};
    CHECK(append(b) == 0);
    fill(4, 1);
    for (int64_t high = 0; high <= 30; high++) {
        log_advance_high_watermark(one, high);
        int64_t stable = high < 25 ? high : 25;
        CHECK(ends_are(0, stable, high, 30));
        for (int64_t at = high < 3 ? 0 : high - 3; at <= high; at++) {
            int64_t segment_end = at / 10 * 10 + 10;
            CHECK(read_from(at, 1 << 20, LOG_BOUND_HIGH_WATERMARK, true) == 0);
            CHECK(range.next_offset == (segment_end < high ? segment_end : high));
            CHECK((got > 0) == (at < high));
            CHECK(range.last_stable_offset == stable && range.high_watermark == high);
        }
        CHECK(read_from(stable, 1 << 20, LOG_BOUND_LAST_STABLE, true) == 0 && got == 0);
        if (stable > 0) {
            CHECK(read_from(stable - 1, 1 << 20, LOG_BOUND_LAST_STABLE, true) == 0);
            CHECK(range.next_offset == stable && got > 0);
        }
    }
    CHECK(read_from(28, 1, LOG_BOUND_LAST_STABLE, true) == 0 && got == 0);
    let_go();
}

/* Only a reader with a hint needs neither index nor header. */
static void remember_readers(void) {
    open_one(config_of(1 << 20));
    fill(40, 1);
    atomic_store(&one->view.segments[0]->largest_timestamp_offset, -1);
    for (int64_t at = 0; at < 24; at += 2) CHECK(reads(at, 2 * SMALL, at * SMALL, at + 2));
    /* The hint moves along; the hints of recent departed readers stay for a while. */
    int found = 0;
    for (int i = 0; i < LOG_HINTS + LOG_HINTS_LEFT; i++) {
        struct log_hint h = one->view.hints[i];
        if (h.offset < 0) continue;
        CHECK(h.position == h.offset * SMALL && h.base_offset == 0 && h.offset % 2 == 0);
        CHECK(h.offset == 24 || h.offset >= 16);
        found++;
    }
    CHECK(found == 1 + LOG_HINTS_LEFT);
    /* A reader at the end of its hint gets the tail without a lookup. */
    CHECK(reads(24, 1 << 20, 24 * SMALL, 40));
    uint32_t before = played.counts[PREAD];
    fill(1, 50);
    CHECK(reads(40, 1 << 20, 40 * SMALL, 41) && played.counts[PREAD] == before);
    /* As many readers as there are hints find theirs. */
    for (int64_t at = 1; at < 3 * LOG_HINTS; at += 3) CHECK(reads(at, SMALL, at * SMALL, at + 1));
    for (int i = 0; i < LOG_HINTS; i++) CHECK(one->view.hints[i].offset >= 0);
    let_go();
    open_one(config_of(1 << 20));
    short_of.starved = 1;
    CHECK(read_from(0, SMALL, LOG_BOUND_END, true) == 0 && got == SMALL);
    CHECK(short_of.starved == 0 && one->view.hints == NULL);
    let_go();
}

static void count_bytes(void) {
    open_one(config_of(10 * SMALL));
    CHECK(log_bytes_from(one, 0, LOG_BOUND_END) == 0);
    fill(25, 1);
    CHECK(log_bytes_from(one, 0, LOG_BOUND_END) == 25 * SMALL);
    CHECK(log_bytes_from(one, 10, LOG_BOUND_END) == 15 * SMALL);
    CHECK(log_bytes_from(one, 25, LOG_BOUND_END) == 0);
    CHECK(log_bytes_from(one, 13, LOG_BOUND_END) == 15 * SMALL); /* an estimate */
    CHECK(reads(10, 3 * SMALL, 0, 13));
    CHECK(log_bytes_from(one, 13, LOG_BOUND_END) == 12 * SMALL);
    CHECK(log_move_start(one, 12, NOW) == 0 && log_bytes_from(one, 3, LOG_BOUND_END) == 15 * SMALL);
    CHECK(log_lead_replicas(one, 1, 2) == 0);
    fill(3, 1);
    CHECK(log_bytes_from(one, 13, LOG_BOUND_HIGH_WATERMARK) == 18 * SMALL);
    CHECK(log_read(one,
                   &(struct log_read_request){.offset = 20,
                                              .bound = LOG_BOUND_HIGH_WATERMARK,
                                              .bytes_max = 1 << 20,
                                              .at_least_one = true},
                   &range) == 0);
    log_range_release(&range);
    CHECK(log_bytes_from(one, 13, LOG_BOUND_HIGH_WATERMARK) == 15 * SMALL);
    CHECK(log_bytes_from(one, 25, LOG_BOUND_HIGH_WATERMARK) == 0);
    CHECK(log_bytes_from(one, 13, LOG_BOUND_LAST_STABLE) == 15 * SMALL);
    let_go();
}

/* ---- faults ---- */

static void fail_to_read(void) {
    open_one(config_of(10 * SMALL));
    fill(25, 1);
    keep_open(20);
    played_fail(OPENAT, "000.log", EMFILE, 1);
    CHECK(read_from(3, 100, LOG_BOUND_END, true) == LOG_E_MEMORY && !log_dir_offline(dir));
    played_fail(PREAD, "000.log", ENOMEM, 1);
    CHECK(read_from(3, 100, LOG_BOUND_END, true) == LOG_E_MEMORY && !log_dir_offline(dir));
    /* A file deleted by another program. */
    keep_open(20);
    CHECK(unlinkat(dir->fd, file_of(0, "log"), 0) == 0);
    CHECK(log_read(one,
                   &(struct log_read_request){
                       .offset = 3, .bytes_max = 100, .at_least_one = true, .nowait = true},
                   &range) == LOG_E_WOULD_BLOCK);
    CHECK(read_from(3, 100, LOG_BOUND_END, true) == LOG_E_CORRUPT && !log_dir_offline(dir));
    log_append_lock(one);
    CHECK(log_read(one,
                   &(struct log_read_request){
                       .offset = 3, .bytes_max = 100, .at_least_one = true, .locked = true},
                   &range) == LOG_E_CORRUPT);
    log_append_unlock(one);
    played_fail(PREAD, "010.log", EIO, 1);
    CHECK(read_from(13, 100, LOG_BOUND_END, true) == LOG_E_IO && log_dir_failure(dir, NULL) == EIO);
    log_abandon(one);
    CHECK(read_from(13, 100, LOG_BOUND_END, true) == LOG_E_DELETED);
    let_go();
}

static void read_ranges(void) {
    uint8_t bytes[200];
    open_one(config_of(1 << 20));
    fill(3, 1);
    CHECK(log_read(
              one,
              &(struct log_read_request){.offset = 1, .bytes_max = 1 << 20, .at_least_one = true},
              &range) == 0);
    CHECK(log_range_cached(&range) == 1 && !log_range_is_cold(&range));
    played_fail(PREAD, ".log", EINTR, 2);
    CHECK(log_range_read(&range, bytes, SMALL, range.position) == SMALL);
    CHECK(get_i64(bytes) == 1);
    played_fail(PREAD, ".log", ENOMEM, 1);
    CHECK(log_range_read(&range, bytes, SMALL, 0) == -1 && !log_dir_offline(dir));
    played_fail(PREAD, ".log", EIO, 1);
    const char *call;
    CHECK(log_range_read(&range, bytes, SMALL, 0) == -1 && log_dir_failure(dir, &call) == EIO);
    CHECK(strcmp(call, "read") == 0);
    log_range_release(&range);
    log_range_release(&range);
    let_go();
}

/* ---- page cache only ---- */

/* The result of each cached read: at most this many bytes; after `whole` reads an error, 0: end
 * of file. */
static struct {
    size_t bytes_max;
    int whole, error, reads;
} cached = {.bytes_max = SIZE_MAX, .whole = INT32_MAX};

ssize_t __wrap_preadv2(int fd, const struct iovec *to, int count, off_t at, int flags);
ssize_t __wrap_preadv2(int fd, const struct iovec *to, int count, off_t at, int flags) {
    CHECK(count == 1 && flags == RWF_NOWAIT);
    if (cached.reads++ >= cached.whole) {
        errno = cached.error;
        return cached.error == 0 ? 0 : -1;
    }
    return pread(fd, to->iov_base, to->iov_len < cached.bytes_max ? to->iov_len : cached.bytes_max,
                 at);
}

/* Of the second batch. */
static bool reads_cached(size_t bytes_max, int whole, int error) {
    uint8_t bytes[SMALL + 1] = {0};
    cached.bytes_max = bytes_max;
    cached.whole = whole;
    cached.error = error;
    cached.reads = 0;
    bool read = log_range_read_cached(&range, bytes);
    CHECK(bytes[SMALL] == 0);
    return read && get_i64(bytes) == 1 && get_i32(bytes + 8) == SMALL - 12;
}

static void read_the_cache_alone(void) {
    open_one(config_of(1 << 20));
    fill(3, 1);
    CHECK(
        log_read(one,
                 &(struct log_read_request){.offset = 1, .bytes_max = SMALL, .at_least_one = true},
                 &range) == 0 &&
        range.length == SMALL);
    CHECK(reads_cached(SIZE_MAX, INT32_MAX, 0) && cached.reads == 1);
    CHECK(reads_cached(SMALL / 2 + 1, INT32_MAX, 0) && cached.reads == 2);
    /* The rest is cold, or truncated. */
    CHECK(!reads_cached(SMALL / 2, 1, EAGAIN) && !reads_cached(SMALL / 2, 1, 0));
    /* A file system without this information is read normally. */
    CHECK(reads_cached(SIZE_MAX, 0, EOPNOTSUPP));
    log_range_release(&range);
    let_go();
}

/* ---- times ---- */

static bool finds(int64_t time, int64_t offset, int64_t timestamp, int32_t epoch) {
    int64_t found, at;
    int32_t of;
    int result = log_offset_for_time(one, time, &found, &at, &of);
    if (result == 0) CHECK(found == -1 && at == -1 && of == -1);
    return result == 0 ? offset == -1 : result == 1 && found == offset && at == timestamp &&
                                            of == epoch;
}

static void find_times(void) {
    int64_t offset, timestamp;
    int32_t epoch;
    open_one(config_of(10 * SMALL));
    CHECK(finds(0, -1, -1, -1));
    CHECK(log_offset_of_max_time(one, &offset, &timestamp, &epoch) == 0 && offset == -1);
    for (int i = 0; i < 25; i++) {
        if (i == 13) CHECK(log_become_leader(one, 4, 1) == 0);
        CHECK(append((struct played_batch){.time = 100 + 10 * i, .value_bytes = 10}) == 0);
    }
    for (int i = 0; i < 25; i++)
        for (int before = 0; before < 10; before += 9)
            CHECK(finds(100 + 10 * i - before, i, 100 + 10 * i, i < 13 ? 0 : 4));
    CHECK(finds(0, 0, 100, 0) && finds(341, -1, -1, -1));
    CHECK(log_offset_of_max_time(one, &offset, &timestamp, &epoch) == 1);
    CHECK(offset == 24 && timestamp == 340 && epoch == 4);
    CHECK(log_move_start(one, 5, NOW) == 0 && finds(0, 5, 150, 0) && finds(150, 5, 150, 0));
    /* Later times at earlier offsets. */
    CHECK(append((struct played_batch){.time = 900, .value_bytes = 10}) == 0);
    CHECK(append((struct played_batch){.time = 50, .value_bytes = 10}) == 0);
    CHECK(finds(341, 25, 900, 4) && finds(901, -1, -1, -1));
    CHECK(log_offset_of_max_time(one, &offset, &timestamp, &epoch) == 1 && offset == 25);
    /* A segment deleted by another program; and shortages. */
    keep_open(20);
    played_fail(OPENAT, "010.log", EMFILE, 1);
    CHECK(log_offset_for_time(one, 210, &offset, &timestamp, &epoch) == LOG_E_MEMORY);
    for (int after = 0; after < 3; after++) {
        short_of.starved_after = after;
        short_of.starved = 1;
        CHECK(log_offset_for_time(one, 210, &offset, &timestamp, &epoch) == LOG_E_MEMORY);
        CHECK(offset == -1 && timestamp == -1 && epoch == -1 && short_of.starved == 0);
    }
    short_of.starved = 0;
    CHECK(!log_dir_offline(dir) && finds(210, 11, 210, 0));
    keep_open(20);
    CHECK(unlinkat(dir->fd, file_of(10, "log"), 0) == 0);
    CHECK(log_offset_for_time(one, 340, &offset, &timestamp, &epoch) == LOG_E_CORRUPT);
    CHECK(log_offset_of_max_time(one, &offset, &timestamp, &epoch) == LOG_E_CORRUPT);
    log_abandon(one);
    CHECK(log_offset_for_time(one, 340, &offset, &timestamp, &epoch) == LOG_E_DELETED);
    let_go();
}

static void tell_times_of_records(void) {
    struct inflater *in = inflater_new();
    int64_t time = -7;
    open_one(config_of(10 * SMALL));
    CHECK(log_time_of(one, 0, in, &time) == 0 && time == -7);
    for (int i = 0; i < 25; i++)
        CHECK(append((struct played_batch){.time = 100 + i, .value_bytes = 10}) == 0);
    for (int i = 0; i < 25; i++) CHECK(log_time_of(one, i, in, &time) == 1 && time == 100 + i);
    CHECK(log_time_of(one, 25, in, &time) == 0);
    CHECK(append((struct played_batch){.time = 500, .records = 3, .value_bytes = 10}) == 0);
    CHECK(log_time_of(one, 25, in, &time) == 1 && time == 500);
    struct log_config config = config_of(10 * SMALL);
    config.log_append_time = true;
    log_set_config(one, &config);
    CHECK(append((struct played_batch){.time = 1, .records = 3, .value_bytes = 10}) == 0);
    for (int i = 28; i < 31; i++) CHECK(log_time_of(one, i, in, &time) == 1 && time == NOW);
    played_fail(PREAD, ".log", EIO, 1);
    CHECK(log_time_of(one, 3, in, &time) == LOG_E_IO && log_dir_offline(dir));
    log_abandon(one);
    CHECK(log_time_of(one, 3, in, &time) == LOG_E_DELETED);
    inflater_free(in);
    let_go();
}

static void tell_epochs(void) {
    int32_t found;
    int64_t end;
    open_one(config_of(1 << 20));
    fill(3, 1);
    CHECK(log_become_leader(one, 4, 1) == 0);
    fill(3, 1);
    log_end_for_epoch(one, 0, &found, &end);
    CHECK(found == 0 && end == 3);
    log_end_for_epoch(one, 3, &found, &end);
    CHECK(found == 0 && end == 3);
    log_end_for_epoch(one, 4, &found, &end);
    CHECK(found == 4 && end == 6);
    log_end_for_epoch(one, 5, &found, &end);
    CHECK(found == -1 && end == -1);
    CHECK(log_epoch_of(one, 2) == 0 && log_epoch_of(one, 3) == 4 && log_last_epoch(one) == 4);
    /* A leader's own epoch counts before its first append. */
    CHECK(log_become_leader(one, 9, 1) == 0 && log_last_epoch(one) == 9);
    log_end_for_epoch(one, 9, &found, &end);
    CHECK(found == 9 && end == 6);
    log_end_for_epoch(one, 4, &found, &end);
    CHECK(found == 4 && end == 6);
    log_become_follower(one, 12);
    CHECK(log_last_epoch(one) == 9 && log_leader_epoch(one) == 12);
    let_go();
}

int main(int argc, char **argv) {
    static const struct scene scenes[] = {
        {"borders", read_borders},   {"within", read_within_batches},
        {"bounds", read_up_to_bounds}, {"hints", remember_readers},
        {"bytes", count_bytes},      {"fail", fail_to_read},
        {"ranges", read_ranges},     {"cached", read_the_cache_alone},
        {"times", find_times},       {"records", tell_times_of_records},
        {"epochs", tell_epochs}};
    return play_scenes(argc, argv, scenes, sizeof scenes / sizeof *scenes, true);
}
