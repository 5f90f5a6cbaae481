/* Flat Avro records decoded into Arrow columns: primitive types, fixed, enums, and unions of one of
 * these with null. */
#ifndef PYLOG_AVRO_H
#define PYLOG_AVRO_H

#include <stddef.h>
#include <stdint.h>

#include "columns/builder.h"

enum avro_kind {
    AVRO_NULL,
    AVRO_BOOLEAN, /* one bit in Arrow */
    AVRO_INT,
    AVRO_LONG, /* also where an int was written */
    AVRO_FLOAT,
    AVRO_DOUBLE,
    AVRO_BYTES, /* and strings: offsets and data */
    AVRO_FIXED,
    AVRO_ENUM /* written as a number, read as its symbol's text */
};

enum avro_error {
    AVRO_E_MEMORY = -1,
    AVRO_E_VALUE = -2,  /* cut short, or no value of its schema */
    AVRO_E_SIZE = -3,   /* more bytes in one column than 32-bit offsets can address */
    AVRO_E_COLUMN = -4, /* the input's offsets leave its data */
};

enum {
    AVRO_HEAD_BYTES = 5, /* Confluent's: zero, then the schema's id */
    AVRO_NO_UNION = -1
};

/* A field in the order in which it was written. */
struct avro_field {
    int kind;
    int null_branch; /* of a union with null: 0 or 1; else AVRO_NO_UNION */
    int32_t column;  /* that it goes to; -1: nobody wants it */
    int32_t size;    /* bytes of a fixed, symbols of an enum */
    const int32_t *symbol_ends; /* of an enum: where each symbol ends in `symbols` */
    const uint8_t *symbols;
};

struct avro_column {
    int kind;
    int32_t size;      /* bytes of a fixed */
    uint8_t *values;   /* by row, or the bytes that `offsets` delimit */
    size_t len, room;  /* of the latter */
    int32_t *offsets;
    uint8_t *validity; /* a bit for each row, set where there is a value */
    int64_t null_count;
};

/* Room for `rows` rows; kind and size are set. 0 or AVRO_E_MEMORY. */
int avro_column_begin(struct avro_column *c, size_t rows);
void avro_column_end(struct avro_column *c);

/* The schema id of a row in Confluent's format; -1 where it is null, else an avro_error - 1. */
int64_t avro_schema_id(const struct builder_column *rows, int64_t row);

/* Rows [row, stop) as long as they are null or were written with schema `id`; every column is
 * written once by each. A null row is null in all columns. The row to go on with; *error is 0, or
 * what is wrong with that row, whose columns are then unfinished. */
int64_t avro_decode(const struct avro_field *fields, size_t field_count, int64_t id,
                    struct avro_column *columns, size_t column_count,
                    const struct builder_column *rows, int64_t row, int64_t stop, int *error);

#endif
