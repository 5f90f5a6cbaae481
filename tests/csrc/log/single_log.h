/* One log in a simulated directory, and functions to append to it. */
#ifndef PYLOG_SINGLE_LOG_H
#define PYLOG_SINGLE_LOG_H

#include "log_simulation.h"
#include "os/mailbox.h"

enum { NOW = 100000, SMALL = 61 + 7 + 10 /* bytes of a batch with a value of 10 */ };

static struct iopool *pool;
static struct log_dir *dir;
static struct log *one;

static inline struct log_checkpoint from_nothing(void) {
    return (struct log_checkpoint){.log_start_offset = -1, .high_watermark = -1, .last_epoch = -1};
}

static inline int open_with(struct log_config config, struct log_checkpoint checkpoint) {
    static const uint8_t id[16] = {1};
    return log_open(dir, "t", 0, id, &config, &checkpoint, NOW, &one);
}

/* Open a leader without other replicas. */
static inline void open_one(struct log_config config) {
    CHECK(open_with(config, from_nothing()) == 0);
    CHECK(log_become_leader(one, 0, 1) == 0);
}

static inline void drop_asked(void) {
    played_asked(dir);
    played_asked_some_time(dir);
}

static inline void let_go(void) {
    drop_asked();
    CHECK(atomic_load(&one->references) == 1);
    log_release(one);
    one = NULL;
}

/* As if the process was killed and another one opened the files. */
static inline void leave(void) {
    log_abandon(one);
    let_go();
}

static struct log_appended appended;
static uint8_t made[1 << 13];

static inline int append_as(struct played_batch b, int32_t epoch) {
    struct batch_summary summary = {0};
    size_t len = played_make(made, b);
    CHECK(batch_parse(made, len, &summary.header) == 0);
    return log_append(one, made, len, &summary, epoch, NOW, &appended);
}

static inline int append(struct played_batch b) { return append_as(b, -1); }

/* Append `count` small batches of one record, a millisecond apart from `time` on. */
static inline void fill(int count, int64_t time) {
    for (int i = 0; i < count; i++)
        CHECK(append((struct played_batch){.time = time + i, .value_bytes = 10}) == 0);
}

/* Append a marker of the transaction coordinator. */
static inline int append_marker(int64_t producer, int16_t epoch, bool commit, int32_t coordinator) {
    struct batch_summary summary = {0};
    const uint8_t record[] = {32, 0, 0, 0, 8, 0, 0, 0, (uint8_t)commit, 12, 0, 0, 0, 0, 0,
                              (uint8_t)coordinator, 0};
    size_t len = scene_batch(made, record, sizeof record, NOW, producer, -1);
    put_i16(made + BATCH_PRODUCER_EPOCH_AT, epoch);
    put_i16(made + BATCH_ATTRIBUTES_AT, BATCH_TRANSACTIONAL | BATCH_CONTROL);
    scene_seal(made, len);
    CHECK(batch_parse(made, len, &summary.header) == 0);
    return log_append(one, made, len, &summary, -1, NOW, &appended);
}

/* Append a leader's batch with its offsets. */
static inline int follow(struct played_batch b, size_t *taken) {
    size_t len = played_make(made, b);
    return log_append_as_follower(one, made, len, NOW, taken);
}

/* Return the base offsets of the segments as text. */
static inline const char *bases(void) {
    static char text[512];
    int64_t triples[3 * 32];
    uint32_t count = log_segments(one, triples, 32);
    size_t n = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < count && i < 32; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%lld", i > 0 ? " " : "",
                              (long long)triples[3 * i]);
    return text;
}

static inline bool segments_begin(const char *expected) { return strcmp(bases(), expected) == 0; }

static inline bool ends_are(int64_t start, int64_t stable, int64_t high, int64_t end) {
    return log_start_offset(one) == start && log_last_stable_offset(one) == stable &&
           log_high_watermark(one) == high && log_end_offset(one) == end;
}

static inline const char *file_of(int64_t base, const char *extension) {
    static char path[64];
    snprintf(path, sizeof path, "t-0/%020lld.%s", (long long)base, extension);
    return path;
}

/* Return the number of bytes of a read from `offset`, or -1 if it fails. */
static inline int32_t read_bytes(int64_t offset, int32_t bytes_max, struct log_range *out) {
    int result = log_read(
        one,
        &(struct log_read_request){.offset = offset, .bytes_max = bytes_max, .at_least_one = true},
        out);
    int32_t length = result == 0 ? out->length : result;
    log_range_release(out);
    return length;
}

struct scene {
    const char *name;
    void (*run)(void);
};

/* `still`: without the flusher. */
static inline int play_scenes(int argc, char **argv, const struct scene *scenes, size_t count,
                              bool still) {
    bool found = false;
    CHECK(argc == 3);
    pool = iopool_new(1, 16, NULL, NULL);
    dir = played_directory(argv[1], pool);
    if (still) played_still(dir);
    int before = played_descriptors();
    for (size_t i = 0; i < count; i++)
        if (strcmp(argv[2], scenes[i].name) == 0) {
            scenes[i].run();
            found = true;
        }
    CHECK(found && played_descriptors() == before);
    log_dir_free(dir);
    iopool_free(pool);
    puts("ok");
    return 0;
}

#endif
