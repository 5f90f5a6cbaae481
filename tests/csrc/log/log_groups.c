/* Group appends compared with the same single appends, to two logs that must be identical to the
 * last byte. Usage: log_groups DIRECTORY alike|writes|threads SEED. Exits with 0, or with 1 and
 * a line on stderr. */
#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log_manager/log_manager.h"
#include "log_scenes.h"
#include "os/disk.h"

enum {
    GROUP_MAX = 12,
    ROUNDS = 120,
    APPENDERS = 3,
    NOW = 1000000,
    PRODUCERS = 3,
    RECORD_MAX = 200
};

static uint64_t state;
static _Atomic off_t room_to = INT64_MAX; /* file size limit: writes beyond it fail */
static _Atomic int writes;

static uint32_t random_below(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

static ssize_t full_pwrite(int fd, const void *bytes, size_t len, off_t at) {
    off_t room = room_to - at;
    writes++;
    if (room >= (off_t)len) return pwrite(fd, bytes, len, at);
    if (room > 0) return pwrite(fd, bytes, (size_t)room, at);
    errno = ENOSPC;
    return -1;
}

/* A log with its own directory. */
struct place {
    struct iopool *pool;
    struct log_dir *dir;
    struct log *log;
};

static void open_place(struct place *p, const char *path, const struct log_config *config) {
    static struct disk disk;
    const struct log_checkpoint checkpoint = {.log_start_offset = -1, .high_watermark = -1};
    static const uint8_t id[16] = {1};
    int error;
    disk = *disk_of(DISK_SYSTEM);
    disk.pwrite = full_pwrite;
    p->pool = iopool_new(1, 16, NULL, NULL);
    p->dir = log_dir_new(path, p->pool, &error);
    CHECK(p->dir != NULL);
    log_dir_set_disk(p->dir, &disk);
    CHECK(log_open(p->dir, "t", 0, id, config, &checkpoint, NOW, &p->log) == 0);
    CHECK(log_become_leader(p->log, 3, 1) == 0);
}

static void close_place(struct place *p) {
    CHECK(log_close_clean(p->log, NOW) == 0);
    log_release(p->log);
    log_dir_free(p->dir);
    iopool_free(p->pool);
}

/* Make a batch of some records, mostly the next one of its producer; return its size. */
static size_t make_batch(uint8_t *at, struct batch_summary *summary, int32_t *next, int64_t time) {
    uint8_t record[RECORD_MAX] = {0};
    int64_t producer = (int64_t)random_below(PRODUCERS + 2) - 1;
    int32_t records = 1 + (int32_t)random_below(3), sequence = -1;
    if (producer >= PRODUCERS) producer = -1;
    if (producer >= 0) {
        sequence = next[producer];
        uint32_t kind = random_below(12);
        if (kind == 0) sequence = (int32_t)((sequence + INT64_C(7)) & INT32_MAX); /* a gap */
        if (kind == 1 && sequence > 0) sequence -= 1; /* possibly a duplicate */
        if (kind > 0 && sequence == next[producer])
            next[producer] = (int32_t)(((int64_t)sequence + records) & INT32_MAX);
    }
    size_t len = scene_batch(at, record, 8 + random_below(RECORD_MAX - 8), time, producer,
                             sequence);
    put_i32(at + BATCH_LAST_OFFSET_DELTA_AT, records - 1);
    put_i32(at + BATCH_RECORD_COUNT_AT, records);
    if (random_below(20) == 0) put_i16(at + BATCH_PRODUCER_EPOCH_AT, 0);
    scene_seal(at, len);
    memset(summary, 0, sizeof *summary);
    CHECK(batch_parse(at, len, &summary->header) == 0);
    return len;
}

static void check_alike(const struct log_append_part *p, int result,
                        const struct log_appended *out) {
    CHECK(p->result == result);
    if (result != 0) return;
    CHECK(p->out.base_offset == out->base_offset && p->out.last_offset == out->last_offset);
    CHECK(p->out.append_time_ms == out->append_time_ms && p->out.duplicate == out->duplicate);
    CHECK(p->out.log_start_offset == out->log_start_offset);
    CHECK(p->out.leadership_losses == out->leadership_losses);
}

static void append_both(struct log *together, struct log *apart, int32_t *next, int64_t now) {
    uint8_t one[GROUP_MAX * (BATCH_HEADER_BYTES + RECORD_MAX) * 2], other[sizeof one];
    struct log_append_part parts[GROUP_MAX];
    struct batch_summary summaries[GROUP_MAX];
    uint32_t count = 1 + random_below(GROUP_MAX);
    size_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        size_t len = make_batch(one + used, &summaries[i], next, now + random_below(50));
        parts[i] = (struct log_append_part){
            .batch = one + used, .len = len, .summary = &summaries[i], .result = 1};
        used += len + (random_below(6) == 0 ? 5 : 0); /* sometimes with a gap */
    }
    memcpy(other, one, used);
    log_append_batches(together, parts, count, -1, now);
    for (uint32_t i = 0; i < count; i++) {
        struct log_appended out;
        uint8_t *batch = other + (parts[i].batch - one);
        int result = log_append(apart, batch, parts[i].len, &summaries[i], -1, now, &out);
        check_alike(&parts[i], result, &out);
    }
    CHECK(log_end_offset(together) == log_end_offset(apart));
    CHECK(log_high_watermark(together) == log_high_watermark(apart));
    CHECK(log_size_bytes(together) == log_size_bytes(apart));
}

static void alike(const char *path) {
    struct log_config config = scene_config(600 + (int32_t)random_below(20000),
                                            1 + (int32_t)random_below(600));
    if (random_below(3) == 0) config.segment_index_bytes = 60; /* full before the segment is */
    if (random_below(3) == 0) config.segment_ms = 2000;
    config.log_append_time = random_below(4) == 0;
    char names[2][300];
    struct place places[2];
    int32_t next[PRODUCERS] = {0, INT32_MAX - 30}; /* the second wraps */
    for (int i = 0; i < 2; i++) {
        snprintf(names[i], sizeof names[i], "%s/%s", path, i == 0 ? "together" : "apart");
        CHECK(mkdir(names[i], 0700) == 0);
        open_place(&places[i], names[i], &config);
    }
    for (int round = 0; round < ROUNDS; round++) {
        if (round % 20 == 10) room_to = 200 + (off_t)random_below(2000); /* the disk is full */
        if (round % 20 == 14) room_to = INT64_MAX;
        if (round == 77)
            for (int i = 0; i < 2; i++) log_become_follower(places[i].log, 4);
        if (round == 79)
            for (int i = 0; i < 2; i++) CHECK(log_become_leader(places[i].log, 5, 1) == 0);
        append_both(places[0].log, places[1].log, next, NOW + round * 100);
    }
    room_to = INT64_MAX;
    CHECK(log_end_offset(places[0].log) > ROUNDS);
    for (int i = 0; i < 2; i++) close_place(&places[i]);
}

/* ---- number of writes ---- */

/* Consecutive sequences of one producer, ended by -1. */
struct sent {
    int writes;
    int32_t sequences[6];
    int results[5];
};

static void count_writes(const char *path) {
    static const struct sent all[] = {
        {1, {0, 1, 2, 3, -1}, {0, 0, 0, 0}},
        /* Repeated, then continued: duplicates are not written. */
        {1, {2, 3, 4, 5, -1}, {0, 0, 0, 0}},
        /* A batch without its predecessor is rejected, and so is the one that follows it. */
        {1, {6, 8, 9, -1}, {0, LOG_E_SEQUENCE, LOG_E_SEQUENCE}},
        {2, {7, 9, 8, 9, -1}, {0, LOG_E_SEQUENCE, 0, 0}},
        {2, {10, 10, 11, -1}, {0, 0, 0}},
    };
    const struct log_config config = scene_config(1 << 20, 1 << 20);
    struct place place;
    open_place(&place, path, &config);
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        uint8_t bytes[5 * 80];
        struct log_append_part parts[5];
        struct batch_summary summaries[5];
        uint32_t count = 0;
        size_t used = 0;
        memset(summaries, 0, sizeof summaries);
        for (; all[n].sequences[count] >= 0; count++) {
            size_t len = scene_batch(bytes + used, (const uint8_t[]){12, 0, 0, 0, 1, 1, 0}, 7, NOW,
                                     7, all[n].sequences[count]);
            CHECK(batch_parse(bytes + used, len, &summaries[count].header) == 0);
            parts[count] = (struct log_append_part){.batch = bytes + used,
                                                    .len = len,
                                                    .summary = &summaries[count],
                                                    .result = 1};
            used += len;
        }
        /* The first batch of a segment is written by itself: its time is the segment's. */
        int expected = all[n].writes + (n == 0);
        writes = 0;
        log_append_batches(place.log, parts, count, -1, NOW);
        CHECK(writes == expected);
        for (uint32_t i = 0; i < count; i++) {
            CHECK(parts[i].result == all[n].results[i]);
            CHECK(parts[i].result != 0 || parts[i].out.base_offset == all[n].sequences[i]);
        }
    }
    CHECK(log_end_offset(place.log) == 12);
    close_place(&place);
}

/* ---- concurrent threads ---- */

static void *append(void *argument) {
    struct log *log = argument;
    for (int round = 0; round < ROUNDS; round++) {
        uint8_t bytes[4 * 80];
        struct log_append_part parts[4];
        struct batch_summary summaries[4];
        memset(summaries, 0, sizeof summaries);
        size_t used = 0;
        for (int i = 0; i < 4; i++) {
            size_t len = scene_batch(bytes + used, (const uint8_t[]){12, 0, 0, 0, 1, 1, 0}, 7, NOW,
                                     -1, -1);
            CHECK(batch_parse(bytes + used, len, &summaries[i].header) == 0);
            parts[i] = (struct log_append_part){
                .batch = bytes + used, .len = len, .summary = &summaries[i], .result = 1};
            used += len;
        }
        log_append_batches(log, parts, 4, -1, NOW);
        for (int i = 0; i < 4; i++) {
            CHECK(parts[i].result == 0);
            CHECK(i == 0 || parts[i].out.base_offset > parts[i - 1].out.base_offset);
        }
    }
    return NULL;
}

static void threads(const char *path) {
    const struct log_config config = scene_config(4000, 200);
    struct place place;
    pthread_t appenders[APPENDERS];
    open_place(&place, path, &config);
    for (int i = 0; i < APPENDERS; i++)
        CHECK(pthread_create(&appenders[i], NULL, append, place.log) == 0);
    const int64_t end = (int64_t)APPENDERS * ROUNDS * 4;
    for (int64_t at = 0; at < end;) { /* concurrent reads see whole batches, in order */
        struct log_range range;
        uint8_t bytes[4096];
        CHECK(log_read(place.log,
                       &(struct log_read_request){.offset = at,
                                                  .bound = LOG_BOUND_HIGH_WATERMARK,
                                                  .bytes_max = sizeof bytes,
                                                  .at_least_one = true},
                       &range) == 0);
        CHECK(range.length == 0 ||
              pread(range.fd, bytes, (size_t)range.length, range.position) == range.length);
        for (int32_t p = 0; p < range.length; at++) {
            struct batch_header h;
            CHECK(batch_parse(bytes + p, (size_t)(range.length - p), &h) == 0);
            CHECK(h.base_offset == at && batch_check_crc(bytes + p, &h) == 0);
            p += (int32_t)batch_bytes(&h);
        }
        log_range_release(&range);
        CHECK(log_flush(place.log) == 0);
    }
    for (int i = 0; i < APPENDERS; i++) pthread_join(appenders[i], NULL);
    CHECK(log_end_offset(place.log) == end);
    close_place(&place);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    state = strtoull(argv[3], NULL, 10);
    if (strcmp(argv[2], "alike") == 0)
        alike(argv[1]);
    else if (strcmp(argv[2], "writes") == 0)
        count_writes(argv[1]);
    else
        threads(argv[1]);
    puts("ok");
    return 0;
}
