/* The bytes grow by doubling. Long file ranges stay references, short ones are read into the
 * bytes. */
#include "serve/response.h"

#include <stdlib.h>
#include <unistd.h>

#include "format/assertion.h"

enum { REPLY_BYTES_FIRST = 256, REPLY_PARTS_FIRST = 8 };

void reply_init(struct reply *r) { *r = (struct reply){0}; }

void reply_clear(struct reply *r) {
    for (uint32_t i = 0; i < r->part_count; i++) {
        log_range_release(&r->parts[i].range);
        if (r->parts[i].copy != NULL) copy_release(r->parts[i].copy);
    }
    free(r->parts);
    free(r->bytes);
    reply_init(r);
}

static bool grow(struct reply *r, size_t n) {
    uint64_t wanted = (uint64_t)r->len + n;
    uint64_t cap = r->cap == 0 ? REPLY_BYTES_FIRST : 2 * (uint64_t)r->cap;
    if (cap < wanted) cap = wanted;
    if (wanted > INT32_MAX) return false;
    uint8_t *grown = realloc(r->bytes, cap > INT32_MAX ? INT32_MAX : (size_t)cap);
    if (grown == NULL) return false;
    r->bytes = grown;
    r->cap = cap > INT32_MAX ? INT32_MAX : (uint32_t)cap;
    return true;
}

void reply_prepare(struct reply *r, size_t n) {
    if (n > r->cap - r->len && !grow(r, n)) r->failed = true;
}

uint8_t *reply_reserve_more(struct reply *r, size_t n) {
    if (r->failed) return NULL;
    if (n > r->cap - r->len && !grow(r, n)) {
        r->failed = true;
        return NULL;
    }
    uint8_t *at = r->bytes + r->len;
    r->len += (uint32_t)n;
    return at;
}

static bool read_range(const struct log_range *range, uint8_t *to) {
    int32_t done = 0;
    while (done < range->length) {
        ssize_t n = log_range_read(range, to + done, (size_t)(range->length - done),
                                   range->position + done);
        if (n <= 0) return false;
        done += (int32_t)n;
    }
    return true;
}

static bool add_part(struct reply *r, const struct log_range *range, struct copy *copy) {
    if (r->part_count == r->part_cap) {
        uint32_t cap = r->part_cap == 0 ? REPLY_PARTS_FIRST : 2 * r->part_cap;
        if (cap > REPLY_PARTS_MAX) return false;
        struct reply_part *grown = realloc(r->parts, cap * sizeof *grown);
        if (grown == NULL) return false;
        r->parts = grown;
        r->part_cap = cap;
    }
    assert_slow(r->part_count == 0 || r->parts[r->part_count - 1].bytes_end <= r->len);
    struct reply_part *part = &r->parts[r->part_count++];
    part->bytes_end = r->len;
    part->range = *range;
    part->copy = copy;
    r->file_bytes += (uint64_t)range->length;
    return true;
}

static bool is_copied(const struct reply *r, int32_t length) {
    return length <= REPLY_COPY_BYTES_MAX &&
           r->copied_bytes + (uint32_t)length <= REPLY_COPIED_BYTES_MAX;
}

void reply_range(struct reply *r, struct log_range *range) {
    assert_slow(range->length >= 0 && range->position >= 0);
    if (!r->failed && !is_copied(r, range->length)) {
        if (add_part(r, range, NULL)) {
            range->segment = NULL;
            range->length = 0;
            return;
        }
        r->failed = true;
    } else if (!r->failed && range->length > 0) {
        uint8_t *to = reply_reserve(r, (size_t)range->length);
        if (to != NULL && !read_range(range, to)) r->failed = true;
        r->copied_bytes += (uint32_t)range->length;
    }
    log_range_release(range);
    range->segment = NULL;
    range->length = 0;
}

void reply_copy(struct reply *r, struct log_range *range, struct copy *copy) {
    int32_t length = range->length;
    assert(length > 0 && length <= copy->length);
    uint64_t copied_bytes = (uint64_t)r->copied_bytes + (uint64_t)length;
    if (copied_bytes > REPLY_COPIED_BYTES_MAX) { /* a slow client would keep it allocated */
        copy_release(copy);
        reply_range(r, range);
        return;
    }
    log_range_release(range);
    range->length = 0;
    r->copied_bytes = (uint32_t)copied_bytes;
    const struct log_range sent = {.fd = -1, .length = length};
    if (length < REPLY_SHARED_BYTES_MIN)
        reply_bytes(r, copy->bytes, (size_t)length);
    else if (!r->failed && add_part(r, &sent, copy))
        return;
    else
        r->failed = true;
    copy_release(copy);
}

static uint64_t sum_of_ranges(const struct reply *r) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < r->part_count; i++) sum += (uint64_t)r->parts[i].range.length;
    return sum;
}

void reply_finish(struct reply *r) {
    assert_slow(r->copied_bytes <= REPLY_COPIED_BYTES_MAX && r->part_count <= REPLY_PARTS_MAX);
    uint64_t total = r->len + r->file_bytes;
    if (r->len < 4 || total > INT32_MAX) r->failed = true;
    assert_slow(r->file_bytes == sum_of_ranges(r)); /* the announced size equals the bytes sent */
    if (!r->failed) put_u32(r->bytes, (uint32_t)(total - 4));
}
