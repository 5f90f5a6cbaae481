/* What a log tells the process after this one of its last segment: see witness.h. */
#include "log/log_state.h"

void log_witness_say(struct log *log, struct segment *s, const struct stat *st) {
    struct witness *w = log->home->dir->witness;
    struct stat now;
    if (w == NULL || atomic_load(&log->deleted)) return;
    struct witness_slot *slot = atomic_load(&log->witness);
    if (slot != NULL) witness_unsay(slot);
    if (st == NULL && fstat(s->fd, &now) != 0) return;
    if (st == NULL) st = &now;
    /* More in the file than was appended is what a failed append left. */
    if (st->st_size != atomic_load(&s->bytes)) return;
    if (slot == NULL) slot = witness_take(w, st);
    if (slot == NULL) return;
    witness_say(slot, st, s->base_offset, st->st_size, log_recovery_point(log));
    atomic_store(&log->witness, slot);
    atomic_store(&s->witness, slot);
}

void log_witness_unsay(struct log *log) {
    struct witness_slot *slot = atomic_load(&log->witness);
    if (slot != NULL) witness_unsay(slot);
}

void log_witness_flushed(struct log *log) {
    struct witness_slot *slot = atomic_load(&log->witness);
    if (slot == NULL) return;
    atomic_store(&slot->flushed, log_recovery_point(log));
    witness_touched(slot);
}

void log_witness_give_back(struct log *log) {
    witness_give_back(log->home->dir->witness, atomic_load(&log->witness));
}
