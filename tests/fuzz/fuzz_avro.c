/* Rows of any bytes, decoded with any flat schema: no read goes beyond a row, and full columns
 * give the same values as single rows.
 *
 * Input: the number of fields, for each field its kind and whether it is a union or skipped;
 * then rows, each after its length (255: null). */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "columns/avro.h"

enum { FIELDS_MAX = 6, ROWS_MAX = 64, FIXED_BYTES = 3 };

static const int32_t ENDS[] = {1, 1, 4};

struct rows {
    int32_t offsets[ROWS_MAX + 1];
    uint8_t validity[ROWS_MAX / 8 + 1];
    uint8_t *data;
    int64_t count;
};

static void rows_fill(struct rows *r, const uint8_t *p, const uint8_t *end) {
    size_t len = 0;
    memset(r, 0, sizeof *r);
    r->data = malloc((size_t)(end - p) + AVRO_HEAD_BYTES * ROWS_MAX + 1);
    assert(r->data != NULL);
    while (p < end && r->count < ROWS_MAX) {
        size_t wanted = *p++, left = (size_t)(end - p);
        size_t n = wanted == 255 ? 0 : wanted < left ? wanted : left;
        if (wanted != 255) {
            r->validity[r->count >> 3] |= (uint8_t)(1u << (r->count & 7));
            /* Most rows get a valid head, so that the bytes after it matter. */
            if (wanted & 7) {
                memcpy(r->data + len, "\0\0\0\0\7", AVRO_HEAD_BYTES);
                len += AVRO_HEAD_BYTES;
            }
        }
        memcpy(r->data + len, p, n);
        len += n;
        p += n;
        r->offsets[++r->count] = (int32_t)len;
    }
    uint8_t *exact = malloc(len + 1);
    assert(exact != NULL);
    memcpy(exact, r->data, len);
    free(r->data);
    r->data = realloc(exact, len > 0 ? len : 1);
}

static void column_check(const struct avro_column *c, int64_t rows) {
    int64_t nulls = 0;
    for (int64_t row = 0; row < rows; row++) {
        nulls += (c->validity[row >> 3] >> (row & 7) & 1) == 0;
        assert(c->offsets == NULL || c->offsets[row] <= c->offsets[row + 1]);
    }
    assert(nulls == c->null_count);
    assert(c->offsets == NULL || (size_t)c->offsets[rows] == c->len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct avro_field fields[FIELDS_MAX];
    struct avro_column columns[FIELDS_MAX];
    struct rows rows;
    const uint8_t *p = data, *end = data + size;
    size_t field_count = size == 0 ? 0 : *p++ % FIELDS_MAX + 1u, column_count = 0;
    for (size_t i = 0; i < field_count; i++) {
        uint8_t how = p < end ? *p++ : 0;
        fields[i] = (struct avro_field){
            .kind = how % (AVRO_ENUM + 1), .null_branch = (how >> 4) % 3 - 1, .column = -1,
            .symbol_ends = ENDS, .symbols = (const uint8_t *)"abcd"};
        fields[i].size = fields[i].kind == AVRO_ENUM ? 3 : FIXED_BYTES;
        if (how < 192) {
            fields[i].column = (int32_t)column_count;
            columns[column_count++] =
                (struct avro_column){.kind = fields[i].kind, .size = fields[i].size};
        }
    }
    rows_fill(&rows, p, end);
    struct builder_column given = {.offsets = rows.offsets, .data = rows.data,
                                   .validity = rows.validity, .width = 4,
                                   .data_len = rows.offsets[rows.count]};
    for (size_t i = 0; i < column_count; i++) {
        int rc = avro_column_begin(&columns[i], (size_t)rows.count);
        assert(rc == 0);
    }
    int error = 0;
    int64_t row = 0, before = -1;
    while (row < rows.count && error == 0 && row != before) {
        before = row;
        int64_t id = avro_schema_id(&given, row);
        row = avro_decode(fields, field_count, id, columns, column_count, &given, row, rows.count,
                          &error);
        assert(row >= before && row <= rows.count);
    }
    if (error == 0 && row == rows.count) {
        for (size_t i = 0; i < column_count; i++) {
            column_check(&columns[i], rows.count);
        }
    }
    for (size_t i = 0; i < column_count; i++) {
        avro_column_end(&columns[i]);
    }
    free(rows.data);
    return 0;
}
