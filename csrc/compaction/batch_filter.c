/* Reads records in the decompressed payload and copies the retained ones one after another,
 * because the bytes of a record depend only on the batch's base offset and base timestamp. */
#include "compaction/batch_filter.h"

#include <stdlib.h>
#include <string.h>

#include "compaction/offset_map.h"
#include "format/batch.h"
#include "format/bytes.h"
#include "format/compress.h"
#include "format/crc32c.h"

enum { CLEAN_VARINT_BYTES_MAX = 10, CLEAN_ROOM_MIN = 64 << 10, MARKER_ABORT = 0 };

/* ---- transactions ---- */

void clean_transactions_free(struct clean_transactions *t) {
    free(t->list);
    memset(t, 0, sizeof *t);
}

static bool add_transaction(struct clean_transactions *t, struct clean_transaction one) {
    if (t->count == t->capacity) {
        uint32_t capacity = t->capacity == 0 ? 16 : t->capacity * 2;
        struct clean_transaction *list = realloc(t->list, capacity * sizeof *list);
        if (list == NULL) return false;
        t->list = list;
        t->capacity = capacity;
    }
    t->list[t->count++] = one;
    return true;
}

static struct clean_transaction *find_transaction(struct clean_transactions *t, int64_t id) {
    for (uint32_t i = 0; i < t->count; i++)
        if (t->list[i].producer_id == id) return &t->list[i];
    return NULL;
}

int clean_follow(struct clean_transactions *open, struct clean_transactions *aborted,
                 const struct batch_header *h, const uint8_t *p) {
    if (!(h->attributes & BATCH_TRANSACTIONAL)) return 0;
    struct clean_transaction *found = find_transaction(open, h->producer_id);
    if (!(h->attributes & BATCH_CONTROL)) {
        if (found != NULL) return 0;
        struct clean_transaction one = {h->producer_id, h->base_offset, -1};
        return add_transaction(open, one) ? 0 : BATCH_E_MEMORY;
    }
    if (found == NULL) return 0;
    struct clean_transaction ended = *found;
    *found = open->list[--open->count];
    int32_t coordinator_epoch;
    if (aborted != NULL && batch_marker(p, h, &coordinator_epoch) == MARKER_ABORT) {
        ended.last_offset = batch_last_offset(h);
        if (!add_transaction(aborted, ended)) return BATCH_E_MEMORY;
    }
    return 1;
}

static int by_producer(const void *a, const void *b) {
    const struct clean_transaction *x = a, *y = b;
    if (x->producer_id != y->producer_id) return x->producer_id < y->producer_id ? -1 : 1;
    return x->first_offset < y->first_offset ? -1 : x->first_offset > y->first_offset;
}

void clean_sort(struct clean_transactions *aborted) {
    if (aborted->count > 1)
        qsort(aborted->list, aborted->count, sizeof *aborted->list, by_producer);
}

bool clean_is_aborted(const struct clean_transactions *aborted, const struct batch_header *h) {
    if ((h->attributes & (BATCH_TRANSACTIONAL | BATCH_CONTROL)) != BATCH_TRANSACTIONAL)
        return false;
    struct clean_transaction wanted = {h->producer_id, h->base_offset, 0};
    uint32_t low = 0, n = aborted->count;
    while (n > 0) {
        uint32_t half = n / 2;
        bool below = by_producer(&aborted->list[low + half], &wanted) <= 0;
        low = below ? low + half + 1 : low;
        n = below ? n - half - 1 : half;
    }
    if (low == 0) return false;
    const struct clean_transaction *one = &aborted->list[low - 1];
    return one->producer_id == h->producer_id && h->base_offset <= one->last_offset;
}

/* ---- records ---- */

struct clean_record {
    const uint8_t *begin, *end; /* including its length */
    const uint8_t *body;        /* after the length: attributes */
    const uint8_t *rest;        /* after the timestamp delta */
    const uint8_t *key;
    int64_t timestamp_delta;
    int32_t offset_delta, key_len; /* -1: null */
    bool tombstone;
};

static bool take_varint(const uint8_t **p, const uint8_t *end, int64_t *value) {
    uint64_t bits;
    size_t n = get_uvarint(*p, end, CLEAN_VARINT_BYTES_MAX, &bits);
    if (n == 0) return false;
    *p += n;
    *value = zigzag_decode(bits);
    return true;
}

/* Returns 1 and the next record, 0 at the end, or BATCH_E_RECORD. */
static int next_record(const uint8_t **p, const uint8_t *end, struct clean_record *r) {
    int64_t length, value;
    if (*p == end) return 0;
    r->begin = *p;
    if (!take_varint(p, end, &length) || length < 1 || length > end - *p) return BATCH_E_RECORD;
    r->body = *p;
    r->end = *p + length;
    const uint8_t *at = r->body + 1;
    if (!take_varint(&at, r->end, &r->timestamp_delta)) return BATCH_E_RECORD;
    r->rest = at;
    if (!take_varint(&at, r->end, &value) || value < 0 || value > INT32_MAX) return BATCH_E_RECORD;
    r->offset_delta = (int32_t)value;
    if (!take_varint(&at, r->end, &value) || value < -1 || value > r->end - at)
        return BATCH_E_RECORD;
    r->key_len = (int32_t)value;
    r->key = at;
    if (value > 0) at += value;
    if (!take_varint(&at, r->end, &value) || value < -1 || value > r->end - at)
        return BATCH_E_RECORD;
    r->tombstone = value < 0;
    *p = r->end;
    return 1;
}

/* ---- buffers ---- */

static bool make_room(struct clean_buffer *b, size_t more) {
    if (b->room - b->len >= more) return true;
    size_t room = b->room * 2 > b->len + more ? b->room * 2 : b->len + more;
    if (room < CLEAN_ROOM_MIN) room = CLEAN_ROOM_MIN;
    uint8_t *bytes = realloc(b->bytes, room);
    if (bytes == NULL) return false;
    b->bytes = bytes;
    b->room = room;
    return true;
}

static bool add_bytes(struct clean_buffer *b, const uint8_t *p, size_t len) {
    if (!make_room(b, len)) return false;
    memcpy(b->bytes + b->len, p, len);
    b->len += len;
    return true;
}

void clean_work_free(struct clean_work *w) {
    free(w->plain.bytes);
    free(w->kept.bytes);
    free(w->made);
    memset(w, 0, sizeof *w);
}

/* Finds the plain records of a batch: in place, or decompressed. Returns 0 or a batch_error. */
static int open_records(const uint8_t *p, const struct batch_header *h, uint64_t inflated_bytes_max,
                        struct clean_work *w, const uint8_t **begin, const uint8_t **end) {
    *begin = p + BATCH_HEADER_BYTES;
    *end = p + batch_bytes(h);
    if (batch_codec(h) == CODEC_NONE) return 0;
    const uint8_t *chunk;
    size_t n;
    w->plain.len = 0;
    int rc = inflater_begin(w->inflater, batch_codec(h), *begin, (size_t)(*end - *begin),
                            inflated_bytes_max);
    if (rc < 0) return batch_inflate_error(rc);
    while ((rc = inflater_next(w->inflater, &chunk, &n)) == 1)
        if (!add_bytes(&w->plain, chunk, n)) return BATCH_E_MEMORY;
    if (rc < 0) return batch_inflate_error(rc);
    if (w->plain.len > 0) *begin = w->plain.bytes;
    *end = *begin + w->plain.len;
    return 0;
}

/* ---- the map ---- */

int clean_map(struct offset_map *map, const uint8_t *p, const struct batch_header *h, int64_t from,
              uint64_t inflated_bytes_max, struct clean_work *w) {
    const uint8_t *at, *end;
    struct clean_record r;
    int result = open_records(p, h, inflated_bytes_max, w, &at, &end);
    if (result < 0) return result;
    while ((result = next_record(&at, end, &r)) == 1) {
        int64_t offset = h->base_offset + r.offset_delta;
        if (r.key_len >= 0 && offset >= from &&
            !offset_map_put(map, r.key, (size_t)r.key_len, offset))
            return 0;
    }
    return result < 0 ? result : 1;
}

/* ---- retained records ---- */

static bool has_horizon(const struct batch_header *h) {
    return (h->attributes & BATCH_DELETE_HORIZON) != 0;
}

int clean_empty(const uint8_t *p, const struct batch_header *h, struct clean_work *w) {
    free(w->made);
    w->made = malloc(BATCH_HEADER_BYTES);
    if (w->made == NULL) return BATCH_E_MEMORY;
    memcpy(w->made, p, BATCH_HEADER_BYTES);
    w->made_len = BATCH_HEADER_BYTES;
    put_i32(w->made + BATCH_LENGTH_AT, BATCH_HEADER_BYTES - BATCH_LOG_OVERHEAD);
    put_i16(w->made + BATCH_ATTRIBUTES_AT,
            (int16_t)(h->attributes & ~(BATCH_CODEC_MASK | BATCH_DELETE_HORIZON)));
    put_i64(w->made + BATCH_BASE_TIMESTAMP_AT, h->max_timestamp);
    put_i32(w->made + BATCH_RECORD_COUNT_AT, 0);
    put_u32(w->made + BATCH_CRC_AT, crc32c_extend(0, w->made + BATCH_ATTRIBUTES_AT,
                                                  w->made_len - BATCH_ATTRIBUTES_AT));
    return 0;
}

struct clean_header {
    int64_t base_timestamp, max_timestamp;
    int32_t count;
    bool horizon;
};

static int make_batch(const uint8_t *p, const struct batch_header *h, const struct clean_header *c,
                      struct clean_work *w) {
    uint8_t header[BATCH_HEADER_BYTES];
    memcpy(header, p, sizeof header);
    int16_t attributes = h->attributes;
    if (c->horizon) attributes |= BATCH_DELETE_HORIZON;
    put_i16(header + BATCH_ATTRIBUTES_AT, attributes);
    put_i64(header + BATCH_BASE_TIMESTAMP_AT, c->base_timestamp);
    if (!(attributes & BATCH_LOG_APPEND_TIME))
        put_i64(header + BATCH_MAX_TIMESTAMP_AT, c->max_timestamp);
    put_i32(header + BATCH_RECORD_COUNT_AT, c->count);
    return batch_assemble(header, batch_codec(h), INT32_MIN, w->kept.bytes, w->kept.len, &w->made,
                          &w->made_len);
}

/* Copies a record with its timestamp relative to another base. */
static bool add_rebased(struct clean_buffer *b, const struct clean_record *r, int64_t delta) {
    uint8_t head[2 * CLEAN_VARINT_BYTES_MAX + 1], time[CLEAN_VARINT_BYTES_MAX];
    size_t time_len = put_uvarint(time, zigzag_encode(delta)), rest = (size_t)(r->end - r->rest);
    size_t n = put_uvarint(head, zigzag_encode((int64_t)(1 + time_len + rest)));
    head[n++] = r->body[0];
    memcpy(head + n, time, time_len);
    return add_bytes(b, head, n + time_len) && add_bytes(b, r->rest, rest);
}

/* Result of one pass over a batch's records: what stays, and whether this includes a tombstone. */
struct clean_counts {
    int32_t read, kept;
    int64_t max_timestamp;
    bool tombstones;
};

static bool record_stays(const struct clean_batch_rules *rules, const struct batch_header *h,
                         const struct clean_record *r) {
    if (h->attributes & BATCH_CONTROL) return true;
    if (r->key_len < 0) return false;
    int64_t newest = offset_map_get(rules->map, r->key, (size_t)r->key_len);
    if (h->base_offset + r->offset_delta < newest) return false;
    return !r->tombstone || !has_horizon(h) || rules->now_ms < h->base_timestamp;
}

/* `rebase`: the copies have timestamps relative to `base_timestamp`. */
static int keep_records(const struct clean_batch_rules *rules, const struct batch_header *h,
                        const uint8_t *at, const uint8_t *end, bool rebase, int64_t base_timestamp,
                        struct clean_work *w, struct clean_counts *counts) {
    struct clean_record r;
    int result;
    w->kept.len = 0;
    *counts = (struct clean_counts){.max_timestamp = -1};
    while ((result = next_record(&at, end, &r)) == 1) {
        counts->read++;
        if (!record_stays(rules, h, &r)) continue;
        int64_t timestamp = h->base_timestamp + r.timestamp_delta;
        counts->kept++;
        counts->tombstones |= r.tombstone;
        if (timestamp > counts->max_timestamp) counts->max_timestamp = timestamp;
        bool added = rebase ? add_rebased(&w->kept, &r, timestamp - base_timestamp)
                            : add_bytes(&w->kept, r.begin, (size_t)(r.end - r.begin));
        if (!added) return BATCH_E_MEMORY;
    }
    return result;
}

static int keep_batch(const struct clean_batch_rules *rules, const uint8_t *p,
                      const struct batch_header *h, const struct clean_batch_facts *facts,
                      struct clean_work *w, struct clean_result *out) {
    const uint8_t *at, *end;
    struct clean_counts counts;
    int result = open_records(p, h, rules->inflated_bytes_max, w, &at, &end);
    if (result == 0) result = keep_records(rules, h, at, end, false, 0, w, &counts);
    if (result < 0) return result;
    out->read = counts.read;
    out->kept = counts.kept;
    bool marker = (h->attributes & BATCH_CONTROL) != 0;
    bool ages = !has_horizon(h) && (marker ? facts->empty_marker : counts.tombstones);
    if (counts.kept == 0) {
        if (!facts->stays) return 0;
        if (counts.read == 0) {
            *out = (struct clean_result){p, batch_bytes(h), 0, 0};
            return 0;
        }
        result = clean_empty(p, h, w);
    } else if (counts.kept == counts.read && !ages) {
        out->bytes = p;
        out->len = batch_bytes(h);
        return 0;
    } else {
        struct clean_header c = {h->base_timestamp, counts.max_timestamp, counts.kept, ages};
        if (ages) {
            c.base_timestamp = rules->now_ms + rules->delete_retention_ms;
            result = keep_records(rules, h, at, end, true, c.base_timestamp, w, &counts);
        }
        if (result == 0) result = make_batch(p, h, &c, w);
    }
    out->bytes = w->made;
    out->len = w->made_len;
    return result;
}

int clean_batch(const struct clean_batch_rules *rules, const uint8_t *p,
                const struct batch_header *h, const struct clean_batch_facts *facts,
                struct clean_work *w, struct clean_result *out) {
    free(w->made);
    w->made = NULL;
    *out = (struct clean_result){NULL, 0, h->record_count < 0 ? 0 : h->record_count, 0};
    bool marker = (h->attributes & BATCH_CONTROL) != 0;
    bool over = has_horizon(h) && rules->now_ms >= h->base_timestamp;
    if (facts->aborted || (marker && facts->empty_marker && over)) {
        if (!facts->stays) return 0;
        if (h->record_count == 0) {
            *out = (struct clean_result){p, batch_bytes(h), 0, 0};
            return 0;
        }
        int result = clean_empty(p, h, w);
        out->bytes = w->made;
        out->len = w->made_len;
        return result;
    }
    return keep_batch(rules, p, h, facts, w, out);
}
