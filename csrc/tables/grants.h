/* Permissions cached for the data plane: topics by name and by id, their partition logs, and
 * rights per principal. The control plane installs and revokes them (one writer); reactors look
 * them up. References keep a topic alive while in use. */
#ifndef PYLOG_GRANTS_H
#define PYLOG_GRANTS_H

#include <stdbool.h>
#include <stdint.h>

#include "format/assertion.h"
#include "log/log.h"
#include "os/roles.h"
#include "tables/error_codes.h"

enum grant_right {
    GRANT_READ = 1,
    GRANT_WRITE = 2,
    GRANT_FOLLOW = 4 /* fetch as a follower */
};

enum { TOPIC_ID_BYTES = 16 };

/* A topic as named in a request; points into the request's body. */
struct topic_key {
    const uint8_t *bytes;
    uint32_t len; /* length of the name, or TOPIC_ID_BYTES */
    bool by_id;
};

struct topic_leader {
    int32_t id, epoch; /* id -1: no leader */
};

struct topic {
    atomic_int references;
    uint8_t id[16];
    int32_t partition_count;
    uint16_t name_len;
    bool internal; /* clients must not produce to it (error 17) */
    char name[250];
    int16_t absent_error;    /* error returned for NULL entries */
    struct topic_leader *leaders; /* partition_count entries, or NULL: never named to clients */
    struct log **partitions; /* partition_count entries; NULL: no replica here, or not usable */
};

struct grants;
struct grants *grants_new(uint32_t topics_max);
void grants_free(struct grants *g);

/* Creates a topic of `count` partitions and takes references on the logs (entries may be NULL).
 * Returns NULL if out of memory. */
struct topic *topic_new(const char *name, const uint8_t id[16], bool internal,
                        struct log *const *partitions, int32_t count);
/* Sets the leader of each partition, for clients that contact the wrong broker (KIP-951). Call
 * this before the topic is shared. Returns false if out of memory. */
bool topic_set_leaders(struct topic *t, const struct topic_leader *leaders);
void topic_retain(struct topic *t);
void topic_release(struct topic *t);
/* Returns the log of a partition, borrowed through the topic, or NULL and *error. */
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

/* Control plane: installs the topic and replaces one with the same name. Returns 0, or -1 if
 * full or out of memory. */
int grants_install(struct grants *g, struct topic *t) ON_CONTROL_PLANE;
void grants_remove(struct grants *g, const char *name, uint16_t name_len) ON_CONTROL_PLANE;
/* Adds rights of a principal on a topic. Only granted rights are cached: requests that lack a
 * right go to the control plane, which records every denial. */
int grants_allow(struct grants *g, uint32_t principal, const uint8_t id[16], uint8_t rights)
    ON_CONTROL_PLANE;
/* Revokes every right (ACL change): the next request of each principal is a miss again. Topics
 * stay. */
void grants_void(struct grants *g) ON_CONTROL_PLANE;

/* Sets the brokers' endpoints; takes ownership of the reference. NULL: none. */
struct nodes;
void grants_set_nodes(struct grants *g, struct nodes *nodes) ON_CONTROL_PLANE;
/* Returns a reference, or NULL. */
struct nodes *grants_nodes(struct grants *g);

/* Returns a counter that each change above increments. Lookups made at another value are stale. */
uint32_t grants_changes(struct grants *g);
/* Returns a counter that increments when rights are revoked. Waiting requests must look up their
 * topics again before they continue. */
uint32_t grants_voids(struct grants *g);
/* Returns a number for the principal's current rights; it changes when rights are revoked. */
uint64_t grants_holder(struct grants *g, uint32_t principal);

/* Reactors: returns the topic with one reference for the caller and the principal's rights (0:
 * none cached, ask the control plane), or NULL. */
struct topic *grants_by_name(struct grants *g, uint32_t principal, const uint8_t *name,
                             uint32_t len, uint8_t *rights);
struct topic *grants_by_id(struct grants *g, uint32_t principal, const uint8_t id[16],
                           uint8_t *rights);
/* Returns the topic with one reference if the principal has the right (enum grant_right), or NULL
 * if the control plane must decide. */
struct topic *grants_find(struct grants *g, uint32_t principal, struct topic_key key,
                          uint8_t right);

#endif
