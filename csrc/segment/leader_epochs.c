/* Leader epochs: a short sorted array. */
#include "segment/leader_epochs.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void epochs_free(struct epochs *e) {
    free(e->entries);
    memset(e, 0, sizeof *e);
}

static bool epochs_push(struct epochs *e, int32_t epoch, int64_t start_offset) {
    if (e->count == EPOCHS_COUNT_MAX) {
        /* Drop half of them, so that this is rare. */
        e->count -= EPOCHS_COUNT_MAX / 2;
        memmove(e->entries, e->entries + EPOCHS_COUNT_MAX / 2, e->count * sizeof *e->entries);
    }
    if (e->count == e->capacity) {
        uint32_t capacity = e->capacity == 0 ? 2 : e->capacity * 2;
        struct epochs_entry *entries = realloc(e->entries, capacity * sizeof *entries);
        if (entries == NULL) return false;
        e->entries = entries;
        e->capacity = capacity;
    }
    assert(e->count < e->capacity);
    e->entries[e->count++] = (struct epochs_entry){start_offset, epoch};
    return true;
}

int epochs_assign(struct epochs *e, int32_t epoch, int64_t start_offset) {
    if (e->count > 0 && e->entries[e->count - 1].epoch == epoch) return 0;
    while (e->count > 0 && (e->entries[e->count - 1].epoch > epoch ||
                            e->entries[e->count - 1].start_offset >= start_offset))
        e->count--;
    /* A later epoch may have been removed. */
    if (e->count > 0 && e->entries[e->count - 1].epoch == epoch) return 1;
    if (!epochs_push(e, epoch, start_offset)) return -1;
    uint32_t last = e->count - 1;
    assert(last == 0 || e->entries[last].epoch > e->entries[last - 1].epoch);
    assert(last == 0 || e->entries[last].start_offset > e->entries[last - 1].start_offset);
    return 1;
}

bool epochs_truncate_end(struct epochs *e, int64_t offset) {
    uint32_t before = e->count;
    while (e->count > 0 && e->entries[e->count - 1].start_offset >= offset) e->count--;
    return e->count != before;
}

bool epochs_truncate_start(struct epochs *e, int64_t offset) {
    uint32_t gone = 0;
    while (gone + 1 < e->count && e->entries[gone + 1].start_offset <= offset) gone++;
    if (e->count == 0 || e->entries[gone].start_offset >= offset) return false;
    memmove(e->entries, e->entries + gone, (e->count - gone) * sizeof *e->entries);
    assert(gone < e->count);
    e->count -= gone;
    e->entries[0].start_offset = offset;
    assert(e->count == 1 || e->entries[1].start_offset > offset);
    return true;
}

void epochs_end_of(const struct epochs *e, int32_t epoch, int64_t log_end_offset, int32_t *found,
                   int64_t *end_offset) {
    *found = -1;
    *end_offset = -1;
    if (epoch < 0 || e->count == 0 || epoch > e->entries[e->count - 1].epoch) return;
    uint32_t above = 0;
    while (above < e->count && e->entries[above].epoch <= epoch) above++;
    /* Below the oldest known epoch: everything it wrote ended before that one began. */
    *found = above == 0 ? epoch : e->entries[above - 1].epoch;
    *end_offset = above == e->count ? log_end_offset : e->entries[above].start_offset;
}

int32_t epochs_at(const struct epochs *e, int64_t offset) {
    int32_t epoch = -1;
    for (uint32_t i = 0; i < e->count && e->entries[i].start_offset <= offset; i++)
        epoch = e->entries[i].epoch;
    return epoch;
}

char *epochs_encode(const struct epochs *e, size_t *bytes) {
    size_t room = 32 + (size_t)e->count * EPOCHS_LINE_BYTES, at;
    char *text = malloc(room);
    if (text == NULL) return NULL;
    at = (size_t)snprintf(text, room, "0\n%u\n", e->count);
    for (uint32_t i = 0; i < e->count; i++)
        at += (size_t)snprintf(text + at, room - at, "%d %lld\n", e->entries[i].epoch,
                               (long long)e->entries[i].start_offset);
    assert(at < room); /* nothing was truncated */
    *bytes = at;
    return text;
}

/* Parses one non-negative decimal number up to `stop`. Returns NULL for any other text. */
static const char *epochs_number(const char *p, const char *end, char stop, int64_t *value) {
    int64_t v = 0;
    const char *begin = p;
    for (; p < end && *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *p - '0', &v))
            return NULL;
    if (p == begin || (p < end && *p != stop) || (p == end && stop != '\n')) return NULL;
    *value = v;
    return p < end ? p + 1 : p;
}

int epochs_decode(struct epochs *e, const char *text, size_t bytes) {
    const char *p = text, *end = text + bytes;
    int64_t version, count, epoch, start;
    e->count = 0;
    if ((p = epochs_number(p, end, '\n', &version)) == NULL || version != 0) return -EINVAL;
    if ((p = epochs_number(p, end, '\n', &count)) == NULL) return -EINVAL;
    while (p < end) {
        if ((p = epochs_number(p, end, ' ', &epoch)) == NULL || epoch > INT32_MAX) break;
        if ((p = epochs_number(p, end, '\n', &start)) == NULL) break;
        if (e->count > 0 &&
            (epoch <= epochs_last(e) || start < e->entries[e->count - 1].start_offset))
            p = NULL;
        if (p == NULL) break;
        if (!epochs_push(e, (int32_t)epoch, start)) {
            e->count = 0;
            return -ENOMEM;
        }
    }
    if (p == end && e->count == count) return 0;
    e->count = 0;
    return -EINVAL;
}
