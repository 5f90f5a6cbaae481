/* What compaction keeps of one batch (KIP-534, KIP-98): the newest record of each key, tombstones
 * and transaction markers until their time has come, nothing of aborted transactions.
 *
 * Offsets, sequences and the producer of a batch stay; a batch that loses nothing stays as it is.
 * The first pass that could remove a tombstone or marker but for its age writes into the batch when
 * it may go: attribute bit 6, and the time in the place of the base timestamp, to which record
 * times are relative then too. */
#ifndef PYLOG_CLEAN_H
#define PYLOG_CLEAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/batch.h"
#include "format/compress.h"
#include "log/keymap.h"

/* ---- transactions ---- */
struct clean_transaction {
    int64_t producer_id, first_offset, last_offset;
};
struct clean_transactions {
    struct clean_transaction *list;
    uint32_t count, capacity;
};
/* Follows the batches of a log in order: `open` are the transactions at this place. With
 * `aborted` not NULL, a marker that aborts adds what it ends there. `p` is the whole batch of a
 * marker, not looked at otherwise. 1: a marker that ended an open transaction, 0, or BATCH_E_*. */
int clean_follow(struct clean_transactions *open, struct clean_transactions *aborted,
                 const struct batch_header *h, const uint8_t *p);
/* Makes `aborted` ready for clean_is_aborted. */
void clean_sort(struct clean_transactions *aborted);
bool clean_is_aborted(const struct clean_transactions *aborted, const struct batch_header *h);
void clean_transactions_free(struct clean_transactions *t);

/* ---- batches ---- */
struct clean_buffer {
    uint8_t *bytes;
    size_t len, room;
};

struct clean_batch_rules {
    const struct keymap *map;
    int64_t now_ms, delete_retention_ms;
    uint64_t inflated_bytes_max;
};

struct clean_work { /* reused from batch to batch */
    struct inflater *inflater;
    struct clean_buffer plain, kept;
    uint8_t *made; /* of the last rewritten batch */
    size_t made_len;
};
void clean_work_free(struct clean_work *w);

/* What is known of a batch beyond its bytes. */
struct clean_batch_facts {
    bool aborted;          /* of an aborted transaction */
    bool empty_marker;     /* a marker of which no data is left */
    bool stays; /* empty if need be: its producer's or its segment's last, or beside damage */
};

struct clean_kept {
    const uint8_t *bytes; /* the batch's own, or work->made; NULL when nothing is left */
    size_t len;
    int32_t read, kept; /* records */
};

/* Puts the keys of a data batch into the map. 1: done; 0: the map is full; negative: a batch_error.
 * Records below `from` are left out. */
int clean_map(struct keymap *map, const uint8_t *p, const struct batch_header *h, int64_t from,
              uint64_t inflated_bytes_max, struct clean_work *w);
/* The batch of this header without records, in w->made. 0 or a batch_error. */
int clean_empty(const uint8_t *p, const struct batch_header *h, struct clean_work *w);
/* 0 and *out, or a batch_error. */
int clean_batch(const struct clean_batch_rules *rules, const uint8_t *p,
                const struct batch_header *h, const struct clean_batch_facts *facts,
                struct clean_work *w, struct clean_kept *out);

#endif
