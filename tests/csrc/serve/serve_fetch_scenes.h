/* Fetches of two topics through the real serve, and the expected rows. */
#ifndef PYLOG_SERVE_FETCH_SCENES_H
#define PYLOG_SERVE_FETCH_SCENES_H

#include "serve_messages.h"

enum { VERSION = 12, UNKNOWN_TOPIC = 3, NOT_LEADER = 6, REFUSED = 29, STORAGE = 56, FENCED = 74 };

static struct meter_api apis[2];
static struct held_topic a, b;
static struct body m;
static uint8_t stored[4][1 << 16];

static inline void open_both(bool alone) {
    const struct log_config config = scene_config(1 << 22, 4096);
    open_topic(&a, "a", &config, alone);
    open_topic(&b, "b", &config, alone);
}

static inline void delete_both(void) {
    delete_topic(&a);
    delete_topic(&b);
}

/* Return the row for the log's bytes from `offset` to `next`, both at batch boundaries. */
static inline struct fetched row_of(struct held_topic *t, int32_t partition, int64_t offset,
                             int64_t next) {
    static int used;
    uint8_t *to = stored[used++ % 4];
    struct log *log = t->logs[partition];
    struct fetched row = FETCHED(t->name, partition, .high = log_high_watermark(log),
                                 .stable = log_last_stable_offset(log),
                                 .start = log_start_offset(log), .records = to);
    while (offset < next) {
        struct log_range range;
        CHECK(log_read(log,
                       &(struct log_read_request){
                           .offset = offset, .bytes_max = 1, .at_least_one = true},
                       &range) == 0 &&
              range.length > 0);
        CHECK(log_range_read(&range, to + row.len, (size_t)range.length, range.position) ==
              range.length);
        row.len += (size_t)range.length;
        offset = range.next_offset;
        log_range_release(&range);
    }
    return row;
}

static inline void answered(struct serve_request *r, const struct fetching *f) {
    CHECK(start_fetch(r, &m, f) == SERVE_ANSWER && r->missing_count == 0);
}

#endif
