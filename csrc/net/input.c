/* Buffer sizes are powers of two, including the header. Spare buffers are kept on stacks: the
 * last one released is reused first, while it is in the CPU cache. */
#include "net/input.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "format/assertion.h"

void input_pool_init(struct input_pool *p, uint64_t held_bytes_max, size_t frame_bytes_max) {
    *p = (struct input_pool){
        .held_bytes_max = held_bytes_max,
        .overdraft_bytes_max = input_room_for(frame_bytes_max) + sizeof(struct input_buffer)};
}

uint64_t input_used(const struct input_pool *p) { return p->held_bytes + p->copied_bytes; }

bool input_is_tight(const struct input_pool *p) { return input_used(p) > p->held_bytes_max / 2; }

void input_count(struct input_pool *p, size_t bytes) { p->copied_bytes += bytes; }

void input_uncount(struct input_pool *p, size_t bytes) {
    assert(p->copied_bytes >= bytes);
    p->copied_bytes -= bytes;
}

static void drop(struct input_pool *p, struct input_buffer *b) {
    assert(b->references == 0 && p->spare_bytes >= (uint64_t)1 << b->class_bits);
    p->spare_bytes -= (uint64_t)1 << b->class_bits;
    if (b->class_bits >= INPUT_MAP_CLASS_MIN)
        munmap(b, (size_t)1 << b->class_bits);
    else
        free(b);
}

static void drop_spare(struct input_pool *p, uint32_t bits, uint32_t count) {
    while (count-- != 0) {
        struct input_buffer *b = p->spare[bits];
        assert(b != NULL && b->class_bits == bits);
        p->spare[bits] = b->next;
        p->spare_count[bits]--;
        drop(p, b);
    }
}

void input_pool_clear(struct input_pool *p) {
    assert(p->held_bytes == 0 && p->copied_bytes == 0);
    for (uint32_t bits = 0; bits <= INPUT_CLASS_MAX; bits++)
        drop_spare(p, bits, p->spare_count[bits]);
    assert(p->spare_bytes == 0);
}

static uint32_t class_for(size_t room) {
    size_t bytes = room + sizeof(struct input_buffer);
    uint32_t bits = INPUT_CLASS_MIN;
    while (((size_t)1 << bits) < bytes) bits++;
    return bits;
}

size_t input_room_for(size_t room) {
    return ((size_t)1 << class_for(room)) - sizeof(struct input_buffer);
}

static struct input_buffer *make(uint32_t bits) {
    size_t bytes = (size_t)1 << bits;
    if (bits < INPUT_MAP_CLASS_MIN) return malloc(bytes);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

struct input_buffer *input_take(struct input_pool *p, size_t room, bool must) {
    uint32_t bits = class_for(room);
    if (bits > INPUT_CLASS_MAX) return NULL;
    uint64_t bytes = (uint64_t)1 << bits;
    uint64_t max = p->held_bytes_max + (must ? p->overdraft_bytes_max : 0);
    if (!must && bytes > INPUT_SMALL_BYTES) max -= p->held_bytes_max / INPUT_RESERVED_PART;
    if (!must && bytes > INPUT_TINY_BYTES) max -= p->held_bytes_max / INPUT_TINY_PART;
    if (input_used(p) + bytes > max) return NULL;
    struct input_buffer *b = p->spare[bits];
    if (b != NULL) {
        p->spare[bits] = b->next;
        p->spare_count[bits]--;
        if (p->spare_count[bits] < p->spare_least[bits])
            p->spare_least[bits] = p->spare_count[bits];
        p->spare_bytes -= bytes;
    } else {
        b = make(bits);
        if (b == NULL) return NULL;
        b->class_bits = bits;
        b->room = (size_t)bytes - sizeof *b;
    }
    assert_slow(b->class_bits == bits && b->room >= room);
    p->held_bytes += bytes;
    assert_slow(p->held_bytes <= p->held_bytes_max + p->overdraft_bytes_max);
    b->next = NULL;
    b->references = 1;
    return b;
}

void input_release(struct input_pool *p, struct input_buffer *b) {
    assert(b->references > 0);
    if (--b->references != 0) return;
    uint64_t bytes = (uint64_t)1 << b->class_bits;
    assert_slow(p->held_bytes >= bytes);
    p->held_bytes -= bytes;
    p->spare_bytes += bytes;
    if (p->spare_bytes > INPUT_SPARE_BYTES_MAX ||
        input_used(p) + p->spare_bytes > p->held_bytes_max) {
        drop(p, b);
        return;
    }
    b->next = p->spare[b->class_bits];
    p->spare[b->class_bits] = b;
    p->spare_count[b->class_bits]++;
}

void input_pool_trim(struct input_pool *p) {
    for (uint32_t bits = INPUT_CLASS_MIN; bits <= INPUT_CLASS_MAX; bits++) {
        assert(p->spare_least[bits] <= p->spare_count[bits]);
        drop_spare(p, bits, p->spare_least[bits]);
        p->spare_least[bits] = p->spare_count[bits];
    }
}
