/* Receive buffers for requests, and the pool of each reactor.
 *
 * A buffer's size follows the bytes that arrived, never a declared length. Connections without
 * pending bytes hold no buffer. A buffer is referenced by its connection and by each request
 * whose body must stay in place. A connection whose buffer has other references takes a new one
 * instead of moving bytes. Large buffers are separate maps, so that freeing them returns memory
 * to the system. */
#ifndef PYLOG_INPUT_H
#define PYLOG_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { INPUT_CLASS_MIN = 10, INPUT_CLASS_MAX = 31, INPUT_MAP_CLASS_MIN = 16 };
enum {
    INPUT_SPARE_BYTES_MAX = 64 << 20, /* free buffers in a pool */
    /* 1/INPUT_RESERVED_PART of the limit is reserved for buffers up to INPUT_SMALL_BYTES, so
     * that stalled large requests do not block small ones. */
    INPUT_RESERVED_PART = 8,
    INPUT_SMALL_BYTES = 64 << 10,
    /* 1/INPUT_TINY_PART is reserved for buffers up to INPUT_TINY_BYTES, in which frames start
     * when memory is tight. */
    INPUT_TINY_PART = 16,
    INPUT_TINY_BYTES = 4 << 10
};

struct input_buffer {
    struct input_buffer *next;
    uint32_t references, class_bits;
    size_t room; /* usable bytes: a power of two minus this header */
    uint8_t bytes[];
};

struct input_pool {
    struct input_buffer *spare[INPUT_CLASS_MAX + 1];
    uint32_t spare_count[INPUT_CLASS_MAX + 1], spare_least[INPUT_CLASS_MAX + 1];
    uint64_t held_bytes, spare_bytes, held_bytes_max, overdraft_bytes_max;
    uint64_t copied_bytes; /* requests copied out of the pool; they count toward the limit */
};

/* frame_bytes_max: size of the longest frame, by which input_take may exceed the limit with
 * `must`. */
void input_pool_init(struct input_pool *p, uint64_t held_bytes_max, size_t frame_bytes_max);
/* All buffers must have been released. */
void input_pool_clear(struct input_pool *p);
/* Returns true if more than half of the limit is used. New frames then start in tiny buffers. */
bool input_is_tight(const struct input_pool *p);
/* Returns a buffer of at least `room` bytes with one reference. Returns NULL if out of memory,
 * or above the limit; with `must`, the limit may be exceeded by the longest frame. */
struct input_buffer *input_take(struct input_pool *p, size_t room, bool must);
void input_release(struct input_pool *p, struct input_buffer *b);
/* Counts a request that was copied out of its buffer, until input_uncount. Never fails: the copy
 * replaces the buffer, and later frames wait. */
void input_count(struct input_pool *p, size_t bytes);
void input_uncount(struct input_pool *p, size_t bytes);
/* Returns the bytes of buffers and copies. */
uint64_t input_used(const struct input_pool *p);
/* Returns the usable size of a buffer for `room` bytes. */
size_t input_room_for(size_t room);
/* Call about once per second: frees the spare buffers not needed since the last call. */
void input_pool_trim(struct input_pool *p);

#endif
