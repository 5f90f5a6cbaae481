/* Shared by the parts of a cleaning pass: compaction/pass.c and log_manager/swap.c. */
#ifndef PYLOG_PASS_INTERNAL_H
#define PYLOG_PASS_INTERNAL_H

#include "compaction/batch_filter.h"
#include "compaction/pass.h"
#include "format/batch.h"
#include "log/log_struct.h"

struct clean_last { /* a producer's last batch; offset -1: the marker that began its epoch */
    int64_t producer_id, last_offset;
    int16_t epoch;
};

struct clean_window {
    uint8_t *bytes;
    size_t room, len;
    int64_t position;
};

struct clean_output { /* the new segment */
    struct segment *segment;
    uint8_t *bytes; /* not written yet */
    size_t len, room;
    int64_t written;
    int fd;
    bool changed; /* it differs from its only source, or has several */
};

struct log_clean {
    struct log *log;
    struct offset_map *map;
    struct log_clean_rules rules;
    struct log_clean_stats stats;
    struct segment **sources; /* all segments at the start of the pass, retained */
    uint32_t source_count, clean_count;
    uint32_t at; /* of the current source */
    uint32_t group, group_end;
    int64_t position; /* in the current source */
    int64_t stable;
    int64_t decided; /* decisions rely on markers and producers' batches below it */
    uint64_t truncations;
    int64_t next_offset; /* the batch at `position` begins at or above it */
    int64_t damaged;     /* invalid bytes at `position` */
    bool pinned, mapped, followed;
    bool beside_damage, beside_before; /* the next batch stays; its value at the group's start */
    bool dropped;                      /* the previous batch, with this header, lost all records */
    uint8_t dropped_header[BATCH_HEADER_BYTES];
    struct log_clean_stats stats_before; /* this and the next: when the group began */
    struct clean_transactions open_before;
    struct clean_last *last;
    uint32_t last_count;
    struct clean_window window;
    struct clean_output output;
    struct clean_transactions open, aborted;
    struct clean_work work;
};

void clean_output_discard(struct log_clean *c);

/* compaction/source.c: the current source. Return 0 or a log_error. */
int clean_source_open(struct log_clean *c, struct segment *s);
void clean_source_close(struct log_clean *c, struct segment *s);
enum clean_next { CLEAN_NEXT_END, CLEAN_NEXT_BATCH, CLEAN_NEXT_DAMAGE };
/* Reads the batch at `position`, whole and with a valid checksum, or the number of damaged bytes
 * there. Returns a clean_next, or an error. */
int clean_source_next(struct log_clean *c, struct segment *s, const uint8_t **p,
                      struct batch_header *h);

#endif
