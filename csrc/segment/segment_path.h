/* Names of files: of a partition's directory, and of a segment's files in it. */
#ifndef PYLOG_SEGMENT_PATH_H
#define PYLOG_SEGMENT_PATH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct log_dir;
struct segment;

/* "<home>/<base>.<extension>" below the log directory. */
enum { SEGMENT_PATH_BYTES = 320 };

/* The location of a log's files; shared by its segments, which may outlive the log while a
 * reader holds them. */
struct partition_dir {
    _Atomic uint32_t references;
    struct log_dir *dir;
    char *name; /* directory below the log directory; a deletion changes it, under files_lock */
    bool deleted; /* the log was deleted: its files are unlinked later (files_lock) */
    _Atomic bool lost; /* another program removed files: the log is offline until it is reopened */
};
struct partition_dir *partition_dir_new(struct log_dir *dir, const char *name);
void partition_dir_retain(struct partition_dir *partition);
void partition_dir_release(struct partition_dir *partition);
/* Takes the log offline because another program removed its files. files_lock may be held. */
void partition_dir_mark_lost(struct partition_dir *partition);
void segment_path_locked(const struct segment *s, const char *extension,
                         char path[SEGMENT_PATH_BYTES]); /* files_lock */
void segment_path(struct segment *s, const char *extension, char path[SEGMENT_PATH_BYTES]);

#endif
