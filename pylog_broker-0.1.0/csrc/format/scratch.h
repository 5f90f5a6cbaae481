/* What an io worker owns for the jobs that it runs: an inflater and one buffer, made once per
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

/* The pair that iopool_new takes. NULL when memory is short: the worker's jobs then get NULL. */
void *scratch_new(void);
void scratch_free(void *scratch);

#endif
