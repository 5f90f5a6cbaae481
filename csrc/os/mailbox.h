/* A bounded multi-producer, single-consumer queue of small messages, with an eventfd for a
 * reader that sleeps in epoll. Posting needs a system call only while the reader sleeps. */
#ifndef PYLOG_MAILBOX_H
#define PYLOG_MAILBOX_H

#include <stdbool.h>
#include <stdint.h>

struct message {
    uint32_t kind; /* MESSAGE_WAKE, MESSAGE_IO_DONE or the reader's own values */
    int32_t status;
    uint64_t token; /* identifies the recipient */
    void *data;     /* ownership passes with the message */
    uint64_t size;
};

/* A message with preallocated space in its owner's structure: posting it cannot fail. */
struct message_link {
    struct message_link *next;
    struct message message;
};

/* Kinds that lower layers post, shared by log, iopool and reactor. */
enum message_kind { MESSAGE_WAKE = 1, MESSAGE_IO_DONE = 2, MESSAGE_FIRST_FREE = 16 };

struct mailbox;
struct mailbox *mailbox_new(uint32_t messages_max);
void mailbox_free(struct mailbox *m);
int mailbox_fd(const struct mailbox *m);

/* Any thread. MESSAGE_WAKEs use at most half of the room. Above that they are dropped, which
 * mailbox_overflowed reports, so posting them never returns false. Returns false if the mailbox
 * is full: the caller must wait or discard the message. */
bool mailbox_post(struct mailbox *m, const struct message *l);

/* Same, for a message that must arrive: needs no room. The link belongs to the reader until
 * mailbox_take has copied the message. */
void mailbox_post_link(struct mailbox *m, struct message_link *link);

/* Like mailbox_post, without waking the reader: call mailbox_flush after a series of messages.
 * An awake reader processes them in its next round. Not for MESSAGE_WAKEs. */
bool mailbox_queue(struct mailbox *m, const struct message *l);
/* Wakes the reader if it sleeps while messages are queued. */
void mailbox_flush(struct mailbox *m);

/* Reader only: takes up to `max` messages, links first, each kind in order. Marks the reader as
 * awake: posts do not write the eventfd until it arms again. */
uint32_t mailbox_take(struct mailbox *m, struct message *out, uint32_t max);
/* Reader only: returns true if MESSAGE_WAKEs were dropped since the last call, so that all
 * waiters must be checked. */
bool mailbox_overflowed(struct mailbox *m);

/* Reader only, before sleeping: returns true if it may sleep (the mailbox is empty, and the next
 * post writes the eventfd). */
bool mailbox_arm(struct mailbox *m);
/* Reader only, after waking: clears the eventfd. */
void mailbox_disarm(struct mailbox *m);

#endif
