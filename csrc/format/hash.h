/* FNV-1a with its high bits folded in, because tables use the low bits. For names and ids that
 * clients choose: every table that uses it has a size limit. */
#ifndef PYLOG_HASH_H
#define PYLOG_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_SEED 2166136261u

/* `seed`: HASH_SEED, combined with the other parts of the key. */
static inline uint32_t hash_bytes(uint32_t seed, const uint8_t *p, size_t n) {
    uint32_t h = seed;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 16777619u;
    return h ^ (h >> 15);
}

#endif
