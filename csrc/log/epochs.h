/* The leader epochs of one log: each with the offset of its first record, both strictly rising
 * (KIP-101), and their text form `leader-epoch-checkpoint`: "0\n<count>\n<epoch> <start
 * offset>\n...". Not thread-safe: the log's locks guard it. */
#ifndef PYLOG_EPOCHS_H
#define PYLOG_EPOCHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A text that is longer was not written by epochs_encode(). At the limit the oldest epochs go, of
 * which the answer stays right: they ended before the oldest that is known. */
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
/* Epoch `epoch` begins at `start_offset`; entries at or after it that it replaces go. 1 changed, 0
 * known already, -1 no memory. */
int epochs_assign(struct epochs *e, int32_t epoch, int64_t start_offset);
/* The log now ends (begins) at `offset`. True when an entry went or moved. */
bool epochs_truncate_end(struct epochs *e, int64_t offset);
bool epochs_truncate_start(struct epochs *e, int64_t offset);
/* The largest epoch <= `epoch` and where it ends; -1/-1 when that is not known. */
void epochs_end_of(const struct epochs *e, int32_t epoch, int64_t log_end_offset, int32_t *found,
                   int64_t *end_offset);
/* The epoch that wrote `offset`, -1 unknown. */
int32_t epochs_at(const struct epochs *e, int64_t offset);
int32_t epochs_last(const struct epochs *e);

/* malloc'd text, or NULL. */
char *epochs_encode(const struct epochs *e, size_t *bytes);
/* 0; -EINVAL: the text is not of its form; -ENOMEM: memory is short. `e` is empty then. */
int epochs_decode(struct epochs *e, const char *text, size_t bytes);

#endif
