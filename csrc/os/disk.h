/* All system calls with which logs open, read, write, rename and sync files, as a table that
 * tests can replace to inject faults. Three reads do not use it: indexes read through maps (they
 * use it only if a map cannot be read), reads from the page cache only, which never block, and
 * fetches that use sendfile. */
#ifndef PYLOG_DISK_H
#define PYLOG_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Same results and errno as the system calls of the same names. Tests build tables in this
 * order. */
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
    DISK_FULL,    /* calls that allocate space: ENOSPC */
    DISK_NO_SYNC, /* all syncs: EIO */
    DISK_BROKEN   /* all calls: EIO */
};

const struct disk *disk_of(enum disk_kind kind);

/* Returns NULL if syncfs reliably reports write-back errors of the file system of the open
 * directory `fd`. Otherwise returns the reason why it might not: then sync each file. */
const char *disk_syncfs_problem(int fd);

/* Returns true if an errno means a shortage, not a disk failure: no space, descriptors or
 * memory. The call is rejected or retried until the shortage ends. A read-only file system is a
 * failure: the kernel remounts a disk this way after errors, and a leader that rejects every
 * append must lose its leadership. Do not use it for syncs: data that a sync could not write is
 * lost, whatever the errno. */
bool disk_error_is_shortage(int error);

#endif
