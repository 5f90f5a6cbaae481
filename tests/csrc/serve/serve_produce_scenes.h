/* Produce requests to one partition through the real serve, and their errors. */
#ifndef PYLOG_SERVE_PRODUCE_SCENES_H
#define PYLOG_SERVE_PRODUCE_SCENES_H

#include "log_manager/log_manager.h"
#include "serve_messages.h"

enum {
    VERSION = 9,
    CORRUPT = 2,
    UNKNOWN_TOPIC = 3,
    NOT_LEADER = 6,
    TIMED_OUT = 7,
    TOO_LARGE = 10,
    INTERNAL_TOPIC = 17,
    FEW_REPLICAS = 19,
    FEW_REPLICAS_AFTER = 20,
    BAD_ACKS = 21,
    NO_RIGHT = 29,
    OUT_OF_ORDER = 45,
    OLD_EPOCH = 47,
    OTHER_PRODUCER = 49,
    NO_TRANSACTION = 53,
    STORAGE = 56,
    CODEC_UNKNOWN = 76,
    INVALID_RECORD = 87
};

static struct meter_api apis[2];
static struct held_topic a;
static struct body m;
static struct serve_request r;
static uint8_t batch[1 << 12];

static inline void open_a(const struct log_config *config, bool alone) {
    open_topic(&a, "a", config, alone);
    /* So that the log's start is not 0. */
    append(a.logs[0], -1, -1, 0);
    if (!alone) log_advance_high_watermark(a.logs[0], 1);
    CHECK(log_move_start(a.logs[0], 1, NOW) == 0);
}

/* Start a Produce of `batch` to a's first partition. */
static inline enum serve_status send_batch(size_t len, int16_t version, int16_t acks,
                                    const char *transaction) {
    const struct written row = {"a", 0, batch, len};
    return start_produce(&r, &m, &PRODUCING(version, &row, 1, .acks = acks,
                                            .transaction = transaction));
}

static inline void check_answer(int16_t version, const struct wrote *row) {
    CHECK_WROTE(&r, version, row, 1);
}

/* Check that the batch is rejected and nothing is appended. */
static inline void refuse(size_t len, int16_t version, int16_t acks, const struct wrote *row) {
    struct log_stats before, after;
    log_read_stats(a.logs[0], &before);
    uint64_t errors = meter_read(&apis[PRODUCE].errors[row->error + 1]);
    CHECK(send_batch(len, version, acks, NULL) == SERVE_ANSWER);
    check_answer(version, row);
    log_read_stats(a.logs[0], &after);
    CHECK(after.end_offset == before.end_offset);
    CHECK(after.produce_requests == before.produce_requests + 1);
    CHECK(after.produce_failures == before.produce_failures + 1);
    CHECK(meter_read(&apis[PRODUCE].errors[row->error + 1]) == errors + 1);
}
#endif
