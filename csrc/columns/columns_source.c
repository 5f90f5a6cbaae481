/* Iterates over the batches of one fetched partition and returns views of their records.
 *
 * A compressed batch is decompressed piece by piece. A record that ends beyond its piece is
 * assembled in the carry. All other views point into the piece. */
#include <stdlib.h>
#include <string.h>

#include "format/bytes.h"
#include "columns/columns.h"
#include "format/records.h"
#include "format/varint.h"

#define LIKELY(x)   __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    SOURCE_CARRY_BYTES_MIN = 4096,
    SOURCE_CARRY_KEEP_BYTES_MAX = 1024 * 1024,
    SOURCE_END = 2 /* source_next_batch: no more complete batches */
};

struct columns_open {
    int64_t producer_id;
    bool open;
};

/* ---- aborted transactions */

static int source_by_offset(const void *a, const void *b) {
    int64_t x = ((const struct columns_aborted *)a)->first_offset;
    int64_t y = ((const struct columns_aborted *)b)->first_offset;
    return (x > y) - (x < y);
}

static int source_by_producer(const void *a, const void *b) {
    int64_t x = ((const struct columns_open *)a)->producer_id;
    int64_t y = ((const struct columns_open *)b)->producer_id;
    return (x > y) - (x < y);
}

int columns_source_begin(struct columns_source *s, const struct columns_aborted *aborted,
                         size_t aborted_count) {
    assert(s->p <= s->end && s->aborted == NULL && s->open == NULL && s->carry == NULL);
    s->leader_epoch = -1;
    s->aborted_count = s->open_count = aborted_count;
    if (aborted_count == 0) {
        return 0;
    }
    s->aborted = calloc(aborted_count, sizeof *s->aborted);
    s->open = calloc(aborted_count, sizeof *s->open);
    if (s->aborted == NULL || s->open == NULL) {
        columns_source_end(s);
        return BATCH_E_MEMORY;
    }
    memcpy(s->aborted, aborted, aborted_count * sizeof *aborted);
    for (size_t i = 0; i < aborted_count; i++) {
        s->open[i] = (struct columns_open){.producer_id = aborted[i].producer_id, .open = false};
    }
    qsort(s->aborted, aborted_count, sizeof *s->aborted, source_by_offset);
    qsort(s->open, aborted_count, sizeof *s->open, source_by_producer);
    return 0;
}

void columns_source_end(struct columns_source *s) {
    free(s->aborted);
    free(s->open);
    free(s->carry);
    s->aborted = NULL;
    s->open = NULL;
    s->carry = NULL;
    s->aborted_count = s->open_count = 0;
    s->carry_len = s->carry_room = 0;
    s->view_at = s->view_count = 0;
}

/* Returns the first entry of a producer, the only one that holds its state. */
static struct columns_open *source_open_of(struct columns_source *s, int64_t producer_id) {
    size_t low = 0, high = s->open_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->open[middle].producer_id < producer_id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    bool found = low < s->open_count && s->open[low].producer_id == producer_id;
    return found ? &s->open[low] : NULL;
}

/* Returns the type of a control batch: 0 abort, 1 commit, or another type; -1 if it is invalid. */
static int source_control_type(const uint8_t *p, size_t len) {
    const uint8_t *end = p + len;
    uint64_t bits;
    /* Skip length, attributes, timestamp and offset delta, key length. */
    for (int field = 0; field < 4; field++) {
        size_t n = get_uvarint(p, end, VARLONG_BYTES_MAX, &bits);
        if (n == 0) {
            return -1;
        }
        p += n;
        if (field == 0) {
            if (p == end) {
                return -1;
            }
            p++;
        }
    }
    return zigzag_decode(bits) < 4 || end - p < 4 ? -1 : get_i16(p + 2);
}

/* Updates the open transactions up to this batch. Returns true if its transaction was aborted. */
static bool source_is_aborted(struct columns_source *s) {
    const struct batch_header *h = &s->header;
    while (s->aborted_next < s->aborted_count &&
           s->aborted[s->aborted_next].first_offset <= batch_last_offset(h)) {
        struct columns_open *begun =
            source_open_of(s, s->aborted[s->aborted_next++].producer_id);
        assert(begun != NULL); /* both lists were built from the same entries */
        begun->open = true;
    }
    if (h->producer_id < 0 || s->open_count == 0) {
        return false;
    }
    struct columns_open *open = source_open_of(s, h->producer_id);
    if (open == NULL) {
        return false;
    }
    if (h->attributes & BATCH_CONTROL) {
        int type = source_control_type(s->p + BATCH_HEADER_BYTES, batch_bytes(h) -
                                                                      BATCH_HEADER_BYTES);
        open->open = open->open && type != 0;
        return false;
    }
    return open->open && (h->attributes & BATCH_TRANSACTIONAL) != 0;
}

/* ---- batches */

static int source_check_header(const struct columns_source *s) {
    const struct batch_header *h = &s->header;
    if (h->base_offset < 0 || h->last_offset_delta < 0 || h->record_count < 0 ||
        h->base_offset > INT64_MAX - 1 - h->last_offset_delta) {
        return BATCH_E_COUNT;
    }
    if (s->check_crc && batch_check_crc(s->p, h) < 0) {
        return BATCH_E_CRC;
    }
    if (batch_codec(h) > CODEC_ZSTD) {
        return BATCH_E_CODEC;
    }
    uint64_t records_bytes_min = (uint64_t)h->record_count * RECORDS_BYTES_MIN;
    bool plain = batch_codec(h) == CODEC_NONE;
    return plain && records_bytes_min > batch_bytes(h) - BATCH_HEADER_BYTES ? BATCH_E_COUNT : 0;
}

static int source_begin_batch(struct columns_source *s) {
    const struct batch_header *h = &s->header;
    const uint8_t *payload = s->p + BATCH_HEADER_BYTES;
    size_t payload_len = batch_bytes(h) - BATCH_HEADER_BYTES;
    assert(!s->in_batch && s->view_at == s->view_count);
    assert(batch_bytes(h) >= BATCH_HEADER_BYTES);
    assert(batch_bytes(h) <= (size_t)(s->end - s->p));
    s->inflating = batch_codec(h) != CODEC_NONE && h->record_count > 0;
    s->chunk = payload;
    s->chunk_end = s->inflating || h->record_count == 0 ? payload : payload + payload_len;
    if (s->inflating) {
        if (s->inflater == NULL) {
            return COLUMNS_NEEDS_INFLATER;
        }
        int rc = inflater_begin(s->inflater, batch_codec(h), payload, payload_len,
                                s->inflated_bytes_max);
        if (rc < 0) {
            return batch_inflate_error(rc);
        }
    }
    s->records_left = h->record_count;
    s->offset_delta_min = 0;
    s->append_time = (h->attributes & BATCH_LOG_APPEND_TIME) != 0;
    s->leader_epoch = h->leader_epoch;
    s->in_batch = true;
    s->carry_len = 0;
    s->p += batch_bytes(h);
    assert(s->records_left >= 0 && s->p <= s->end);
    return 0;
}

/* Moves to the next batch with records to return. Returns 0, SOURCE_END, COLUMNS_NEEDS_INFLATER
 * or a batch_error. */
static int source_next_batch(struct columns_source *s) {
    for (;;) {
        assert(s->p <= s->end);
        size_t len = (size_t)(s->end - s->p);
        int rc = len == 0 ? BATCH_E_SHORT : batch_parse(s->p, len, &s->header);
        if (rc == BATCH_E_SHORT || (rc == 0 && batch_bytes(&s->header) > len)) {
            return SOURCE_END;
        }
        s->any_batch = true;
        rc = rc < 0 ? rc : source_check_header(s);
        if (rc < 0) {
            return rc;
        }
        bool aborted = s->read_committed && source_is_aborted(s);
        int64_t last_offset = batch_last_offset(&s->header);
        if (!aborted && (s->header.attributes & BATCH_CONTROL) == 0 &&
            last_offset >= s->next_offset) {
            return source_begin_batch(s);
        }
        s->p += batch_bytes(&s->header);
        if (last_offset >= s->next_offset) {
            s->next_offset = last_offset + 1;
        }
    }
}

/* Gets the next piece of decompressed bytes. Returns 1, 0 at the end of the batch, or a
 * batch_error. */
static int source_next_chunk(struct columns_source *s) {
    assert(s->in_batch && s->chunk == s->chunk_end); /* inflater_next overwrites the piece */
    if (!s->inflating) {
        return 0;
    }
    size_t len;
    int rc = inflater_next(s->inflater, &s->chunk, &len);
    if (rc <= 0) {
        s->inflating = false;
        s->chunk = s->chunk_end;
        return rc < 0 ? batch_inflate_error(rc) : 0;
    }
    s->chunk_end = s->chunk + len;
    return 1;
}

/* Ends a batch after its last record: no bytes may follow. */
static int source_end_batch(struct columns_source *s) {
    int64_t last_offset = batch_last_offset(&s->header);
    assert(s->records_left == 0);
    if (s->chunk < s->chunk_end) {
        return BATCH_E_COUNT;
    }
    int rc = source_next_chunk(s);
    if (rc != 0) {
        return rc < 0 ? rc : BATCH_E_COUNT;
    }
    s->in_batch = false;
    if (s->carry_room > SOURCE_CARRY_KEEP_BYTES_MAX) {
        free(s->carry);
        s->carry = NULL;
        s->carry_room = 0;
    }
    if (last_offset >= s->next_offset) {
        s->next_offset = last_offset + 1;
    }
    return 0;
}

/* ---- records */

static inline const uint8_t *source_bytes(const uint8_t *p, const uint8_t *end, int64_t null_len,
                                          const uint8_t **at, int32_t *len) {
    int64_t n;
    p = varint_get(p, end, VARINT_BYTES_MAX, &n);
    if (UNLIKELY(p == NULL || n < null_len || n > end - p)) {
        return NULL;
    }
    *at = p;
    *len = (int32_t)n;
    return n < 0 ? p : p + n;
}

static bool source_headers_fit(const uint8_t *p, const uint8_t *end, int64_t count) {
    const uint8_t *at;
    int32_t len;
    if (count < 0 || count > (end - p) / 2) {
        return false;
    }
    while (count-- > 0) {
        p = source_bytes(p, end, 0, &at, &len);
        p = p == NULL ? NULL : source_bytes(p, end, -1, &at, &len);
        if (p == NULL) {
            return false;
        }
    }
    return p == end;
}

/* Parses the body [p, end) of one record. Returns 0, BATCH_E_RECORD or BATCH_E_COUNT. */
static inline int source_record(struct columns_source *s, const uint8_t *p, const uint8_t *end,
                                struct columns_view *v) {
    int64_t timestamp_delta, offset_delta, headers = 0;
    p = varint_get(p + 1, end, VARLONG_BYTES_MAX, &timestamp_delta);
    if (UNLIKELY(p == NULL)) {
        return BATCH_E_RECORD;
    }
    p = varint_get(p, end, VARINT_BYTES_MAX, &offset_delta);
    if (UNLIKELY(p == NULL)) {
        return BATCH_E_RECORD;
    }
    p = source_bytes(p, end, -1, &v->key, &v->key_len);
    if (UNLIKELY(p == NULL)) {
        return BATCH_E_RECORD;
    }
    p = source_bytes(p, end, -1, &v->value, &v->value_len);
    if (UNLIKELY(p == NULL)) {
        return BATCH_E_RECORD;
    }
    if (UNLIKELY(end - p != 1 || *p != 0)) {
        p = varint_get(p, end, VARINT_BYTES_MAX, &headers);
        if (p == NULL || !source_headers_fit(p, end, headers)) {
            return BATCH_E_RECORD;
        }
    }
    /* Offsets must increase: otherwise a consumer could read the same records forever. */
    if (UNLIKELY(offset_delta < s->offset_delta_min ||
                 offset_delta > s->header.last_offset_delta)) {
        return BATCH_E_COUNT;
    }
    s->offset_delta_min = offset_delta + 1;
    v->headers = p;
    v->headers_len = (int32_t)(end - p);
    v->header_count = (int32_t)headers;
    v->offset = s->header.base_offset + offset_delta;
    assert_slow(v->offset <= batch_last_offset(&s->header) && v->headers_len >= 0);
    v->timestamp = s->append_time
                       ? s->header.max_timestamp
                       : (int64_t)((uint64_t)s->header.base_timestamp + (uint64_t)timestamp_delta);
    return 0;
}

static int carry_append(struct columns_source *s, size_t n) {
    assert(n <= (size_t)(s->chunk_end - s->chunk) && s->carry_len <= s->carry_room);
    if (s->carry_room - s->carry_len < n) {
        size_t room = s->carry_room * 2 > s->carry_len + n ? s->carry_room * 2 : s->carry_len + n;
        room = room < SOURCE_CARRY_BYTES_MIN ? (size_t)SOURCE_CARRY_BYTES_MIN : room;
        uint8_t *grown = realloc(s->carry, room);
        if (grown == NULL) {
            return BATCH_E_MEMORY;
        }
        s->carry = grown;
        s->carry_room = room;
    }
    memcpy(s->carry + s->carry_len, s->chunk, n);
    s->carry_len += n;
    s->chunk += n;
    assert(s->carry_len <= s->carry_room);
    return 0;
}

/* Fills the carry up to `bytes`, from as many pieces as needed. */
static int carry_fill(struct columns_source *s, size_t bytes) {
    while (s->carry_len < bytes) {
        if (s->chunk == s->chunk_end) {
            int rc = source_next_chunk(s);
            if (rc <= 0) {
                return rc < 0 ? rc : BATCH_E_RECORD;
            }
        }
        size_t left = (size_t)(s->chunk_end - s->chunk), wanted = bytes - s->carry_len;
        int rc = carry_append(s, left < wanted ? left : wanted);
        if (rc < 0) {
            return rc;
        }
    }
    return 0;
}

/* Reads a record that starts in this piece and ends beyond it. */
static int source_straddling(struct columns_source *s, struct columns_view *v) {
    s->carry_len = 0;
    for (size_t n = 1; n <= VARINT_BYTES_MAX; n++) {
        int rc = carry_fill(s, n);
        if (rc < 0) {
            return rc;
        }
        if (s->carry[n - 1] & 0x80) {
            continue;
        }
        int64_t body;
        if (varint_get_long(s->carry, s->carry + n, VARINT_BYTES_MAX, &body) == NULL ||
            body < RECORDS_BYTES_MIN - 1) {
            return BATCH_E_RECORD;
        }
        rc = carry_fill(s, n + (size_t)body);
        return rc < 0 ? rc : source_record(s, s->carry + n, s->carry + n + body, v);
    }
    return BATCH_E_RECORD;
}

/* Adds views of records that are completely in the piece. Returns the number of views including
 * the `n` that existed; errors are in s->error. Stops at a record that spans pieces. */
static int source_run(struct columns_source *s, int n, bool *straddles) {
    const uint8_t *p = s->chunk, *end = s->chunk_end;
    const int64_t next_offset = s->next_offset;
    *straddles = false;
    while (n < COLUMNS_VIEWS_MAX && s->records_left > 0 && p < end) {
        int64_t body;
        const uint8_t *at = varint_get(p, end, VARINT_BYTES_MAX, &body);
        if (UNLIKELY(at == NULL || body > end - at)) {
            *straddles = true;
            break;
        }
        if (UNLIKELY(body < RECORDS_BYTES_MIN - 1)) {
            s->error = BATCH_E_RECORD;
            break;
        }
        struct columns_view *v = &s->views[n];
        s->error = source_record(s, at, at + body, v);
        if (UNLIKELY(s->error < 0)) {
            break;
        }
        n += v->offset >= next_offset;
        s->records_left--;
        p = at + body;
    }
    assert(p >= s->chunk && p <= end && s->records_left >= 0);
    s->chunk = p;
    return n;
}

/* Returns the number of views of the current batch, 0 at its end. After an error, the views
 * before it are returned first. */
static int source_views(struct columns_source *s) {
    int n = 0;
    while (n < COLUMNS_VIEWS_MAX && s->records_left > 0 && s->error == 0) {
        bool straddles;
        n = source_run(s, n, &straddles);
        if (s->error < 0 || s->records_left == 0 || n == COLUMNS_VIEWS_MAX) {
            break;
        }
        /* The next piece overwrites this one, and the next straddling record overwrites the
         * carry. Return the existing views first. */
        if (n > 0) {
            break;
        }
        if (straddles) {
            s->error = source_straddling(s, &s->views[0]);
            if (s->error == 0) {
                s->records_left--;
                n = s->views[0].offset >= s->next_offset;
            }
        } else {
            int rc = source_next_chunk(s);
            s->error = rc < 0 ? rc : rc == 0 ? BATCH_E_RECORD : 0;
        }
    }
    return n;
}

/* Skips the end of a batch, and batches without records. Returns 0 or COLUMNS_NEEDS_INFLATER;
 * errors are in s->error. */
static int source_skip_empty(struct columns_source *s) {
    while (s->error == 0 && !s->exhausted) {
        int rc;
        if (s->in_batch) {
            if (s->records_left > 0) {
                return 0;
            }
            rc = source_end_batch(s);
        } else {
            rc = source_next_batch(s);
            if (rc == COLUMNS_NEEDS_INFLATER) {
                return rc;
            }
        }
        s->exhausted = rc == SOURCE_END;
        s->error = rc < 0 ? rc : 0;
    }
    return 0;
}

int columns_source_next(struct columns_source *s) {
    while (s->view_at == s->view_count) {
        int rc = source_skip_empty(s);
        if (rc < 0) {
            return rc;
        }
        if (s->error < 0 || s->exhausted) {
            return s->error;
        }
        s->view_at = 0;
        s->view_count = source_views(s);
        assert(s->view_count >= 0 && s->view_count <= COLUMNS_VIEWS_MAX);
    }
    return s->view_count - s->view_at;
}

void columns_source_consume(struct columns_source *s, int32_t n) {
    assert(n >= 0 && n <= s->view_count - s->view_at);
    if (n == 0) {
        return;
    }
    s->view_at += n;
    /* Offsets must increase: otherwise a consumer could read the same records forever. */
    assert(s->views[s->view_at - 1].offset >= s->next_offset);
    s->next_offset = s->views[s->view_at - 1].offset + 1;
    if (s->view_at == s->view_count) {
        /* Moves the consumer's offset past markers and gaps immediately. */
        (void)source_skip_empty(s);
    }
}
