/* Replaces adjacent segments of a log by a new one. */
#ifndef PYLOG_SWAP_H
#define PYLOG_SWAP_H

#include <stdint.h>

#include "log/log_struct.h"

/* Replaces adjacent segments by `fresh` (its file is on disk as
 * `.log.cleaned`). Without bytes it only removes them. Takes the reference if `fresh` has bytes
 * and the result is 0. LOG_E_WOULD_BLOCK: the sources have changed. */
int log_swap(struct log *log, struct segment **sources, uint32_t count, struct segment *fresh,
             uint64_t truncations);
/* Before a directory is listed: completes the swaps that a crash interrupted, and removes
 * unfinished ones. Returns 0 or -errno. `fd`: of the partition's directory. */
int log_swap_finish(int fd, const struct disk *disk);

#endif
