/* Items of one size, identified by index and generation: a stale id finds nothing. Items never
 * move, and chunks are freed only by slab_clear. For one thread. */
#ifndef PYLOG_SLAB_H
#define PYLOG_SLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SLAB_CHUNK_ITEMS = 32, SLAB_ITEMS_MAX = 1 << 24 };

struct slab_item {              /* first member of each item */
    uint32_t index, generation; /* incremented when the item is freed */
    bool live;
    struct slab_item *next_free;
};

struct slab {
    uint8_t **chunks;
    struct slab_item *free;
    size_t item_bytes;
    uint32_t chunk_count, chunk_room, live;
};

void slab_init(struct slab *s, size_t item_bytes);
void slab_clear(struct slab *s);
/* Returns an item, zeroed except for its id, or NULL if out of memory or above SLAB_ITEMS_MAX.
 * *grew: SLAB_CHUNK_ITEMS items were added. */
void *slab_take(struct slab *s, bool *grew);
void slab_give(struct slab *s, void *item);
/* Reverts a slab_take that grew, if memory that the new items need cannot be allocated. The next
 * slab_take grows again. */
void slab_undo(struct slab *s, void *item);
void *slab_find(const struct slab *s, uint32_t index, uint32_t generation);
/* Returns the live item at `index`, or NULL; index < slab_room. */
void *slab_at(const struct slab *s, uint32_t index);
static inline uint32_t slab_room(const struct slab *s) { return s->chunk_count * SLAB_CHUNK_ITEMS; }

#endif
