/* The mailbox: a ring and a list under a mutex held for a copy of one letter, and an eventfd.
 *
 * `armed` says that the reader sleeps or is about to. A post that finds it set clears it and writes
 * the eventfd, so that a burst costs one system call. The lock orders arm against post: no wake-up
 * is lost. */
#include "thread/mailbox.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct mailbox {
    pthread_mutex_t lock;
    int fd;
    bool armed, overflowed;
    struct letter_link *first_link, **last_link;
    uint32_t head, count, letters_max; /* the ring */
    struct letter letters[];
};

struct mailbox *mailbox_new(uint32_t letters_max) {
    assert(letters_max >= 2); /* half of it is for wakes */
    struct mailbox *m = malloc(sizeof *m + letters_max * sizeof(struct letter));
    if (m == NULL) return NULL;
    m->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (m->fd < 0) {
        free(m);
        return NULL;
    }
    pthread_mutex_init(&m->lock, NULL);
    m->armed = m->overflowed = false;
    m->first_link = NULL;
    m->last_link = &m->first_link;
    m->head = m->count = 0;
    m->letters_max = letters_max;
    return m;
}

void mailbox_free(struct mailbox *m) {
    if (m == NULL) return;
    pthread_mutex_destroy(&m->lock);
    close(m->fd);
    free(m);
}

int mailbox_fd(const struct mailbox *m) { return m->fd; }

static bool is_empty(const struct mailbox *m) { return m->count == 0 && m->first_link == NULL; }

/* Under the lock, with room. */
static void put(struct mailbox *m, const struct letter *l) {
    assert(m->count < m->letters_max);
    uint32_t slot = m->head + m->count;
    m->letters[slot >= m->letters_max ? slot - m->letters_max : slot] = *l;
    m->count++;
}

static void wake(struct mailbox *m) {
    uint64_t one = 1;
    ssize_t n = write(m->fd, &one, sizeof one);
    (void)n; /* EAGAIN means that the counter is set already: the reader wakes all the same. */
}

bool mailbox_post(struct mailbox *m, const struct letter *l) {
    pthread_mutex_lock(&m->lock);
    bool wakes = l->kind == LETTER_WAKE;
    bool has_room = m->count < (wakes ? m->letters_max / 2 : m->letters_max);
    bool told = has_room || wakes;
    bool asleep = told && m->armed;
    if (has_room)
        put(m, l);
    else if (wakes)
        m->overflowed = true;
    if (told) m->armed = false;
    pthread_mutex_unlock(&m->lock);
    if (asleep) wake(m);
    return told;
}

void mailbox_post_link(struct mailbox *m, struct letter_link *link) {
    link->next = NULL;
    pthread_mutex_lock(&m->lock);
    *m->last_link = link;
    m->last_link = &link->next;
    bool asleep = m->armed;
    m->armed = false;
    pthread_mutex_unlock(&m->lock);
    if (asleep) wake(m);
}

bool mailbox_leave(struct mailbox *m, const struct letter *l) {
    assert(l->kind != LETTER_WAKE);
    pthread_mutex_lock(&m->lock);
    bool has_room = m->count < m->letters_max;
    if (has_room) put(m, l);
    pthread_mutex_unlock(&m->lock);
    return has_room;
}

void mailbox_ring(struct mailbox *m) {
    pthread_mutex_lock(&m->lock);
    bool asleep = m->armed && !is_empty(m);
    if (asleep) m->armed = false;
    pthread_mutex_unlock(&m->lock);
    if (asleep) wake(m);
}

uint32_t mailbox_take(struct mailbox *m, struct letter *out, uint32_t max) {
    pthread_mutex_lock(&m->lock);
    uint32_t n = 0;
    for (; n < max && m->first_link != NULL; n++) {
        out[n] = m->first_link->letter;
        m->first_link = m->first_link->next;
    }
    if (m->first_link == NULL) m->last_link = &m->first_link;
    for (; n < max && m->count != 0; n++, m->count--) {
        out[n] = m->letters[m->head];
        if (++m->head == m->letters_max) m->head = 0;
    }
    if (m->count == 0) m->head = 0; /* the same few lines of cache every time */
    m->armed = false;
    pthread_mutex_unlock(&m->lock);
    return n;
}

bool mailbox_overflowed(struct mailbox *m) {
    pthread_mutex_lock(&m->lock);
    bool overflowed = m->overflowed;
    m->overflowed = false;
    pthread_mutex_unlock(&m->lock);
    return overflowed;
}

bool mailbox_arm(struct mailbox *m) {
    pthread_mutex_lock(&m->lock);
    bool empty = is_empty(m);
    m->armed = empty;
    pthread_mutex_unlock(&m->lock);
    return empty;
}

void mailbox_disarm(struct mailbox *m) {
    pthread_mutex_lock(&m->lock);
    m->armed = false;
    pthread_mutex_unlock(&m->lock);
    uint64_t count;
    ssize_t n = read(m->fd, &count, sizeof count);
    (void)n; /* EAGAIN: it woke for another descriptor. */
}
