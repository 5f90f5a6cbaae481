/* Shared by the targets: a condition that ends the run, and a folder that is emptied. */
#ifndef PYLOG_FUZZ_SCRATCH_H
#define PYLOG_FUZZ_SCRATCH_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline void require_at(int holds, int line) {
    if (!holds) {
        fprintf(stderr, "line %d\n", line);
        abort();
    }
}
#define require(holds) require_at((holds), __LINE__)

/* Remove a folder's contents. `itself`: the folder too. */
static inline void clear(const char *path, int itself) {
    DIR *entries = opendir(path);
    struct dirent *entry;
    char name[1024];
    if (entries == NULL) { return; }
    while ((entry = readdir(entries)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) { continue; }
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (unlink(name) != 0) { clear(name, 1); }
    }
    closedir(entries);
    if (itself) { rmdir(path); }
}

#endif
