/* Open addressing with linear probing; the first slot is the hash's high bits times the
 * capacity. */
#include "compaction/offset_map.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static inline uint64_t rotated(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static inline void sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[1] = rotated(v[1], 13) ^ v[0];
    v[0] = rotated(v[0], 32);
    v[2] += v[3];
    v[3] = rotated(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotated(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotated(v[1], 17) ^ v[2];
    v[2] = rotated(v[2], 32);
}

static inline uint64_t word_at(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

struct offset_map_hash offset_map_hash_of(const uint64_t seed[2], const uint8_t *key, size_t len) {
    uint64_t v[4] = {seed[0] ^ 0x736f6d6570736575u, seed[1] ^ 0x646f72616e646f6du ^ 0xee,
                     seed[0] ^ 0x6c7967656e657261u, seed[1] ^ 0x7465646279746573u};
    uint64_t tail = (uint64_t)len << 56;
    size_t whole = len & ~(size_t)7;
    for (size_t i = 0; i < whole; i += 8) {
        uint64_t word = word_at(key + i);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    for (size_t i = whole; i < len; i++) tail |= (uint64_t)key[i] << 8 * (i - whole);
    v[3] ^= tail;
    sip_round(v);
    v[0] ^= tail;
    v[2] ^= 0xee;
    for (int i = 0; i < 3; i++) sip_round(v);
    struct offset_map_hash hash = {.low = v[0] ^ v[1] ^ v[2] ^ v[3]};
    v[1] ^= 0xdd;
    for (int i = 0; i < 3; i++) sip_round(v);
    hash.high = v[0] ^ v[1] ^ v[2] ^ v[3];
    return hash;
}

bool offset_map_init(struct offset_map *m, size_t bytes, double load_factor) {
    memset(m, 0, sizeof *m);
    m->capacity = bytes / KEYMAP_SLOT_BYTES;
    if (m->capacity < 2) m->capacity = 2;
    m->count_max = (uint64_t)((double)m->capacity * load_factor);
    /* Probing ends at a free slot. */
    if (m->count_max >= m->capacity) m->count_max = m->capacity - 1;
    if (m->count_max == 0) m->count_max = 1;
    assert(m->count_max < m->capacity);
    if (getrandom(m->seed, sizeof m->seed, 0) != (ssize_t)sizeof m->seed) return false;
    m->slots = malloc((size_t)m->capacity * KEYMAP_SLOT_BYTES);
    if (m->slots == NULL) return false;
    offset_map_clear(m);
    return true;
}

void offset_map_free(struct offset_map *m) {
    free(m->slots);
    m->slots = NULL;
}

void offset_map_clear(struct offset_map *m) {
    m->count = 0;
    memset(m->slots, 0xff, (size_t)m->capacity * KEYMAP_SLOT_BYTES);
}

static struct offset_map_slot *offset_map_slot_of(const struct offset_map *m,
                                                  struct offset_map_hash key) {
    uint64_t at = (uint64_t)(((unsigned __int128)key.high * m->capacity) >> 64);
    for (;;) {
        struct offset_map_slot *slot = &m->slots[at];
        if (slot->offset < 0 || (slot->key.low == key.low && slot->key.high == key.high))
            return slot;
        if (++at == m->capacity) at = 0;
    }
}

bool offset_map_put(struct offset_map *m, const uint8_t *key, size_t len, int64_t offset) {
    assert(offset >= 0); /* -1 marks a free slot. */
    assert(m->count <= m->count_max);
    struct offset_map_hash hash = offset_map_hash_of(m->seed, key, len);
    struct offset_map_slot *slot = offset_map_slot_of(m, hash);
    if (slot->offset < 0) {
        if (m->count == m->count_max) return false;
        m->count++;
        slot->key = hash;
    }
    slot->offset = offset;
    return true;
}

int64_t offset_map_get(const struct offset_map *m, const uint8_t *key, size_t len) {
    return offset_map_slot_of(m, offset_map_hash_of(m->seed, key, len))->offset;
}
