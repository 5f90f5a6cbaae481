/* Finds one value in a JSON document by its path and compares it, without parsing the rest.
 *
 * The document may be any bytes. Nothing outside it is read, every call takes time proportional to
 * its length, and nothing recurses. Bytes behind the value are not read, so a document that is
 * damaged there still has the value. If an object repeats a name, its first member counts. */
#ifndef PYLOG_JSON_PATH_H
#define PYLOG_JSON_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum json_kind {
    JSON_OBJECT,
    JSON_ARRAY,
    JSON_STRING,
    JSON_NUMBER,
    JSON_LITERAL /* true, false or null; in an array also other words */
};

/* One step of a path. */
struct json_step {
    const uint8_t *name; /* UTF-8 without escapes; NULL: an index into an array */
    size_t name_len;
    int64_t index;
};

/* A value in a document. `text` of a string is between its quotes, of the others their bytes;
 * objects and arrays begin at their bracket and end with the document. */
struct json_value {
    enum json_kind kind;
    bool has_escapes;
    const uint8_t *text;
    size_t len;
};

/* Returns false if the document has no such value, or ends or is damaged before its end. */
bool json_find(const uint8_t *document, size_t len, const struct json_step *steps, size_t count,
               struct json_value *out);

/* Compares two numbers exactly; digits and exponents may have any length. Returns -1, 0 or 1.
 * *valid: whether both are numbers. */
int json_compare_numbers(const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len,
                         bool *valid);

/* Compares a string in a document with UTF-8 bytes. Returns -1, 0 or 1. */
int json_compare_string(const struct json_value *string, const uint8_t *text, size_t len);

/* Writes the UTF-8 bytes of a string to `out`, which has room for string->len bytes. Returns their
 * number. An unpaired surrogate becomes three bytes, a damaged escape stays as it is. */
size_t json_decode_string(const struct json_value *string, uint8_t *out);

/* Iterates over an array: *next is initially its text + 1. Returns false after the last element. */
bool json_next_element(const uint8_t **next, const uint8_t *end, struct json_value *out);

#endif
