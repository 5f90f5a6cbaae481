/* Items of one size that are named by index and generation: a name that outlived its item finds
 * nothing. Items never move, and what was ever in use stays until the end. One thread. */
#ifndef PYLOG_SLAB_H
#define PYLOG_SLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SLAB_CHUNK_ITEMS = 32, SLAB_ITEMS_MAX = 1 << 24 };

struct slab_item {              /* first member of every item */
    uint32_t index, generation; /* the generation rises when the item is given back */
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
/* An item, zeroed but for its name; NULL: out of memory or SLAB_ITEMS_MAX. *grew: SLAB_CHUNK_ITEMS
 * more items exist. */
void *slab_take(struct slab *s, bool *grew);
void slab_give(struct slab *s, void *item);
/* Takes back a slab_take that grew, when what the new items need is not to be had: they are gone
 * again, so that the next one grows. */
void slab_undo(struct slab *s, void *item);
void *slab_find(const struct slab *s, uint32_t index, uint32_t generation);
/* The item at `index` when it lives, else NULL; index < slab_room. */
void *slab_at(const struct slab *s, uint32_t index);
static inline uint32_t slab_room(const struct slab *s) { return s->chunk_count * SLAB_CHUNK_ITEMS; }

#endif
