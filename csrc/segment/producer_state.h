/* A log's state of its producers (KIP-98): per producer id the epoch, the last five batches and
 * an open transaction; and the `.snapshot` file: int16 version 1, uint32 CRC-32C of the rest,
 * int32 count, then 46 bytes per producer. Not thread-safe: the log's append lock guards it. */
#ifndef PYLOG_PRODUCER_STATE_H
#define PYLOG_PRODUCER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/batch.h"

enum {
    PRODUCERS_BATCHES = 5,
    PRODUCERS_ENTRY_BYTES = 46,
    PRODUCERS_HEAD_BYTES = 10,
    /* A log has no more producers than its snapshot can hold. A longer file is not a snapshot. */
    PRODUCERS_BYTES_MAX = 1 << 30,
    PRODUCERS_COUNT_MAX = (PRODUCERS_BYTES_MAX - PRODUCERS_HEAD_BYTES) / PRODUCERS_ENTRY_BYTES
};

struct producers_batch {
    int64_t last_offset, timestamp_ms;
    int32_t last_sequence, offset_delta;
};

struct producers_entry {
    int64_t producer_id; /* -1: an empty slot */
    int64_t seen_ms;     /* the later of the clock and the record's timestamp, for expiry */
    int64_t transaction_first_offset; /* -1: none open */
    int64_t last_marker;              /* its offset; -1: none since the log was opened */
    uint64_t verified_for; /* holder whose batches of verified_epoch belong to a transaction */
    int32_t coordinator_epoch;
    int16_t epoch;
    int16_t verified_epoch; /* -1: check with the coordinator */
    uint8_t batch_count, newest; /* the ring of `batches` */
    struct producers_batch batches[PRODUCERS_BATCHES];
};

/* An open transaction. Ended ones keep their slot, with producer_id -1, until many have ended. */
struct producers_open {
    int64_t first_offset, producer_id;
};

/* Open transactions are in `open`, from `open_from` on, in order of (first_offset, producer_id).
 * The entry at `open_from` is open, unless the array is empty. */
struct producers {
    struct producers_entry *slots;
    uint32_t count, capacity;
    struct producers_open *open;
    uint32_t open_from, open_end, open_room, open_count;
};

void producers_free(struct producers *p);
/* Copies `from` to `to`. Returns 0 or LOG_E_MEMORY; on error nothing changed. */
int producers_copy(struct producers *to, const struct producers *from);
/* Returns 0 (append it), 1 (a duplicate of *seen: write nothing), LOG_E_SEQUENCE, LOG_E_EPOCH,
 * or LOG_E_TXN_STATE: its transaction is open, and the batch does not belong to it. */
int producers_check(const struct producers *p, const struct batch_header *h,
                    struct producers_batch *seen);
/* The same for a batch after `before`, an accepted batch of the same producer that is not
 * recorded yet. Returns true if it is the next one. After false, record `before` and call
 * producers_check. */
bool producers_continues(const struct producers *p, const struct batch_header *before,
                         const struct batch_header *h);
/* Records an appended (or replayed) batch. Returns 0 or LOG_E_MEMORY. */
int producers_update(struct producers *p, const struct batch_header *h, int64_t now_ms);
/* A transaction marker ends the producer's open transaction. coordinator_epoch: from the marker,
 * -1 if it has none. Returns 0 or LOG_E_MEMORY. */
int producers_end_transaction(struct producers *p, const struct batch_header *h,
                              int32_t coordinator_epoch, int64_t now_ms);
/* Until the transaction's marker, batches that the holder sends as this producer in this epoch
 * belong to it. Does nothing for an unknown producer. */
void producers_verify(struct producers *p, int64_t producer_id, int16_t epoch, uint64_t holder);
void producers_expire(struct producers *p, int64_t now_ms, int64_t expiration_ms);
/* A snapshot keeps one batch per producer. `older`, built from the batches before it, restores
 * the others, so that a client that resends all unacknowledged batches finds each of them. */
void producers_restore_batches(struct producers *p, const struct producers *older);
/* Ends open transactions without records at or above `start`. A crash may have lost their
 * markers, and no records remain that depend on the result. */
void producers_end_before(struct producers *p, int64_t start);
/* First offset of the oldest open transaction, or -1. Takes constant time. */
int64_t producers_first_open(const struct producers *p);
const struct producers_entry *producers_find(const struct producers *p, int64_t producer_id);

/* Returns the snapshot's bytes, malloc'd; or NULL. */
uint8_t *producers_encode(const struct producers *p, size_t *bytes);
/* Replaces the state. Returns 0; -EINVAL: the bytes are damaged; -ENOMEM: out of memory. On
 * error the state is empty. */
int producers_decode(struct producers *p, const uint8_t *bytes, size_t len);

#endif
