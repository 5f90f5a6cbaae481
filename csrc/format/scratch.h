/* Working space of an io worker for its jobs: a decompressor and one buffer, created once per
 * thread. */
#ifndef PYLOG_SCRATCH_H
#define PYLOG_SCRATCH_H

#include <stdint.h>

#include "format/compress.h"

enum { SCRATCH_BYTES = 256 * 1024 };

struct scratch {
    struct inflater *inflater;
    uint8_t *buffer; /* SCRATCH_BYTES */
};

/* The function pair for iopool_new. Returns NULL if memory is short: the worker's jobs then
 * receive NULL. */
void *scratch_new(void);
void scratch_free(void *scratch);

#endif
