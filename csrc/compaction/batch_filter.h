/* What compaction keeps of one batch (KIP-534, KIP-98): the newest record of each key,
 * tombstones and transaction markers until their retention ends, nothing of aborted
 * transactions.
 *
 * Offsets, sequences and the producer of a batch stay; a batch that loses nothing is unchanged.
 * The first pass that could remove a tombstone or marker except for its age writes its deletion
 * time into the batch: attribute bit 6, and the time in place of the base timestamp, to which
 * record timestamps are then relative. */
#ifndef PYLOG_BATCH_FILTER_H
#define PYLOG_BATCH_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compaction/offset_map.h"
#include "format/batch.h"
#include "format/compress.h"

/* ---- transactions ---- */
struct clean_transaction {
    int64_t producer_id, first_offset, last_offset;
};
struct clean_transactions {
    struct clean_transaction *list;
    uint32_t count, capacity;
};
/* Follows the batches of a log in order: `open` has the transactions open at this point. If
 * `aborted` is not NULL, an abort marker adds its transaction there. `p` is the whole batch of a
 * marker, not read otherwise. Returns 1 if a marker ended an open transaction, 0, or BATCH_E_*. */
int clean_follow(struct clean_transactions *open, struct clean_transactions *aborted,
                 const struct batch_header *h, const uint8_t *p);
/* Sorts `aborted` for clean_is_aborted. */
void clean_sort(struct clean_transactions *aborted);
bool clean_is_aborted(const struct clean_transactions *aborted, const struct batch_header *h);
void clean_transactions_free(struct clean_transactions *t);

/* ---- batches ---- */
struct clean_buffer {
    uint8_t *bytes;
    size_t len, room;
};

struct clean_batch_rules {
    const struct offset_map *map;
    int64_t now_ms, delete_retention_ms;
    uint64_t inflated_bytes_max;
};

struct clean_work { /* reused for each batch */
    struct inflater *inflater;
    struct clean_buffer plain, kept;
    uint8_t *made; /* the last rewritten batch */
    size_t made_len;
};
void clean_work_free(struct clean_work *w);

/* Facts about a batch that its bytes do not contain. */
struct clean_batch_facts {
    bool aborted;          /* of an aborted transaction */
    bool empty_marker;     /* a marker without remaining data */
    bool stays; /* even if empty: its producer's or its segment's last, or next to damage */
};

struct clean_result {
    const uint8_t *bytes; /* the batch's own, or work->made; NULL if nothing is left */
    size_t len;
    int32_t read, kept; /* records */
};

/* Puts the keys of a data batch into the map. Returns 1 (done), 0 (the map is full) or a
 * batch_error. Ignores records below `from`. */
int clean_map(struct offset_map *map, const uint8_t *p, const struct batch_header *h, int64_t from,
              uint64_t inflated_bytes_max, struct clean_work *w);
/* Writes the batch of this header without records to w->made. Returns 0 or a batch_error. */
int clean_empty(const uint8_t *p, const struct batch_header *h, struct clean_work *w);
/* Returns 0 and *out, or a batch_error. */
int clean_batch(const struct clean_batch_rules *rules, const uint8_t *p,
                const struct batch_header *h, const struct clean_batch_facts *facts,
                struct clean_work *w, struct clean_result *out);

#endif
