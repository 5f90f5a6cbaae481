/* CRC-32C by ISA-L, which picks PCLMULQDQ or SSE4.2 loops by CPUID when first called, and by
 * slicing-by-8 tables.
 *
 * Slicing: eight table look-ups fold eight bytes at once; table k holds the remainder of a byte
 * followed by k zero bytes (Kounavis and Berry, 2005). */
#include "format/crc32c.h"

#include <isa-l/crc.h>
#include <string.h>

#include "format/crc32c_table.h"

/* ISA-L counts in int. */
enum {
    CRC32C_STEP_MAX = 1 << 30
};

uint32_t crc32c_extend(uint32_t crc, const void *data, size_t n) {
    const uint8_t *p = data;
    uint32_t state = ~crc;
    while (n > CRC32C_STEP_MAX) {
        /* The library's parameter lacks const; it only reads. */
        state = crc32_iscsi((unsigned char *)(uintptr_t)p, CRC32C_STEP_MAX, state);
        p += CRC32C_STEP_MAX;
        n -= CRC32C_STEP_MAX;
    }
    if (n > 0) {
        state = crc32_iscsi((unsigned char *)(uintptr_t)p, (int)n, state);
    }
    return ~state;
}

uint32_t crc32c_extend_portable(uint32_t crc, const void *data, size_t n) {
    const uint8_t *p = data;
    uint32_t state = ~crc;
    while (n >= 8) {
        uint32_t low = state ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                                (uint32_t)p[3] << 24);
        state = crc32c_table[7][low & 0xff] ^ crc32c_table[6][low >> 8 & 0xff] ^
                crc32c_table[5][low >> 16 & 0xff] ^ crc32c_table[4][low >> 24] ^
                crc32c_table[3][p[4]] ^ crc32c_table[2][p[5]] ^ crc32c_table[1][p[6]] ^
                crc32c_table[0][p[7]];
        p += 8;
        n -= 8;
    }
    while (n-- > 0) {
        state = state >> 8 ^ crc32c_table[0][(state ^ *p++) & 0xff];
    }
    return ~state;
}
