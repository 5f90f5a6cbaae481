/* Every call by which logs open, read, write, name and sync their files, as a table: tests put a
 * disk that fails in the place of the system's. Two reads pass it by: of indexes through maps (what
 * a map could not read is read by it) and of the page cache alone, which never waits; and fetches
 * send by sendfile. */
#ifndef PYLOG_DISK_H
#define PYLOG_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Each call is as its namesake: results, errno. A test's own table has these in this order. */
struct disk {
    int (*openat)(int dir, const char *path, int flags, mode_t mode);
    ssize_t (*pread)(int fd, void *bytes, size_t len, off_t at);
    ssize_t (*pwrite)(int fd, const void *bytes, size_t len, off_t at);
    int (*ftruncate)(int fd, off_t len);
    int (*fallocate)(int fd, int mode, off_t at, off_t len);
    int (*fsync)(int fd);
    int (*fdatasync)(int fd);
    int (*syncfs)(int fd);
    int (*renameat)(int from_dir, const char *from, int to_dir, const char *to);
    int (*unlinkat)(int dir, const char *path, int flags);
    int (*mkdirat)(int dir, const char *path, mode_t mode);
};

enum disk_kind {
    DISK_SYSTEM,
    DISK_FULL,    /* what takes room: ENOSPC */
    DISK_NO_SYNC, /* whatever syncs: EIO */
    DISK_BROKEN   /* everything: EIO */
};

const struct disk *disk_of(enum disk_kind kind);

/* Why syncfs may say nothing of a write-back that failed below the open directory `fd`, so that
 * each file is to be synced by itself; NULL: it is known to report it. */
const char *disk_syncfs_silent(int fd);

/* Whether an errno says that something is short and not that the disk failed: room, descriptors,
 * memory, or the right to write to a file system that was mounted read-only. The call is refused or
 * tried again, and the shortage is over when it is over. Of a sync it says nothing: what a sync
 * could not write is lost, whatever the reason. */
bool disk_is_short(int error);

#endif
