/* Keys seen by the log cleaner, each with the offset of its newest record: 24 bytes per key in
 * one table of fixed size, for keys of any length.
 *
 * A key is stored as its 128-bit SipHash under a random seed: a collision would lose a record,
 * and producers do not know the seed. */
#ifndef PYLOG_OFFSET_MAP_H
#define PYLOG_OFFSET_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct offset_map_hash {
    uint64_t low, high;
};

struct offset_map_slot {
    struct offset_map_hash key;
    int64_t offset; /* -1: free */
};

struct offset_map {
    struct offset_map_slot *slots;
    uint64_t capacity, count, count_max;
    uint64_t seed[2];
};

enum { KEYMAP_SLOT_BYTES = sizeof(struct offset_map_slot) };

/* SipHash-1-3 with 128 bits of output. */
struct offset_map_hash offset_map_hash_of(const uint64_t seed[2], const uint8_t *key, size_t len);

/* Allocates a table of `bytes`, which accepts keys up to `load_factor`. Returns false if out of
 * memory or randomness. */
bool offset_map_init(struct offset_map *m, size_t bytes, double load_factor);
void offset_map_free(struct offset_map *m);
/* Removes all keys; keeps the seed. */
void offset_map_clear(struct offset_map *m);
/* Returns false if the map is full and does not contain the key. */
bool offset_map_put(struct offset_map *m, const uint8_t *key, size_t len, int64_t offset);
/* Returns the newest offset of the key, -1 if it is not in the map. */
int64_t offset_map_get(const struct offset_map *m, const uint8_t *key, size_t len);

#endif
