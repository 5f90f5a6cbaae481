/* Chunks of items. Free items form a stack: the last one freed is reused first, while it is in
 * the CPU cache. */
#include "net/slab.h"

#include <stdlib.h>
#include <string.h>

#include "format/assertion.h"

void slab_init(struct slab *s, size_t item_bytes) {
    assert(item_bytes >= sizeof(struct slab_item));
    *s = (struct slab){.item_bytes = item_bytes};
}

void slab_clear(struct slab *s) {
    for (uint32_t i = 0; i < s->chunk_count; i++) free(s->chunks[i]);
    free(s->chunks);
    slab_init(s, s->item_bytes);
}

static struct slab_item *item_at(const struct slab *s, uint32_t index) {
    uint8_t *chunk = s->chunks[index / SLAB_CHUNK_ITEMS];
    return (struct slab_item *)(void *)(chunk + (index % SLAB_CHUNK_ITEMS) * s->item_bytes);
}

static bool grow(struct slab *s) {
    if (slab_room(s) >= SLAB_ITEMS_MAX) return false;
    if (s->chunk_count == s->chunk_room) {
        uint32_t room = s->chunk_room == 0 ? 8 : 2 * s->chunk_room;
        uint8_t **grown = realloc(s->chunks, room * sizeof *grown);
        if (grown == NULL) return false;
        s->chunks = grown;
        s->chunk_room = room;
    }
    uint8_t *chunk = calloc(SLAB_CHUNK_ITEMS, s->item_bytes);
    if (chunk == NULL) return false;
    s->chunks[s->chunk_count++] = chunk;
    for (uint32_t i = SLAB_CHUNK_ITEMS; i-- > 0;) {
        struct slab_item *item = item_at(s, slab_room(s) - SLAB_CHUNK_ITEMS + i);
        item->index = slab_room(s) - SLAB_CHUNK_ITEMS + i;
        item->generation = 1;
        item->next_free = s->free;
        s->free = item;
    }
    return true;
}

void *slab_take(struct slab *s, bool *grew) {
    *grew = s->free == NULL;
    if (s->free == NULL && !grow(s)) {
        *grew = false;
        return NULL;
    }
    struct slab_item *item = s->free;
    assert_slow(!item->live && item->generation != 0);
    s->free = item->next_free;
    memset(item + 1, 0, s->item_bytes - sizeof *item);
    item->live = true;
    s->live++;
    assert_slow(s->live <= slab_room(s));
    return item;
}

void slab_give(struct slab *s, void *given) {
    struct slab_item *item = given;
    assert(item->live);
    assert_slow(s->live > 0);
    assert_slow(item_at(s, item->index) == item);
    item->live = false;
    if (++item->generation == 0) item->generation = 1;
    item->next_free = s->free;
    s->free = item;
    s->live--;
}

void slab_undo(struct slab *s, void *at) {
    struct slab_item *item = at;
    assert(item->live && item->index == slab_room(s) - SLAB_CHUNK_ITEMS);
    s->live--;
    s->free = NULL; /* it was empty, hence slab_take grew */
    free(s->chunks[--s->chunk_count]);
}

void *slab_at(const struct slab *s, uint32_t index) {
    if (index >= slab_room(s)) return NULL;
    struct slab_item *item = item_at(s, index);
    return item->live ? item : NULL;
}

void *slab_find(const struct slab *s, uint32_t index, uint32_t generation) {
    struct slab_item *item = slab_at(s, index);
    return item != NULL && item->generation == generation ? item : NULL;
}
