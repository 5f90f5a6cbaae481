/* A leader's answer to a follower's Fetch (versions 15 to 18), taken apart while it arrives.
 *
 * Pure: the caller has the bytes, and says before each step how many of them are there. Records are
 * not copied and need not be there as a whole; everything else lies in stretches of at most
 * ANSWER_STRETCH_BYTES_MAX, so that whoever sends bytes slowly, or counts that are absurd, costs no
 * more than it sends. A count is never believed: what it counts is read until the frame ends. */
#ifndef PYLOG_ANSWER_H
#define PYLOG_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ANSWER_VERSION_MIN = 15, ANSWER_VERSION_MAX = 18, ANSWER_STRETCH_BYTES_MAX = 4096 };

enum answer_step {
    ANSWER_BAD = -1,      /* no answer to such a request */
    ANSWER_MORE = 0,      /* more bytes than these are needed */
    ANSWER_OPENED,        /* correlation_id, error_code, session_id are known */
    ANSWER_PARTITION,     /* topic_id and `partition` but for its tags; records follow, or none */
    ANSWER_RECORDS,       /* the caller looks at them, and says what it is done with: answer_took */
    ANSWER_PARTITION_END, /* `partition` is complete */
    ANSWER_END            /* of the frame */
};

struct answer_partition {
    int64_t high_watermark, log_start_offset, diverging_end;
    uint64_t records_bytes;
    int32_t index, diverging_epoch; /* -1: the logs do not diverge */
    int32_t leader_id, leader_epoch; /* as the answering broker knows them, -1: it does not say */
    int16_t error_code;
};

struct answer {
    uint64_t left;         /* bytes of the frame that are not used yet */
    uint64_t records_left; /* of the partition, in `left` too */
    uint64_t topics_left, partitions_left;
    int32_t correlation_id, session_id;
    int16_t error_code;
    uint8_t at; /* enum answer_at, of answer.c */
    uint8_t topic_id[16];
    struct answer_partition partition;
};

/* Of a frame of so many bytes, its size field not counted. */
void answer_begin(struct answer *a, uint64_t frame_bytes);
/* The next step with the `len` bytes at p, those behind what was used so far. *used: how many of
 * them the caller need not show again. After ANSWER_END, ANSWER_BAD no more. */
int answer_step(struct answer *a, const uint8_t *p, size_t len, size_t *used);
/* After ANSWER_RECORDS: the caller is done with the next `count` bytes, at most records_left. */
void answer_took(struct answer *a, uint64_t count);

#endif
