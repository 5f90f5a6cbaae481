/* Decodes flat Avro records into Arrow columns: primitive types, fixed, enums, and unions of one
 * of these with null. */
#ifndef PYLOG_AVRO_H
#define PYLOG_AVRO_H

#include <stddef.h>
#include <stdint.h>

#include "columns/builder.h"

enum avro_kind {
    AVRO_NULL,
    AVRO_BOOLEAN, /* one bit in Arrow */
    AVRO_INT,
    AVRO_LONG, /* may also be decoded from an int */
    AVRO_FLOAT,
    AVRO_DOUBLE,
    AVRO_BYTES, /* also strings: offsets and data */
    AVRO_FIXED,
    AVRO_ENUM /* encoded as an index, decoded as the symbol's text */
};

enum avro_error {
    AVRO_E_MEMORY = -1,
    AVRO_E_VALUE = -2,  /* truncated, or not valid for the schema */
    AVRO_E_SIZE = -3,   /* more bytes in one column than 32-bit offsets can address */
    AVRO_E_COLUMN = -4, /* the input's offsets are outside its data */
};

enum {
    AVRO_HEAD_BYTES = 5, /* Confluent's header: a zero byte, then the schema id */
    AVRO_NO_UNION = -1
};

/* The fields, in the order in which they were written. */
struct avro_field {
    int kind;
    int null_branch; /* branch of null in the union: 0 or 1; AVRO_NO_UNION: not a union */
    int32_t column;  /* index of the output column; -1: skip the field */
    int32_t size;    /* bytes of a fixed, symbols of an enum */
    const int32_t *symbol_ends; /* for an enum: end of each symbol in `symbols` */
    const uint8_t *symbols;
};

struct avro_column {
    int kind;
    int32_t size;      /* bytes of a fixed */
    uint8_t *values;   /* one per row, or the bytes that `offsets` divide */
    size_t len, room;  /* of `values` if it is divided by `offsets` */
    int32_t *offsets;
    uint8_t *validity; /* one bit per row, set if the row is not null */
    int64_t null_count;
};

/* Allocates space for `rows` rows; set kind and size before. Returns 0 or AVRO_E_MEMORY. */
int avro_column_begin(struct avro_column *c, size_t rows);
void avro_column_end(struct avro_column *c);

/* Returns the schema id of a row in Confluent's format, -1 if the row is null, or an avro_error
 * - 1. */
int64_t avro_schema_id(const struct builder_column *rows, int64_t row);

/* Decodes rows from `row` on, up to `stop`, while they are null or were written with schema
 * `id`. The fields must fill each column exactly once. A null row is null in all columns.
 * Returns the row at which it stopped; *error is 0, or the error of that row, whose columns are
 * then incomplete. */
int64_t avro_decode(const struct avro_field *fields, size_t field_count, int64_t id,
                    struct avro_column *columns, size_t column_count,
                    const struct builder_column *rows, int64_t row, int64_t stop, int *error);

#endif
