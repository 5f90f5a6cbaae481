/* The calls by which logs write and sync, as a table: tests put a disk that fails in the place of
 * the system's. */
#ifndef PYLOG_DISK_H
#define PYLOG_DISK_H

#include <stddef.h>
#include <sys/types.h>

/* Each call is as its namesake: results, errno. */
struct disk {
    ssize_t (*pwrite)(int fd, const void *bytes, size_t len, off_t at);
    int (*fsync)(int fd);
    int (*fdatasync)(int fd);
    int (*syncfs)(int fd);
};

enum disk_kind {
    DISK_SYSTEM,
    DISK_FULL,   /* pwrite: ENOSPC */
    DISK_NO_SYNC /* whatever syncs: EIO */
};

const struct disk *disk_of(enum disk_kind kind);

#endif
