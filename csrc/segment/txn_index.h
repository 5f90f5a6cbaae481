/* Aborted transactions of a segment in Kafka's `.txnindex` format: for each one int16 version 0,
 * producer id, first offset, last offset (its marker's) and the last stable offset after it,
 * ordered by last offset. */
#ifndef PYLOG_TXN_INDEX_H
#define PYLOG_TXN_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "os/lock.h"
#include "segment/segment.h"

/* One aborted transaction. */
struct log_aborted {
    int64_t producer_id, first_offset;
};

/* Removes entries of transactions that end at or above `offset`. Returns 0 or a log_error. */
int txn_index_cut(struct segment *s, int64_t offset);
void txn_index_free(struct segment *s) REQUIRES(s->index_lock);

/* A query for the aborted transactions that overlap [offset, upper). */
struct txn_index_query {
    int64_t offset, upper, keep_below;
    struct log_aborted *found;
    uint32_t count, room, count_max;
    bool past; /* all further entries begin at or above `upper` */
};

/* Writes missing entries to the file and syncs it. One thread at a time. *written: the file has
 * changed. Returns 0 or -errno. */
int txn_index_write(struct segment *s, bool *written);
/* Makes space for another entry. Returns 0, or LOG_E_MEMORY or another log_error. */
int txn_index_reserve(struct segment *s);
/* Adds an entry, for which space was reserved. */
void txn_index_add(struct segment *s, const struct log_aborted *aborted, int64_t last_offset,
                   int64_t last_stable_offset);
/* Sorts the list and applies the limit: see log_aborted_between(). */
void txn_index_limit(struct txn_index_query *q);
/* Returns 0, -ENOENT if the segment was removed or replaced, or a log_error. */
int txn_index_query_segment(struct segment *s, struct txn_index_query *q);

#endif
