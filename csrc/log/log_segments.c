/* Records a log's last segment for the next process: see restart_checkpoint.h. */
#include "log/log_internal.h"

void log_crash_state_record(struct log *log, struct segment *s, const struct stat *st) {
    struct crash_state *w = log->home->dir->crash_state;
    struct stat now;
    if (w == NULL || atomic_load(&log->deleted)) return;
    struct crash_state_slot *slot = atomic_load(&log->crash_state);
    if (slot != NULL) crash_state_clear(slot);
    if (st == NULL && fstat(s->fd, &now) != 0) return;
    if (st == NULL) st = &now;
    /* Extra bytes in the file are from a failed append. */
    if (st->st_size != atomic_load(&s->bytes)) return;
    if (slot == NULL) slot = crash_state_take(w, st);
    if (slot == NULL) return;
    crash_state_record(slot, st, s->base_offset, st->st_size, log_recovery_point(log));
    atomic_store(&log->crash_state, slot);
    atomic_store(&s->crash_state, slot);
}

void log_crash_state_clear(struct log *log) {
    struct crash_state_slot *slot = atomic_load(&log->crash_state);
    if (slot != NULL) crash_state_clear(slot);
}

void log_crash_state_flushed(struct log *log) {
    struct crash_state_slot *slot = atomic_load(&log->crash_state);
    if (slot == NULL) return;
    atomic_store(&slot->flushed, log_recovery_point(log));
    crash_state_touched(slot);
}

void log_crash_state_give_back(struct log *log) {
    crash_state_give_back(log->home->dir->crash_state, atomic_load(&log->crash_state));
}
