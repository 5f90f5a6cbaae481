/* The leader epochs of one log, each with the offset of its first record, both strictly rising
 * (KIP-101), and their text format `leader-epoch-checkpoint`: "0\n<count>\n<epoch> <start
 * offset>\n...". Not thread-safe: the log's locks guard it. */
#ifndef PYLOG_LEADER_EPOCHS_H
#define PYLOG_LEADER_EPOCHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* epochs_encode() never writes longer texts. At the limit the oldest epochs are dropped. Queries
 * for them stay correct: they ended before the oldest known epoch. */
enum {
    EPOCHS_LINE_BYTES = 34,
    EPOCHS_COUNT_MAX = 1 << 20,
    EPOCHS_TEXT_BYTES_MAX = (EPOCHS_COUNT_MAX + 2) * EPOCHS_LINE_BYTES
};

struct epochs_entry {
    int64_t start_offset;
    int32_t epoch;
};
struct epochs {
    struct epochs_entry *entries;
    uint32_t count, capacity;
};

void epochs_free(struct epochs *e);
/* Begins `epoch` at `start_offset` and removes entries at or after it that it replaces. Returns
 * 1 (changed), 0 (already known) or -1 (out of memory). */
int epochs_assign(struct epochs *e, int32_t epoch, int64_t start_offset);
/* The log now ends (begins) at `offset`. Returns true if an entry was removed or moved. */
bool epochs_truncate_end(struct epochs *e, int64_t offset);
bool epochs_truncate_start(struct epochs *e, int64_t offset);
/* Returns the largest epoch <= `epoch` and its end; -1/-1 if unknown. */
void epochs_end_of(const struct epochs *e, int32_t epoch, int64_t log_end_offset, int32_t *found,
                   int64_t *end_offset);
/* Returns the epoch that wrote `offset`, -1: unknown. */
int32_t epochs_at(const struct epochs *e, int64_t offset);
static inline int32_t epochs_last(const struct epochs *e) {
    return e->count == 0 ? -1 : e->entries[e->count - 1].epoch;
}

/* Returns malloc'd text, or NULL. */
char *epochs_encode(const struct epochs *e, size_t *bytes);
/* Returns 0; -EINVAL: invalid text; -ENOMEM: out of memory. On error, `e` is empty. */
int epochs_decode(struct epochs *e, const char *text, size_t bytes);

#endif
