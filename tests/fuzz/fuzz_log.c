/* Any bytes as the files of a partition: opened after a crash and after a clean stop, read,
 * searched, cleaned, truncated and appended to. Offsets stay ordered, readers make progress, and
 * a second start finds the same log as the first.
 *
 * Input: three bytes of flags, then parts: kind, length (16 bits), bytes. The high bit of a kind
 * corrects checksums, so that the fuzzer gets past them. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format/bytes.h"
#include "format/crc32c.h"
#include "log/log.h"
#include "compaction/pass.h"
#include "log_manager/log_manager.h"
#include "segment/producer_state.h"
#include "scratch.h"

enum {
    FUZZ_INFLATED_MAX = 1 << 20,
    FUZZ_READS_MAX = 200,
    FUZZ_NOW = 1000000
};

static const char *const NAMES[] = {
    "00000000000000000000.log",         "00000000000000000000.index",
    "00000000000000000000.timeindex",   "00000000000000000000.txnindex",
    "00000000000000000010.log",         "00000000000000000010.index",
    "00000000000000000010.timeindex",   "00000000000000000010.txnindex",
    "00000000000000000004.snapshot",    "00000000000000000010.snapshot",
    "leader-epoch-checkpoint",          "partition.metadata",
    "00000000000000000000.log.swap",    "00000000000000000000.index.cleaned",
    "09223372036854775800.log",         "09223372036854775807.snapshot",
    "00000000000000000000.log.deleted", "00000000000000000010.log.swap",
};
enum { FUZZ_NAMES = sizeof NAMES / sizeof *NAMES };

static struct log_dir *directory;
static char root[] = "/dev/shm/fuzz_log.XXXXXX";
static struct offset_map map;
static uint32_t number;
static uint64_t holes_before;

static void end(void) {
    log_dir_free(directory);
    clear(root, 1);
}

static void begin(void) {
    int error;
    if (directory != NULL) { return; }
    require(mkdtemp(root) != NULL && offset_map_init(&map, 1 << 14, 0.9));
    directory = log_dir_new(root, iopool_new(1, 64, NULL, NULL), &error);
    require(directory != NULL);
    atexit(end);
}

/* ---- the files ---- */

static void mend_batches(uint8_t *p, size_t len) {
    while (len >= BATCH_HEADER_BYTES) {
        size_t batch = (size_t)get_u32(p + 8) + BATCH_LOG_OVERHEAD;
        if (batch < BATCH_HEADER_BYTES || batch > len) {
            batch = len;
            put_i32(p + 8, (int32_t)(len - BATCH_LOG_OVERHEAD));
        }
        p[16] = 2;
        put_u32(p + 17, crc32c_extend(0, p + 21, batch - 21));
        p += batch;
        len -= batch;
    }
}

static void mend_snapshot(uint8_t *p, size_t len) {
    if (len < PRODUCERS_HEAD_BYTES) { return; }
    put_i16(p, 1);
    put_i32(p + 6, (int32_t)((len - PRODUCERS_HEAD_BYTES) / PRODUCERS_ENTRY_BYTES));
    put_u32(p + 2, crc32c_extend(0, p + 6, len - 6));
}

static void write_file(const char *partition, const char *name, const uint8_t *p, size_t len,
                       int mend) {
    char path[512];
    uint8_t *bytes = malloc(len + 1);
    require(bytes != NULL);
    memcpy(bytes, p, len);
    if (mend && strstr(name, ".log") != NULL) { mend_batches(bytes, len); }
    if (mend && strstr(name, ".snapshot") != NULL) { mend_snapshot(bytes, len); }
    snprintf(path, sizeof path, "%s/%s/%s", root, partition, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    require(fd >= 0 && write(fd, bytes, len) == (ssize_t)len);
    close(fd);
    free(bytes);
}

static void write_files(const char *partition, const uint8_t *p, size_t len) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, partition);
    require(mkdir(path, 0755) == 0);
    while (len >= 3) {
        size_t part = (size_t)p[1] << 8 | p[2];
        if (part > len - 3) { part = len - 3; }
        write_file(partition, NAMES[(p[0] & 127) % FUZZ_NAMES], p + 3, part, p[0] & 128);
        p += 3 + part;
        len -= 3 + part;
    }
}

/* ---- operations ---- */

static uint64_t holes(void) {
    struct log_dir_stats figures;
    log_dir_read_stats(directory, &figures);
    return figures.damages_kept;
}

static void check_ends(struct log *log) {
    int64_t start = log_start_offset(log), stable = log_last_stable_offset(log);
    require(start >= 0 && start <= log_end_offset(log) && stable <= log_high_watermark(log));
    require(log_high_watermark(log) <= log_end_offset(log) && log_size_bytes(log) >= 0);
}

/* Every offset can be read; results are whole batches, and the next read continues after them. */
static void read_all(struct log *log, enum log_bound bound) {
    int64_t at = log_start_offset(log), upper = log_end_offset(log);
    int64_t bound_end = bound == LOG_BOUND_END ? upper : log_last_stable_offset(log);
    for (int i = 0; i < FUZZ_READS_MAX && at < upper; i++) {
        struct log_range range;
        int result =
            log_read(log,
                     &(struct log_read_request){
                         .offset = at, .bound = bound, .bytes_max = 300, .at_least_one = true},
                     &range);
        require(result <= 0);
        if (result == 0 && range.length > 0) {
            uint8_t *bytes = malloc((size_t)range.length);
            struct batch_header h;
            require(log_range_read(&range, bytes, (size_t)range.length, range.position) ==
                    range.length);
            /* Bytes at the tail, and those found by a wrong index, are sent without a check. */
            if (range.next_offset < bound_end && holes() == holes_before) {
                require(batch_parse(bytes, (size_t)range.length, &h) == 0);
                require(batch_bytes(&h) <= (size_t)range.length);
            }
            free(bytes);
            (void)log_range_is_cold(&range);
            (void)log_range_warm(&range);
            at = range.next_offset > at ? range.next_offset : at + 1;
        } else {
            at += 1;
        }
        log_range_release(&range);
        if (log_read(log,
                     &(struct log_read_request){.offset = at,
                                                .bound = bound,
                                                .bytes_max = 300,
                                                .at_least_one = true,
                                                .nowait = true},
                     &range) == 0) {
            log_range_release(&range);
        }
    }
}

static void look_up(struct log *log, int64_t target) {
    struct inflater *in = inflater_new();
    struct log_aborted_list aborted;
    int64_t offset, timestamp;
    int32_t epoch;
    (void)log_offset_for_time(log, target, &offset, &timestamp, &epoch);
    (void)log_offset_of_max_time(log, &offset, &timestamp, &epoch);
    (void)log_time_of(log, log_start_offset(log), in, &timestamp);
    (void)log_aborted_between(log, 0, INT64_MAX, 0, UINT32_MAX, &aborted);
    free(aborted.at);
    (void)log_aborted_between(log, target, target + 10, target + 1, 1, &aborted);
    free(aborted.at);
    log_end_for_epoch(log, (int32_t)target, &epoch, &offset);
    (void)log_epoch_of(log, target);
    (void)log_bytes_from(log, target, LOG_BOUND_END);
    inflater_free(in);
}

static void append(struct log *log) {
    static const uint8_t record[] = {16, 0, 0, 0, 2, 'k', 2, 'v', 0};
    uint8_t batch[BATCH_HEADER_BYTES + 9] = {0};
    const struct batch_rules rules = {.batch_bytes_max = 1 << 20, .walk_records = false};
    struct batch_summary summary;
    struct log_appended out;
    put_i32(batch + 8, (int32_t)sizeof batch - BATCH_LOG_OVERHEAD);
    batch[16] = 2;
    put_i64(batch + 43, -1);
    put_i16(batch + 51, -1);
    put_i32(batch + 53, -1);
    put_i32(batch + 57, 1);
    memcpy(batch + BATCH_HEADER_BYTES, record, sizeof record);
    put_u32(batch + 17, crc32c_extend(0, batch + 21, sizeof batch - 21));
    require(batch_check(batch, sizeof batch, &rules, NULL, &summary) == 0);
    int64_t before = log_end_offset(log);
    if (log_become_leader(log, 7, 1) != 0) { return; }
    int result = log_append(log, batch, sizeof batch, &summary, 7, FUZZ_NOW, &out);
    if (result == 0) { require(out.base_offset == before && log_end_offset(log) == before + 1); }
}

static void clean(struct log *log) {
    const struct log_clean_rules rules = {
        .now_ms = FUZZ_NOW, .segment_bytes = 2000, .inflated_bytes_max = FUZZ_INFLATED_MAX};
    struct log_clean *pass = NULL;
    offset_map_clear(&map);
    if (log_clean_begin(log, &map, &rules, &pass) != 0) { return; }
    while (log_clean_step(pass, 2000) == 1) {}
    log_clean_end(pass);
}

static void use(struct log *log, uint8_t flags, uint8_t where) {
    check_ends(log);
    read_all(log, LOG_BOUND_END);
    look_up(log, where);
    append(log);
    check_ends(log);
    if (flags & 8) { (void)log_move_start(log, log_start_offset(log) + where % 16, FUZZ_NOW); }
    if (flags & 16) { (void)log_truncate(log, log_start_offset(log) + where % 16, -1); }
    check_ends(log);
    if (flags & 32 && log_seal(log, FUZZ_NOW) == 0) { clean(log); }
    if (flags & 64) { (void)log_apply_retention(log, FUZZ_NOW); }
    append(log);
    check_ends(log);
    read_all(log, LOG_BOUND_LAST_STABLE);
}

/* Stop the log as brokerd does, and restart it from the saved state. */
static void restart(struct log *log, const char *partition, const struct log_config *config) {
    static const uint8_t id[16] = {1};
    int64_t triples[3 * 16];
    struct log_checkpoint checkpoint = {.log_start_offset = log_start_offset(log),
                                        .high_watermark = log_high_watermark(log),
                                        .log_end_offset = log_end_offset(log),
                                        .last_epoch = log_last_epoch(log),
                                        .clean = true,
                                        .segments = triples};
    int closed = log_close_clean(log, FUZZ_NOW);
    checkpoint.recovery_point = log_recovery_point(log);
    checkpoint.segment_count = log_segments(log, triples, 16);
    log_abandon(log);
    log_release(log);
    if (closed != 0 || checkpoint.segment_count > 16) { return; }
    for (int clean_stop = 1; clean_stop >= 0; clean_stop--) {
        checkpoint.clean = clean_stop;
        int result = log_open_as(directory, partition, id, config, &checkpoint, FUZZ_NOW, &log);
        require(result == 0);
        require(log_end_offset(log) == checkpoint.log_end_offset);
        read_all(log, LOG_BOUND_END);
        look_up(log, 5);
        check_ends(log);
        log_abandon(log);
        log_release(log);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t id[16] = {1};
    if (size < 3) { return 0; }
    begin();
    char partition[32], path[512];
    snprintf(partition, sizeof partition, "t-%u", number++);
    holes_before = holes();
    write_files(partition, data + 3, size - 3);
    const struct log_config config = {.segment_ms = 1 << 30,
                                      .retention_ms = -1,
                                      .retention_bytes = data[0] & 64 ? 500 : -1,
                                      .flush_messages = INT64_MAX,
                                      .flush_ms = INT64_MAX,
                                      .segment_bytes = 2000,
                                      .segment_index_bytes = 1 << 20,
                                      .index_interval_bytes = 100,
                                      .max_message_bytes = 1 << 20,
                                      .compression_codec = -1,
                                      .inflated_bytes_max = FUZZ_INFLATED_MAX,
                                      .cleanup_delete = true,
                                      .cleanup_compact = data[0] & 2,
                                      .producer_id_expiration_ms = INT64_MAX};
    const struct log_checkpoint checkpoint = {.recovery_point = data[0] & 4 ? 1 << 20 : data[1],
                                              .log_start_offset = data[0] & 1 ? data[1] % 16 : -1,
                                              .high_watermark = -1};
    struct log *log;
    int result = log_open_as(directory, partition, id, &config, &checkpoint, FUZZ_NOW, &log);
    if (result == 0) {
        use(log, data[0], data[2]);
        restart(log, partition, &config);
    }
    struct log_damage damages[8];
    while (log_dir_fetch_damages(directory, damages, 8) > 0) {}
    const char *call = NULL;
    int failure = log_dir_failure(directory, &call);
    if (failure != 0) { fprintf(stderr, "errno %d in %s\n", failure, call); }
    require(failure == 0);
    snprintf(path, sizeof path, "%s/%s", root, partition);
    clear(path, 1);
    return 0;
}
