/* FNV-1a, with its high bits folded in: tables take the low ones. For names and ids, which their
 * owners chose; no table of ours grows without a limit. */
#ifndef PYLOG_HASH_H
#define PYLOG_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_SEED 2166136261u

/* `seed`: HASH_SEED, changed by what else tells the keys of a table apart. */
static inline uint32_t hash_bytes(uint32_t seed, const uint8_t *p, size_t n) {
    uint32_t h = seed;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 16777619u;
    return h ^ (h >> 15);
}

#endif
