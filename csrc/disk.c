/* The system's disk, and two that fail. */
#include "disk.h"

#include <assert.h>
#include <errno.h>
#include <unistd.h>

static ssize_t pwrite_full(int fd, const void *bytes, size_t len, off_t at) {
    (void)fd, (void)bytes, (void)len, (void)at;
    errno = ENOSPC;
    return -1;
}

static int sync_refused(int fd) {
    (void)fd;
    errno = EIO;
    return -1;
}

const struct disk *disk_of(enum disk_kind kind) {
    static const struct disk disks[] = {
        [DISK_SYSTEM] = {pwrite, fsync, fdatasync, syncfs},
        [DISK_FULL] = {pwrite_full, fsync, fdatasync, syncfs},
        [DISK_NO_SYNC] = {pwrite, sync_refused, sync_refused, sync_refused},
    };
    assert((size_t)kind < sizeof disks / sizeof *disks);
    return &disks[kind];
}
