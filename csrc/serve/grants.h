/* What the data plane may do without asking: topics by name and by id, their partition logs, and
 * rights per principal. Installed and voided by the control plane (one writer); looked up by
 * reactors. References keep a topic alive while in use. */
#ifndef PYLOG_GRANTS_H
#define PYLOG_GRANTS_H

#include <stdbool.h>
#include <stdint.h>

#include "format/assertion.h"
#include "log/log.h"
#include "serve/error_codes.h"
#include "thread/roles.h"

enum grant_right {
    GRANT_READ = 1,
    GRANT_WRITE = 2,
    GRANT_FOLLOW = 4 /* as another broker */
};

struct topic_leader {
    int32_t id, epoch; /* -1: nobody leads */
};

struct topic {
    atomic_int references;
    uint8_t id[16];
    int32_t partition_count;
    uint16_t name_len;
    bool internal; /* Produce from clients is refused (17) */
    char name[250];
    int16_t absent_error;    /* what is answered for entries that are NULL */
    struct topic_leader *leaders; /* partition_count entries, or NULL: clients are told of none */
    struct log **partitions; /* partition_count entries; NULL: this broker holds no replica of it,
                                or cannot open it */
};

struct grants;
struct grants *grants_new(uint32_t topics_max);
void grants_free(struct grants *g);

/* A topic of `count` partitions; takes its own references on the logs (entries may be NULL). NULL
 * when out of memory. */
struct topic *topic_new(const char *name, const uint8_t id[16], bool internal,
                        struct log *const *partitions, int32_t count);
/* Before others have it: who leads each partition, for those that ask the wrong broker (KIP-951).
 * False: out of memory. */
bool topic_set_leaders(struct topic *t, const struct topic_leader *leaders);
void topic_retain(struct topic *t);
void topic_release(struct topic *t);
/* The log of a partition, borrowed through the topic, or NULL and *error. */
static inline struct log *topic_log(const struct topic *t, int32_t partition, int16_t *error) {
    assert_slow(atomic_load_explicit(&t->references, memory_order_relaxed) > 0);
    if (partition < 0 || partition >= t->partition_count) {
        *error = ERROR_UNKNOWN_TOPIC_OR_PARTITION;
        return NULL;
    }
    struct log *log = t->partitions[partition];
    if (log == NULL) *error = t->absent_error;
    return log;
}

/* Control plane: replaces what stands under the topic's name and id. 0, or -1 when full or out of
 * memory. */
int grants_install(struct grants *g, struct topic *t) ON_CONTROL_PLANE;
void grants_remove(struct grants *g, const char *name, uint16_t name_len) ON_CONTROL_PLANE;
/* More rights of a principal on a topic. What is not among them is asked for each time: a refusal
 * is the control plane's, which keeps account of them. */
int grants_allow(struct grants *g, uint32_t principal, const uint8_t id[16], uint8_t rights)
    ON_CONTROL_PLANE;
/* Voids every right (ACL change): the next request of each principal is a miss again. Topics stay.
 */
void grants_void(struct grants *g) ON_CONTROL_PLANE;

/* Where each broker is reached; takes the reference over, and NULL for none. */
struct nodes;
void grants_set_nodes(struct grants *g, struct nodes *nodes) ON_CONTROL_PLANE;
/* A reference, or NULL. */
struct nodes *grants_nodes(struct grants *g);

/* Rises with every change above: what was looked up under another number must be looked up again.
 */
uint32_t grants_changes(struct grants *g);
/* Rises when rights became void: what waits must look again before it goes on. */
uint32_t grants_voids(struct grants *g);
/* A principal by the rights of now: another number once those became void. */
uint64_t grants_holder(struct grants *g, uint32_t principal);

/* Reactors: the topic with one reference for the caller and the principal's rights (0: ask), or
 * NULL. */
struct topic *grants_by_name(struct grants *g, uint32_t principal, const uint8_t *name,
                             uint32_t len, uint8_t *rights);
struct topic *grants_by_id(struct grants *g, uint32_t principal, const uint8_t id[16],
                           uint8_t *rights);

#endif
