/* What the next request changes in the leader's fetch session (KIP-227). */
#include "replica/fetcher_internal.h"

#include <stdlib.h>
#include <string.h>

void fetch_partition_change(struct fetch_partition *p) {
    struct leader *l = p->leader;
    assert(atomic_load(&p->state) == FETCH_PARTITION_FETCHING);
    if (p->changed) return;
    p->changed = true;
    p->next_changed = NULL;
    p->before_changed = l->last_changed;
    if (l->last_changed != NULL)
        l->last_changed->next_changed = p;
    else
        l->changed = p;
    l->last_changed = p;
}

void fetch_partition_unchange(struct fetch_partition *p) {
    struct leader *l = p->leader;
    if (!p->changed) return;
    p->changed = false;
    if (p->before_changed != NULL)
        p->before_changed->next_changed = p->next_changed;
    else
        l->changed = p->next_changed;
    if (p->next_changed != NULL)
        p->next_changed->before_changed = p->before_changed;
    else
        l->last_changed = p->before_changed;
}

void fetch_partition_unchange_all(struct leader *l) {
    for (struct fetch_partition *p = l->changed; p != NULL; p = p->next_changed) p->changed = false;
    l->changed = l->last_changed = NULL;
}

/* Keeps the order of arrival, in which partitions of a topic are mostly adjacent. */
void fetch_partition_change_all(struct leader *l) {
    fetch_partition_unchange_all(l);
    for (uint32_t i = 0; i < l->followed_count; i++) {
        struct fetch_partition *p = l->followed[i];
        p->in_session = false;
        if (atomic_load(&p->state) == FETCH_PARTITION_FETCHING) fetch_partition_change(p);
    }
}

void leader_forget(struct leader *l, const struct fetch_partition *p) {
    if (l->forgotten_count == l->forgotten_room) {
        uint32_t room = l->forgotten_room == 0 ? 8 : 2 * l->forgotten_room;
        struct forgotten *grown = realloc(l->forgotten, room * sizeof *grown);
        if (grown == NULL) {
            l->session_epoch = 0; /* A new session does not include it. */
            return;
        }
        l->forgotten = grown;
        l->forgotten_room = room;
    }
    struct forgotten *gone = &l->forgotten[l->forgotten_count++];
    memcpy(gone->topic_id, p->topic_id, sizeof gone->topic_id);
    gone->index = p->index;
}
