/* A bounded many-to-one queue of small fixed letters with an eventfd, read by one thread that
 * sleeps in epoll. Writers pay for a system call only when the reader sleeps. */
#ifndef PYLOG_MAILBOX_H
#define PYLOG_MAILBOX_H

#include <stdbool.h>
#include <stdint.h>

struct letter {
    uint32_t kind; /* the reader's own enumeration, e.g. LETTER_WAKE */
    int32_t status;
    uint64_t token; /* whom it is for */
    void *data;     /* ownership passes with the letter */
    uint64_t size;
};

/* Kinds that lower layers post: the one vocabulary that log, iopool and reactor share. */
enum letter_kind { LETTER_WAKE = 1, LETTER_IO_DONE = 2, LETTER_FIRST_FREE = 16 };

struct mailbox;
struct mailbox *mailbox_new(uint32_t letters_max);
void mailbox_free(struct mailbox *m);
int mailbox_fd(const struct mailbox *m);

/* Any thread. LETTER_WAKEs take at most half of the room; those beyond are dropped, and
 * mailbox_overflowed says so. False when full (the limit is sized so that this is a bug or a flood;
 * the poster decides). */
bool mailbox_post(struct mailbox *m, const struct letter *l);

/* As mailbox_post, but the reader is not woken: mailbox_ring follows, for all that was left. A
 * reader that is awake takes it at its own time. Not for LETTER_WAKEs. */
bool mailbox_leave(struct mailbox *m, const struct letter *l);
/* Wakes a reader that sleeps although there are letters. */
void mailbox_ring(struct mailbox *m);

/* Reader only: moves up to `max` letters out, in order. The reader is awake: posts write no eventfd
 * until it arms again. */
uint32_t mailbox_take(struct mailbox *m, struct letter *out, uint32_t max);
/* Reader only: LETTER_WAKEs were dropped since the last call, so whoever waits must look again. */
bool mailbox_overflowed(struct mailbox *m);

/* Reader only, before it sleeps: true when it may sleep (empty, and the next post will write the
 * eventfd). */
bool mailbox_arm(struct mailbox *m);
/* Reader only, after it woke: clears the eventfd. */
void mailbox_disarm(struct mailbox *m);

#endif
