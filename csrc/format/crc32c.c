/* CRC-32C with ISA-L, which chooses PCLMULQDQ or SSE4.2 loops by CPUID on the first call; for
 * short data with SSE4.2's crc32 instruction; and as a fallback with slicing-by-8 tables.
 *
 * Slicing: eight table lookups process eight bytes at once; table k holds the remainder of a
 * byte followed by k zero bytes (Kounavis and Berry, 2005). */
#include "format/crc32c.h"

#include <isa-l/crc.h>
#include <stdbool.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <nmmintrin.h>
#endif

#include "format/crc32c_table.h"

/* ISA-L takes an int. */
enum {
    CRC32C_STEP_MAX = 1 << 30,
    CRC32C_SHORT_MAX = 4096
};

/* For short data, the crc32 instruction if available: after a pause, the first vector
 * instructions cost half a microsecond, which is more than they save up to this length. */
#if defined(__x86_64__)
/* Checked once, because a hypervisor may need microseconds for CPUID. Not with
 * __builtin_cpu_supports, which always returns false when zig compiles. */
static bool has_instruction;

__attribute__((constructor)) static void detect_instruction(void) {
    unsigned eax, ebx, ecx, edx;
    has_instruction = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_SSE4_2) != 0;
}

/* "crc32": when Clang compiles for an older processor, SSE4.2 does not include this instruction. */
__attribute__((target("sse4.2,crc32"))) static uint32_t crc32c_words(uint32_t state,
                                                                     const uint8_t *p, size_t n) {
    uint64_t wide = state;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, p, sizeof word);
        wide = _mm_crc32_u64(wide, word);
    }
    state = (uint32_t)wide;
    while (n-- > 0) state = _mm_crc32_u8(state, *p++);
    return state;
}

static bool crc32c_short(uint32_t *state, const uint8_t *p, size_t n) {
    if (n > CRC32C_SHORT_MAX || !has_instruction) return false;
    *state = crc32c_words(*state, p, n);
    return true;
}
#else
static bool crc32c_short(uint32_t *state, const uint8_t *p, size_t n) {
    (void)state, (void)p, (void)n;
    return false;
}
#endif

uint32_t crc32c_extend(uint32_t crc, const void *data, size_t n) {
    const uint8_t *p = data;
    uint32_t state = ~crc;
    if (crc32c_short(&state, p, n)) return ~state;
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
