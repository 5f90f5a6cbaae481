from libc.stdint cimport int32_t, int64_t, uint8_t


cdef extern from "columns/lines.h" nogil:
    int64_t lines_count(const uint8_t *data, size_t len, bint last, int64_t rows_max,
                        size_t *bytes)
    struct lines_column:
        int32_t *offsets
        uint8_t *data
        uint8_t *validity
    int64_t lines_split(const uint8_t *data, size_t len, int64_t rows, const uint8_t *separator,
                        size_t separator_len, lines_column *key, lines_column *value)
    struct lines_values:
        const int32_t *offsets
        const uint8_t *data
        const uint8_t *validity
    struct lines_rows:
        const int64_t *offsets
        const int64_t *timestamps
        lines_values key, value, header_key, header_value
        const int32_t *header_offsets
    struct lines_text:
        uint8_t *bytes
        size_t len, room
    bint lines_raw(const lines_rows *rows, int64_t start, int64_t stop, bint with_keys,
                   lines_text *out)
    bint lines_json(const lines_rows *rows, int64_t start, int64_t stop, const uint8_t *head,
                    size_t head_len, lines_text *out)
