/* A bounded many-to-one queue of small fixed messages with an eventfd, read by one thread that
 * sleeps in epoll. Writers pay for a system call only when the reader sleeps. */
#ifndef PYLOG_MAILBOX_H
#define PYLOG_MAILBOX_H

#include <stdbool.h>
#include <stdint.h>

struct message {
    uint32_t kind; /* the reader's own enumeration, e.g. MESSAGE_WAKE */
    int32_t status;
    uint64_t token; /* whom it is for */
    void *data;     /* ownership passes with the message */
    uint64_t size;
};

/* A message with room of its own, part of what it reports: it can always be posted. */
struct message_link {
    struct message_link *next;
    struct message message;
};

/* Kinds that lower layers post: the one vocabulary that log, iopool and reactor share. */
enum message_kind { MESSAGE_WAKE = 1, MESSAGE_IO_DONE = 2, MESSAGE_FIRST_FREE = 16 };

struct mailbox;
struct mailbox *mailbox_new(uint32_t messages_max);
void mailbox_free(struct mailbox *m);
int mailbox_fd(const struct mailbox *m);

/* Any thread. MESSAGE_WAKEs take at most half of the room; those beyond are dropped, and
 * mailbox_overflowed says so: for them it is never false. False when full, in a flood: the poster
 * waits, or does without. */
bool mailbox_post(struct mailbox *m, const struct message *l);

/* The same for a message that must arrive: it takes none of the room. The link is the reader's from
 * now on, until mailbox_take has copied the message out. */
void mailbox_post_link(struct mailbox *m, struct message_link *link);

/* As mailbox_post, but the reader is not woken: mailbox_flush follows, for all that was left. A
 * reader that is awake takes it at its own time. Not for MESSAGE_WAKEs. */
bool mailbox_queue(struct mailbox *m, const struct message *l);
/* Wakes a reader that sleeps although there are messages. */
void mailbox_flush(struct mailbox *m);

/* Reader only: moves up to `max` messages out, those of links first, each kind in order. The
 * reader is awake: posts write no eventfd until it arms again. */
uint32_t mailbox_take(struct mailbox *m, struct message *out, uint32_t max);
/* Reader only: MESSAGE_WAKEs were dropped since the last call, so whoever waits must look again. */
bool mailbox_overflowed(struct mailbox *m);

/* Reader only, before it sleeps: true when it may sleep (empty, and the next post will write the
 * eventfd). */
bool mailbox_arm(struct mailbox *m);
/* Reader only, after it woke: clears the eventfd. */
void mailbox_disarm(struct mailbox *m);

#endif
