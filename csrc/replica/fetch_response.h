/* Parses a leader's Fetch response to a follower (versions 15 to 18) while it arrives.
 *
 * Does no I/O: the caller owns the bytes and passes the number available at each step. Records
 * are not copied and may arrive in parts. Everything else is read in sections of at most
 * RESPONSE_SECTION_BYTES_MAX, so a leader that sends slowly, or sends absurd counts, uses no more
 * memory than it sends. No memory is allocated based on a count: its items are read until the
 * frame ends. */
#ifndef PYLOG_FETCH_RESPONSE_H
#define PYLOG_FETCH_RESPONSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RESPONSE_VERSION_MIN = 15, RESPONSE_VERSION_MAX = 18, RESPONSE_SECTION_BYTES_MAX = 4096 };

enum fetch_response_step {
    RESPONSE_BAD = -1,      /* not a valid response to its request */
    RESPONSE_MORE = 0,      /* needs more bytes */
    RESPONSE_OPENED,        /* correlation_id, error_code and session_id are set */
    RESPONSE_PARTITION,     /* topic_id and `partition` (without tags) are set; maybe records */
    RESPONSE_RECORDS,       /* the caller reads the records, then calls fetch_response_consume */
    RESPONSE_PARTITION_END, /* `partition` is complete */
    RESPONSE_END            /* end of the frame */
};

struct fetch_response_partition {
    int64_t high_watermark, log_start_offset, diverging_end;
    uint64_t records_bytes;
    int32_t index, diverging_epoch; /* -1: the logs do not diverge */
    int32_t leader_id, leader_epoch; /* leader according to the sender; -1: not included */
    int16_t error_code;
};

struct fetch_response {
    uint64_t left;         /* unread bytes of the frame */
    uint64_t records_left; /* unread record bytes of the partition, included in `left` */
    uint64_t topics_left, partitions_left;
    int32_t correlation_id, session_id;
    int16_t error_code;
    uint8_t at; /* enum response_section in fetch_response.c */
    uint8_t topic_id[16];
    struct fetch_response_partition partition;
};

/* Starts a frame of `frame_bytes` bytes, without its size field. */
void fetch_response_begin(struct fetch_response *r, uint64_t frame_bytes);
/* Executes the next step on the `len` bytes at p, which follow the bytes already used. *used:
 * bytes that the caller must not pass again. Do not call after RESPONSE_END or RESPONSE_BAD. */
int fetch_response_step(struct fetch_response *r, const uint8_t *p, size_t len, size_t *used);
/* After RESPONSE_RECORDS: the caller has processed the next `count` bytes, at most records_left. */
void fetch_response_consume(struct fetch_response *r, uint64_t count);

#endif
