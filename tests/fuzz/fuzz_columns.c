/* Any bytes as a fetched partition: columns and views never leave the buffers and agree for
 * every sequence of read sizes, and positions only increase. */
#include <stdlib.h>
#include <string.h>

#include "format/bytes.h"
#include "columns/columns.h"
#include "format/crc32c.h"

enum {
    FUZZ_INFLATED_MAX = 4 * 1024 * 1024,
    FUZZ_BYTES_MAX = 8 * 1024 * 1024
};

static void require(int holds) {
    if (!holds) {
        abort();
    }
}

/* Correct magic and checksum of the batches, and some of their lengths and counts. */
static void mend(uint8_t *p, size_t len, uint8_t flags) {
    while (len >= BATCH_HEADER_BYTES) {
        size_t batch = (size_t)get_u32(p + 8) + BATCH_LOG_OVERHEAD;
        if (batch > len || batch < BATCH_HEADER_BYTES) {
            batch = len;
            put_i32(p + 8, (int32_t)(len - BATCH_LOG_OVERHEAD));
        }
        p[16] = 2;
        if (flags & 1) {
            int32_t count = p[60] % 8 + 1;
            put_i32(p + 23, count - 1);
            put_i32(p + 57, count);
            p[0] = 0;
        }
        put_u32(p + 17, crc32c_extend(0, p + 21, batch - 21));
        p += batch;
        len -= batch;
    }
}

static int begin(struct columns_source *s, const uint8_t *p, size_t len, uint8_t flags,
                 struct inflater *in) {
    struct columns_aborted aborted[3] = {{1, 0}, {(int64_t)flags, 3}, {1, 9}};
    memset(s, 0, sizeof *s);
    s->p = p;
    s->end = p + len;
    s->inflater = in;
    s->inflated_bytes_max = FUZZ_INFLATED_MAX;
    s->read_committed = flags & 2;
    s->check_crc = !(flags & 4);
    s->next_offset = flags >> 6;
    return columns_source_begin(s, aborted, s->read_committed ? 3 : 0);
}

/* Sum all values in the columns, so that the sanitizer checks every byte. */
static uint64_t sum(const struct columns *c) {
    uint64_t total = 0;
    for (size_t i = 0; i < c->rows; i++) {
        require(i == 0 || c->offsets[i] > c->offsets[i - 1]);
        total = total * 31 + (uint64_t)c->offsets[i] + (uint64_t)c->timestamps[i];
    }
    const struct columns_bytes *all[] = {&c->key, &c->value, &c->header_key, &c->header_value};
    for (int b = 0; b < 4; b++) {
        size_t rows = b < 2 ? c->rows : c->headers;
        require(rows == 0 || (size_t)all[b]->offsets[rows] == all[b]->len);
        for (size_t i = 0; i < rows; i++) {
            require(all[b]->offsets[i] <= all[b]->offsets[i + 1]);
            total += all[b]->validity[i >> 3] >> (i & 7) & 1;
        }
        total = total * 31 + crc32c_extend(0, all[b]->data, all[b]->len);
    }
    return total;
}

static int64_t read_all(const uint8_t *p, size_t len, uint8_t flags, int64_t step,
                        struct columns *c) {
    struct inflater *in = inflater_new();
    struct columns_source s;
    require(in != NULL && begin(&s, p, len, flags, in) == 0);
    memset(c, 0, sizeof *c);
    c->bytes_max = FUZZ_BYTES_MAX;
    c->with_headers = true;
    int64_t n, position = s.next_offset;
    do {
        n = columns_append(c, &s, 0, step);
        require(n <= step && s.next_offset >= position + (n > 0 ? n : 0));
        position = s.next_offset;
    } while (n > 0);
    require(n < 0 || s.exhausted);
    columns_source_end(&s);
    inflater_free(in);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3) {
        return 0;
    }
    size_t len = size - 2;
    uint8_t *p = malloc(len);
    memcpy(p, data + 2, len);
    if (data[0] & 8) {
        mend(p, len, data[0]);
    }
    struct columns whole, steps;
    int64_t end_whole = read_all(p, len, data[0], INT64_MAX, &whole);
    int64_t end_steps = read_all(p, len, data[0], data[1] % 70 + 1, &steps);
    require(end_whole == end_steps && whole.rows == steps.rows);
    require(sum(&whole) == sum(&steps));
    columns_clear(&whole);
    columns_clear(&steps);
    free(p);
    return 0;
}
