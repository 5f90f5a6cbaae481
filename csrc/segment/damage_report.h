/* Damage found by recoveries and reads: counted per directory, and kept for reports. */
#ifndef PYLOG_DAMAGE_REPORT_H
#define PYLOG_DAMAGE_REPORT_H

#include <stdint.h>

struct log_dir;
struct segment;
struct partition_dir;

enum log_damage_kind {
    LOG_DAMAGE_CUT,     /* the end of a log, after its last valid batch */
    LOG_DAMAGE_DROPPED, /* a whole segment after a cut */
    LOG_DAMAGE_KEPT,    /* between valid batches: left in place, skipped by readers */
    LOG_DAMAGE_EPOCHS,  /* leader-epoch-checkpoint: rebuilt from the batches */
    LOG_DAMAGE_KINDS
};
enum log_damage_why {
    LOG_WHY_SHORT,  /* a truncated batch */
    LOG_WHY_ZEROS,  /* zeros: allocated, never written */
    LOG_WHY_HEADER, /* not a batch header */
    LOG_WHY_CRC,
    LOG_WHY_ORDER, /* an offset below that of the previous batch */
    LOG_WHY_GAP,   /* the next segment begins after this one's end */
    LOG_WHY_BEHIND, /* after a cut */
    LOG_WHY_RECORDS, /* the CRC is correct, but the records cannot be decompressed */
    LOG_WHY_TEXT     /* not the text of a checkpoint */
};
struct log_damage {
    char partition[256]; /* the name of its directory */
    int64_t segment, offset, position, bytes;
    enum log_damage_kind kind;
    enum log_damage_why why;
};
/* Moves up to `max` recorded damages to `out`, oldest first, and returns their number. If more
 * occurred than were fetched in time, only log_dir_stats counts them. */
uint32_t log_dir_fetch_damages(struct log_dir *dir, struct log_damage *out, uint32_t max);
/* Records damage found by a recovery or a read, for log_dir_fetch_damages. Any lock may be held. */
void log_damage_record(struct segment *s, enum log_damage_kind kind, enum log_damage_why why,
                       int64_t offset, int64_t position, int64_t bytes);
/* Records that the file of leader epochs, of `bytes` bytes, could not be parsed. */
void log_damage_record_epochs(struct partition_dir *partition, int64_t bytes);

enum { LOG_DAMAGES_MAX = 1024 };

#endif
