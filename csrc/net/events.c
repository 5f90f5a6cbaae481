/* A list under a mutex. The eventfd is written when the list was empty. */
#include "net/events.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "os/lock.h"

struct events {
    struct lock lock;
    struct event *first GUARDED_BY(lock), **last GUARDED_BY(lock);
    atomic_uint waiting; /* length of the list; written under the lock */
    _Atomic uint64_t held_bytes; /* data bytes of the list and of taken events */
    int fd;
};

struct events *events_new(void) {
    struct events *e = calloc(1, sizeof *e);
    if (e == NULL) return NULL;
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd < 0) {
        free(e);
        return NULL;
    }
    *e = (struct events){.fd = fd, .last = &e->first};
    lock_init(&e->lock);
    return e;
}

void events_free(struct events *e) {
    lock_acquire(&e->lock);
    for (struct event *one = e->first, *next; one != NULL; one = next) {
        next = one->next;
        free(one);
    }
    lock_release(&e->lock);
    lock_destroy(&e->lock);
    close(e->fd);
    free(e);
}

int events_fd(const struct events *e) { return e->fd; }

struct event *events_make(uint32_t kind, size_t data_len) {
    struct event *event = malloc(sizeof *event + data_len);
    if (event == NULL) return NULL;
    memset(event, 0, sizeof *event);
    event->kind = kind;
    event->data_len = data_len;
    return event;
}

struct event *events_text(uint32_t kind, const char *text) {
    size_t bytes = strlen(text);
    struct event *event = events_make(kind, bytes);
    if (event == NULL) return NULL;
    event->body_len = bytes;
    memcpy(event->data, text, bytes);
    return event;
}

static void ring(struct events *e) {
    uint64_t one = 1;
    ssize_t n = write(e->fd, &one, sizeof one);
    (void)n; /* cannot overflow: written only after the list was empty or left non-empty */
}

void events_post(struct events *e, struct event *event) {
    assert(event->kind >= EVENT_REQUEST && event->kind <= EVENT_ISR_CANDIDATE);
    event->next = NULL;
    lock_acquire(&e->lock);
    bool first = e->first == NULL;
    assert(first == (e->last == &e->first));
    *e->last = event;
    e->last = &event->next;
    atomic_fetch_add_explicit(&e->waiting, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&e->held_bytes, event->data_len, memory_order_relaxed);
    lock_release(&e->lock);
    if (first) ring(e);
}

struct event *events_take(struct events *e, uint32_t count_max) {
    uint64_t count;
    ssize_t n = read(e->fd, &count, sizeof count);
    (void)n; /* EAGAIN: the caller checked without a wake-up */
    lock_acquire(&e->lock);
    struct event *drained = e->first, **end = &drained;
    uint32_t drained_count = 0;
    while (*end != NULL && drained_count < count_max) {
        end = &(*end)->next;
        drained_count++;
    }
    e->first = *end;
    *end = NULL;
    if (e->first == NULL) e->last = &e->first;
    bool left = e->first != NULL;
    assert(drained_count <= count_max && (!left || drained_count == count_max));
    assert(drained_count <= atomic_load_explicit(&e->waiting, memory_order_relaxed));
    atomic_fetch_sub_explicit(&e->waiting, drained_count, memory_order_relaxed);
    lock_release(&e->lock);
    if (left) ring(e);
    return drained;
}

uint32_t events_waiting(struct events *e) {
    return atomic_load_explicit(&e->waiting, memory_order_relaxed);
}

void events_drop(struct events *e, size_t bytes) {
    uint64_t before = atomic_fetch_sub_explicit(&e->held_bytes, bytes, memory_order_relaxed);
    assert(before >= bytes);
    (void)before;
}

uint64_t events_held_bytes(struct events *e) {
    return atomic_load_explicit(&e->held_bytes, memory_order_relaxed);
}
