/* What a log remembers of its producers (KIP-98): per producer id the epoch, the last five batches
 * and an open transaction; and the `.snapshot` file: int16 version 1, uint32 CRC-32C of the rest,
 * int32 count, then 46 bytes for each producer. Not thread-safe: the log's append lock guards it.
 */
#ifndef PYLOG_PRODUCERS_H
#define PYLOG_PRODUCERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/batch.h"

enum {
    PRODUCERS_BATCHES = 5,
    PRODUCERS_ENTRY_BYTES = 46,
    PRODUCERS_HEAD_BYTES = 10,
    /* A log has no more producers than its snapshot can hold: a longer file is not a snapshot. */
    PRODUCERS_BYTES_MAX = 1 << 30,
    PRODUCERS_COUNT_MAX = (PRODUCERS_BYTES_MAX - PRODUCERS_HEAD_BYTES) / PRODUCERS_ENTRY_BYTES
};

struct producers_batch {
    int64_t last_offset, timestamp_ms;
    int32_t last_sequence, offset_delta;
};

struct producers_entry {
    int64_t producer_id; /* -1: an empty slot */
    int64_t seen_ms;     /* the later of the clock and the record's time: what expiry looks at */
    int64_t transaction_first_offset; /* -1: none open */
    int64_t last_marker;              /* its offset; -1: none since the log was opened */
    uint64_t verified_for; /* whose batches of verified_epoch are part of a transaction */
    int32_t coordinator_epoch;
    int16_t epoch;
    int16_t verified_epoch; /* -1: the coordinator is to be asked */
    uint8_t batch_count, newest; /* the ring of `batches` */
    struct producers_batch batches[PRODUCERS_BATCHES];
};

/* An open transaction. Ended ones keep their slot, with producer_id -1, until many have ended. */
struct producers_open {
    int64_t first_offset, producer_id;
};

/* Open transactions lie in `open`, from `open_from` on, by rising (first_offset, producer_id). The
 * one at `open_from` is open, unless the array is empty. */
struct producers {
    struct producers_entry *slots;
    uint32_t count, capacity;
    struct producers_open *open;
    uint32_t open_from, open_end, open_room, open_count;
};

void producers_free(struct producers *p);
/* `to` is as `from` from now on. 0 or LOG_E_MEMORY, and nothing changed. */
int producers_copy(struct producers *to, const struct producers *from);
/* 0: append it. 1: a duplicate of *seen, write nothing. LOG_E_SEQUENCE, LOG_E_EPOCH, or
 * LOG_E_TXN_STATE: its transaction is open, and the batch is none of it. */
int producers_check(const struct producers *p, const struct batch_header *h,
                    struct producers_batch *seen);
/* The same of a batch behind `before`, which is admitted, of the same producer, and not remembered
 * yet: true if it is the next one. False decides nothing: once `before` is remembered, ask again.
 */
bool producers_goes_on(const struct producers *p, const struct batch_header *before,
                       const struct batch_header *h);
/* Remembers an appended (or replayed) batch. 0 or LOG_E_MEMORY. */
int producers_update(struct producers *p, const struct batch_header *h, int64_t now_ms);
/* A transaction marker: ends the producer's open transaction. coordinator_epoch: what it says, -1
 * when it does not. 0 or LOG_E_MEMORY. */
int producers_end_transaction(struct producers *p, const struct batch_header *h,
                              int32_t coordinator_epoch, int64_t now_ms);
/* Until the transaction's marker, what the holder sends as this producer in this epoch is part of
 * it. Of a producer that is not known nothing is noted. */
void producers_verify(struct producers *p, int64_t producer_id, int16_t epoch, uint64_t holder);
void producers_expire(struct producers *p, int64_t now_ms, int64_t expiration_ms);
/* A snapshot keeps one batch of a producer. `older`, made from the batches before it, gives back
 * the others, so that a client which sends all of its unanswered batches again finds each of them.
 */
void producers_recall(struct producers *p, const struct producers *older);
/* Ends open transactions that have nothing at or above `start`: a crash may have taken their
 * markers, and there is nothing left to decide about. */
void producers_end_before(struct producers *p, int64_t start);
/* First offset of the oldest open transaction, or -1. Takes constant time. */
int64_t producers_first_open(const struct producers *p);
const struct producers_entry *producers_find(const struct producers *p, int64_t producer_id);

/* The snapshot's bytes, malloc'd; or NULL. */
uint8_t *producers_encode(const struct producers *p, size_t *bytes);
/* Replaces the state. 0; -EINVAL: the bytes are damaged; -ENOMEM: memory is short. The state is
 * empty then. */
int producers_decode(struct producers *p, const uint8_t *bytes, size_t len);

#endif
