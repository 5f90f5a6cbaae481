/* The mailbox: a ring buffer, a linked list and an eventfd. A mutex is held while one message is
 * copied.
 *
 * `armed` means that the reader sleeps or is about to. A post that finds it set clears it and
 * writes the eventfd, so a burst costs one system call. Arming and posting use the same lock, so
 * no wake-up is lost. */
#include "os/mailbox.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "os/lock.h"

struct mailbox {
    struct lock lock;
    int fd;
    uint32_t messages_max;
    bool armed GUARDED_BY(lock), overflowed GUARDED_BY(lock);
    struct message_link *first_link GUARDED_BY(lock), **last_link GUARDED_BY(lock);
    uint32_t head GUARDED_BY(lock), count GUARDED_BY(lock); /* in the ring */
    struct message messages[] GUARDED_BY(lock);
};

struct mailbox *mailbox_new(uint32_t messages_max) {
    assert(messages_max >= 2); /* half of it is for MESSAGE_WAKEs */
    struct mailbox *m = malloc(sizeof *m + messages_max * sizeof(struct message));
    if (m == NULL) return NULL;
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd < 0) {
        free(m);
        return NULL;
    }
    *m = (struct mailbox){.fd = fd, .messages_max = messages_max, .last_link = &m->first_link};
    lock_init(&m->lock);
    return m;
}

void mailbox_free(struct mailbox *m) {
    if (m == NULL) return;
    lock_destroy(&m->lock);
    close(m->fd);
    free(m);
}

int mailbox_fd(const struct mailbox *m) { return m->fd; }

static bool is_empty(const struct mailbox *m) REQUIRES(m->lock) {
    assert_slow((m->first_link == NULL) == (m->last_link == &m->first_link));
    return m->count == 0 && m->first_link == NULL;
}

/* Caller checks for room. */
static void put(struct mailbox *m, const struct message *l) REQUIRES(m->lock) {
    assert(m->count < m->messages_max);
    assert_slow(m->head < m->messages_max);
    uint32_t slot = m->head + m->count;
    m->messages[slot >= m->messages_max ? slot - m->messages_max : slot] = *l;
    m->count++;
}

static void wake(struct mailbox *m) {
    uint64_t one = 1;
    ssize_t n = write(m->fd, &one, sizeof one);
    (void)n; /* EAGAIN: the counter is already set, so the reader wakes anyway */
}

bool mailbox_post(struct mailbox *m, const struct message *l) {
    assert(l->kind != 0);
    lock_acquire(&m->lock);
    bool wakes = l->kind == MESSAGE_WAKE;
    bool has_room = m->count < (wakes ? m->messages_max / 2 : m->messages_max);
    bool accepted = has_room || wakes;
    bool asleep = accepted && m->armed;
    if (has_room)
        put(m, l);
    else if (wakes)
        m->overflowed = true;
    if (accepted) m->armed = false;
    lock_release(&m->lock);
    if (asleep) wake(m);
    return accepted;
}

void mailbox_post_link(struct mailbox *m, struct message_link *link) {
    link->next = NULL;
    lock_acquire(&m->lock);
    assert(m->last_link != &link->next); /* post a link only once */
    *m->last_link = link;
    m->last_link = &link->next;
    bool asleep = m->armed;
    m->armed = false;
    lock_release(&m->lock);
    if (asleep) wake(m);
}

bool mailbox_queue(struct mailbox *m, const struct message *l) {
    assert(l->kind != MESSAGE_WAKE);
    lock_acquire(&m->lock);
    bool has_room = m->count < m->messages_max;
    if (has_room) put(m, l);
    lock_release(&m->lock);
    return has_room;
}

void mailbox_flush(struct mailbox *m) {
    lock_acquire(&m->lock);
    bool asleep = m->armed && !is_empty(m);
    if (asleep) m->armed = false;
    lock_release(&m->lock);
    if (asleep) wake(m);
}

uint32_t mailbox_take(struct mailbox *m, struct message *out, uint32_t max) {
    assert(max > 0); /* with 0, the reader would never arm */
    lock_acquire(&m->lock);
    uint32_t n = 0;
    for (; n < max && m->first_link != NULL; n++) {
        out[n] = m->first_link->message;
        m->first_link = m->first_link->next;
    }
    if (m->first_link == NULL) m->last_link = &m->first_link;
    for (; n < max && m->count != 0; n++, m->count--) {
        out[n] = m->messages[m->head];
        if (++m->head == m->messages_max) m->head = 0;
    }
    assert_slow(n == max || is_empty(m));
    if (m->count == 0) m->head = 0; /* reuse the same few cache lines */
    m->armed = false;
    lock_release(&m->lock);
    return n;
}

bool mailbox_overflowed(struct mailbox *m) {
    lock_acquire(&m->lock);
    bool overflowed = m->overflowed;
    m->overflowed = false;
    lock_release(&m->lock);
    return overflowed;
}

bool mailbox_arm(struct mailbox *m) {
    lock_acquire(&m->lock);
    bool empty = is_empty(m);
    m->armed = empty;
    lock_release(&m->lock);
    return empty;
}

void mailbox_disarm(struct mailbox *m) {
    lock_acquire(&m->lock);
    m->armed = false;
    lock_release(&m->lock);
    uint64_t count;
    ssize_t n = read(m->fd, &count, sizeof count);
    (void)n; /* EAGAIN: woken by another descriptor */
}
