/* What the parts of a cleaning pass share: log_clean.c and log_swap.c. */
#ifndef PYLOG_LOG_CLEAN_STATE_H
#define PYLOG_LOG_CLEAN_STATE_H

#include "log/clean.h"
#include "log/log_clean.h"
#include "log/log_state.h"

struct clean_last { /* a producer's last batch; offset -1: the marker that began its epoch */
    int64_t producer_id, last_offset;
    int16_t epoch;
};

struct clean_window {
    uint8_t *bytes;
    size_t room, len;
    int64_t position;
};

struct clean_output { /* the new segment in the making */
    struct segment *segment;
    uint8_t *bytes; /* not written yet */
    size_t len, room;
    int64_t written;
    int fd;
    bool changed; /* it differs from its one source, or has several */
};

struct log_clean {
    struct log *log;
    struct keymap *map;
    struct log_clean_rules rules;
    struct log_clean_figures figures;
    struct segment **sources; /* all segments at the beginning, retained */
    uint32_t source_count, clean_count;
    uint32_t at; /* of the source at hand */
    uint32_t group, group_end;
    int64_t position; /* in it */
    int64_t stable;
    int64_t decided; /* behind what tells of transactions here, and of who wrote what last */
    uint64_t truncations;
    int64_t next_offset; /* that of the batch at `position` is no lower */
    int64_t damaged;     /* bytes at `position` that are no good batch */
    bool pinned, mapped, followed;
    bool beside_damage, beside_before; /* the next batch stays; as the group began */
    bool dropped;                      /* nothing was left of the batch before, of this header */
    uint8_t dropped_header[BATCH_HEADER_BYTES];
    struct log_clean_figures figures_before; /* this and the next: as the group began */
    struct clean_transactions open_before;
    struct clean_last *last;
    uint32_t last_count;
    struct clean_window window;
    struct clean_output output;
    struct clean_transactions open, aborted;
    struct clean_work work;
};

void clean_output_discard(struct log_clean *c);

/* clean_source.c: the source at hand. 0 or a log_error. */
int clean_source_open(struct log_clean *c, struct segment *s);
void clean_source_close(struct log_clean *c, struct segment *s);
enum clean_next { CLEAN_NEXT_END, CLEAN_NEXT_BATCH, CLEAN_NEXT_DAMAGE };
/* The batch at `position`, whole and with a right checksum, or how many bytes are damaged there; a
 * clean_next, or negative. */
int clean_source_next(struct log_clean *c, struct segment *s, const uint8_t **p,
                      struct batch_header *h);

/* log_swap.c: puts `fresh` (its file is on disk as `.log.cleaned`) in the place of neighbouring
 * segments; one without bytes only removes them. Takes the reference when it has bytes and the
 * result is 0. LOG_E_WOULD_BLOCK: they are not what they were. */
int log_swap(struct log *log, struct segment **sources, uint32_t count, struct segment *fresh,
             uint64_t truncations);
/* Before a directory is listed: finishes the swaps that a crash left, removes what came to nothing.
 * 0 or -errno. `fd`: of the partition's directory. */
int log_swap_finish(int fd, const struct disk *disk);

#endif
