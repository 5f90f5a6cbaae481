/* Buffers that requests are received into, and the pool of one reactor that they come from and go
 * back to.
 *
 * A buffer's size follows the bytes that arrived, never a declared length; a connection with
 * nothing pending holds none. A buffer is held by its connection and by each request whose body
 * must stay in place; whoever finds others holding it takes a new one instead of moving bytes.
 * Large ones are maps of their own, so that they really go back to the system. */
#ifndef PYLOG_INPUT_H
#define PYLOG_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { INPUT_CLASS_MIN = 10, INPUT_CLASS_MAX = 31, INPUT_MAP_CLASS_MIN = 16 };
enum {
    INPUT_SPARE_BYTES_MAX = 64 << 20, /* free buffers kept by a pool */
    /* One part in so many of the limit is kept for buffers of this size: small requests get through
     * beside large ones that do not get on. */
    INPUT_RESERVED_PART = 8,
    INPUT_SMALL_BYTES = 64 << 10,
    /* And one part in so many for those of this size, in which frames begin while it is tight. */
    INPUT_TINY_PART = 16,
    INPUT_TINY_BYTES = 4 << 10
};

struct input_buffer {
    struct input_buffer *next;
    uint32_t references, class_bits;
    size_t room; /* bytes that may be used; a power of two less this head */
    uint8_t bytes[];
};

struct input_pool {
    struct input_buffer *spare[INPUT_CLASS_MAX + 1];
    uint32_t spare_count[INPUT_CLASS_MAX + 1], spare_least[INPUT_CLASS_MAX + 1];
    uint64_t held_bytes, spare_bytes, held_bytes_max, overdraft_bytes_max;
    uint64_t copied_bytes; /* of requests outside the pool; they count towards the limit */
};

/* frame_bytes_max: of the longest frame, by which one that `must` passes the limit. */
void input_pool_init(struct input_pool *p, uint64_t held_bytes_max, size_t frame_bytes_max);
/* No buffer is held any more. */
void input_pool_clear(struct input_pool *p);
/* More than half of the limit is held: frames begin in tiny buffers. */
bool input_is_tight(const struct input_pool *p);
/* A buffer of at least `room` bytes, with one reference. NULL: out of memory, or the limit would be
 * passed, which one that `must` may do by the longest frame. */
struct input_buffer *input_take(struct input_pool *p, size_t room, bool must);
void input_release(struct input_pool *p, struct input_buffer *b);
/* Count a request whose bytes were copied out of its buffer, until input_uncount. Never refused:
 * the copy replaces the buffer, and later frames wait. */
void input_count(struct input_pool *p, size_t bytes);
void input_uncount(struct input_pool *p, size_t bytes);
/* Bytes of buffers and copies. */
uint64_t input_used(const struct input_pool *p);
/* What a buffer taken for `room` bytes would hold. */
size_t input_room_for(size_t room);
/* About once a second: frees the spare buffers that were not needed since the last call. */
void input_pool_trim(struct input_pool *p);

#endif
