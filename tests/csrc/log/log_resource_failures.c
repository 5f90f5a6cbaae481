/* A log's life in which one call after the other lacks a resource. Rejected operations are
 * retried, and the final state equals that of a life without shortages. Usage:
 * log_resource_failures DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "single_log.h"

enum { TRIES = 6, STATE_BYTES = 4096 };

static const char *step; /* for core dumps */

/* A shortage is reported as such, and a retry eventually succeeds. */
static bool again(int result, int tried) {
    if (result == 0) return false;
    if (result != LOG_E_FULL && result != LOG_E_MEMORY)
        fprintf(stderr, "%s: %d, %s\n", step, result, log_dir_offline(dir) ? "offline" : "");
    CHECK(result == LOG_E_FULL || result == LOG_E_MEMORY);
    CHECK(tried < TRIES && !log_dir_offline(dir));
    return true;
}

#define INSIST(call)                                                                               \
    do {                                                                                           \
        int tried = 0;                                                                             \
        step = #call;                                                                              \
        while (again(call, tried)) tried++;                                                        \
    } while (0)

static struct log_config config;

static void append_some(int count, int64_t time) {
    for (int i = 0; i < count; i++)
        INSIST(append((struct played_batch){.time = time + i, .value_bytes = 10}));
}

static void transact(int64_t producer, int32_t sequence, bool commit) {
    struct played_batch b = {.time = NOW, .producer = producer + 1, .sequence = sequence,
                             .attributes = BATCH_TRANSACTIONAL};
    INSIST(append(b));
    INSIST(append_marker(producer, 0, commit, 1));
}

static int open_clean(const int64_t *triples, uint32_t count, int64_t end, int32_t epoch) {
    struct log_checkpoint c = {.clean = true, .segments = triples, .segment_count = count,
                               .log_end_offset = end, .log_start_offset = 3, .high_watermark = end,
                               .last_epoch = epoch, .recovery_point = end};
    return open_with(config, c);
}

static int open_torn(int64_t point) {
    struct log_checkpoint c = from_nothing();
    c.log_start_offset = 3;
    c.recovery_point = point;
    return open_with(config, c);
}

/* Lookups may be rejected too; -1 means that the result is not available now. */
static int look_for_time(int64_t time, int64_t *offset) {
    int64_t found;
    int32_t epoch;
    int result = log_offset_for_time(one, time, offset, &found, &epoch);
    return result < 0 ? result : 0;
}

static int read_on(int64_t offset, struct log_range *range) {
    return log_read(
        one,
        &(struct log_read_request){.offset = offset, .bytes_max = 1 << 20, .at_least_one = true},
        range);
}

static struct log_aborted aborted[8];
static uint32_t aborted_count;
static int look_for_aborted(void) {
    struct log_aborted_list found;
    int result = log_aborted_between(one, 0, 100, 0, 8, &found);
    aborted_count = found.count;
    if (found.count > 0) memcpy(aborted, found.at, found.count * sizeof *aborted);
    free(found.at);
    return result;
}

/* Describe the whole log as text: boundaries, segments, batches, epochs, aborts. */
static void describe(char *text) {
    size_t n = (size_t)snprintf(text, STATE_BYTES, "%lld %lld %lld %lld; %s;",
                                (long long)log_start_offset(one),
                                (long long)log_last_stable_offset(one),
                                (long long)log_high_watermark(one), (long long)log_end_offset(one),
                                bases());
    for (int64_t at = log_start_offset(one); at < log_end_offset(one);) {
        static uint8_t bytes[1 << 16];
        struct log_range range;
        INSIST(read_on(at, &range));
        CHECK(range.length > 0 && range.length < (int32_t)sizeof bytes);
        CHECK(pread(range.fd, bytes, (size_t)range.length, range.position) == range.length);
        n += (size_t)snprintf(text + n, STATE_BYTES - n, " %lld+%d:%08x", (long long)at,
                              range.length, crc32c_extend(0, bytes, (size_t)range.length));
        at = range.next_offset;
        log_range_release(&range);
    }
    for (int32_t epoch = 0; epoch < 5; epoch++) {
        int32_t found;
        int64_t end;
        log_end_for_epoch(one, epoch, &found, &end);
        n += (size_t)snprintf(text + n, STATE_BYTES - n, " %d/%lld", found, (long long)end);
    }
    INSIST(look_for_aborted());
    for (uint32_t i = 0; i < aborted_count; i++)
        n += (size_t)snprintf(text + n, STATE_BYTES - n, " %lld@%lld",
                              (long long)aborted[i].producer_id,
                              (long long)aborted[i].first_offset);
    size_t bytes;
    uint8_t *producers = NULL;
    INSIST((producers = log_copy_producers(one, NOW, &bytes)) == NULL ? LOG_E_MEMORY : 0);
    for (size_t i = 10; i < bytes; i += 46)
        n += (size_t)snprintf(text + n, STATE_BYTES - n, " p%lld:%d:%lld",
                              (long long)get_i64(producers + i), get_i32(producers + i + 10),
                              (long long)get_i64(producers + i + 14));
    free(producers);
    CHECK(n < STATE_BYTES);
}

/* Before and after a clean stop, and after a kill: each state on a line. */
static void live(char *states) {
    int64_t triples[3 * 32], offset;
    config = scene_config(4 * SMALL, 100);
    INSIST(open_torn(0));
    INSIST(log_become_leader(one, 0, 1));
    append_some(6, 1000);
    transact(7, 0, true);
    transact(7, 1, false);
    INSIST(log_flush(one));
    INSIST(log_become_leader(one, 2, 1));
    append_some(6, 2000);
    INSIST(log_truncate(one, 14, -1));
    append_some(3, 2500);
    transact(8, 0, false);
    INSIST(log_move_start(one, 3, NOW));
    INSIST(look_for_time(2001, &offset));
    INSIST(log_flush(one));
    /* A flush without space may report the error two flushes later. */
    INSIST(log_close_clean(one, NOW));
    uint32_t count = log_segments(one, triples, 32);
    int64_t end = log_end_offset(one);
    int32_t epoch = log_last_epoch(one);
    describe(states);
    leave();
    INSIST(open_clean(triples, count, end, epoch));
    INSIST(log_become_leader(one, 4, 1));
    append_some(5, 3000);
    INSIST(look_for_time(3001, &offset));
    INSIST(log_flush(one));
    int64_t point = log_recovery_point(one);
    append_some(2, 3500);
    describe(states + STATE_BYTES);
    leave();
    INSIST(open_torn(point));
    INSIST(log_become_leader(one, 4, 1));
    append_some(1, 4000);
    describe(states + 2 * STATE_BYTES);
    leave();
}

static void empty(void) {
    played_remove(dir->path, "t-0");
    /* Execute removals at the end, because a re-created file may have the same name. */
    while (dir->removals != NULL) {
        struct log_dir_removal *r = dir->removals;
        dir->removals = r->next;
        free(r);
    }
}

static char whole[3][STATE_BYTES], lived[3][STATE_BYTES];

static void check_life(int at) {
    for (int i = 0; i < 3; i++) {
        if (strcmp(whole[i], lived[i]) != 0)
            fprintf(stderr, "at %d, state %d\n%s\n%s\n", at, i, whole[i], lived[i]);
        CHECK(strcmp(whole[i], lived[i]) == 0);
    }
    empty();
}

/* Each call of a kind in turn fails; a descriptor is requested up to three times. */
static void go_short(enum played_call call, const char *of, int error, int times, int step_by) {
    live(whole[0]);
    empty();
    for (int at = 0;; at += step_by) {
        played.faults[call] = (struct played_fault){error, at, times, of, 0};
        live(lived[0]);
        bool met = played.faults[call].skip == 0 && played.faults[call].times < times;
        played_heal();
        check_life(at);
        if (!met) break;
        CHECK(at < 1000);
    }
}

static void short_of_descriptors(void) { go_short(OPENAT, NULL, EMFILE, 3, 1); }
static void short_of_room(void) { go_short(PWRITE, NULL, ENOSPC, 1, 1); }
static void short_of_cuts(void) { go_short(FTRUNCATE, NULL, ENOSPC, 1, 1); }
static void short_of_names(void) { go_short(RENAMEAT, NULL, ENOSPC, 1, 1); }
static void short_of_pages(void) { go_short(PREAD, NULL, ENOMEM, 1, 2); }
static void short_of_folders(void) { go_short(MKDIRAT, NULL, ENOSPC, 1, 1); }

static void short_of_memory(void) {
    live(whole[0]);
    empty();
    for (int at = 0;; at++) {
        short_of.starved_after = at;
        short_of.starved = 1;
        live(lived[0]);
        bool met = short_of.starved == 0;
        short_of.starved = 0;
        check_life(at);
        if (!met) break;
    }
}

int main(int argc, char **argv) {
    static const struct scene scenes[] = {
        {"descriptors", short_of_descriptors},
        {"room", short_of_room},
        {"cuts", short_of_cuts},
        {"names", short_of_names},
        {"pages", short_of_pages},
        {"memory", short_of_memory},
        {"folders", short_of_folders}};
    return play_scenes(argc, argv, scenes, sizeof scenes / sizeof *scenes, true);
}
