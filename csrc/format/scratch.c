/* One allocation per worker, so that jobs never allocate working space. */
#include "format/scratch.h"

#include <stdlib.h>

void *scratch_new(void) {
    struct scratch *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    s->inflater = inflater_new();
    s->buffer = malloc(SCRATCH_BYTES);
    if (s->inflater != NULL && s->buffer != NULL) return s;
    scratch_free(s);
    return NULL;
}

void scratch_free(void *scratch) {
    struct scratch *s = scratch;
    if (s == NULL) return;
    if (s->inflater != NULL) inflater_free(s->inflater);
    free(s->buffer);
    free(s);
}
