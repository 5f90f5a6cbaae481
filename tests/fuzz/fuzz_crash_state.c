/* Any bytes as the crash state file of a previous process: data read from it stays inside it,
 * slots are allocated once, and the next process reads the data written here.
 *
 * Input: a byte of flags, then the file. Flags: 1 writes the correct header over the first
 * bytes. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "segment/restart_checkpoint.h"
#include "scratch.h"

enum { FUZZ_SLOTS = 100 };

static char root[] = "/dev/shm/fuzz_crash_state.XXXXXX";
static char where[64], name[256];
static uint8_t header[RESTART_CHECKPOINT_HEADER_BYTES];
static int directory = -1, place = -1;

static void end(void) {
    unlinkat(place, name, 0);
    rmdir(where);
    rmdir(root);
}

/* Get the name and header of a valid file from a first process. Return 0 if the system has none. */
static int begin(void) {
    if (directory >= 0) { return name[0] != 0; }
    require(mkdtemp(root) != NULL);
    snprintf(where, sizeof where, "%s/where", root);
    require(mkdir(where, 0700) == 0);
    directory = open(root, O_RDONLY | O_DIRECTORY);
    place = open(where, O_RDONLY | O_DIRECTORY);
    atexit(end);
    struct restart_checkpoint *w = restart_checkpoint_new(directory, where);
    if (w == NULL) { return 0; }
    DIR *entries = opendir(where);
    struct dirent *entry;
    while ((entry = readdir(entries)) != NULL) {
        if (entry->d_name[0] != '.') { snprintf(name, sizeof name, "%s", entry->d_name); }
    }
    closedir(entries);
    int fd = openat(place, name, O_RDONLY);
    require(fd >= 0 && pread(fd, header, sizeof header, 0) == (ssize_t)sizeof header);
    close(fd);
    restart_checkpoint_free(w);
    return 1;
}

/* Use the files that the bytes name first, and a file that they are unlikely to name. */
static void use(struct restart_checkpoint *w, const uint8_t *data, size_t len) {
    struct restart_checkpoint_slot *taken[FUZZ_SLOTS + 1];
    struct restart_checkpoint_found found;
    struct stat file;
    int count = 0;
    require(fstat(directory, &file) == 0);
    for (size_t at = RESTART_CHECKPOINT_HEADER_BYTES; count < FUZZ_SLOTS && at + 8 <= len;
         at += RESTART_CHECKPOINT_SLOT_BYTES) {
        memcpy(&file.st_ino, data + at, 8);
        if (restart_checkpoint_find(w, &file, &found)) {
            require(found.inode == file.st_ino && found.bytes >= 0 && found.base_offset >= 0);
        }
        taken[count++] = restart_checkpoint_acquire_slot(w, &file);
    }
    file.st_ino = 77;
    taken[count++] = restart_checkpoint_acquire_slot(w, &file);
    for (int i = 0; i < count; i++) {
        require(taken[i] != NULL);
        for (int k = 0; k < i; k++) { require(taken[k] != taken[i]); }
        file.st_ino = (ino_t)(1000 + i);
        restart_checkpoint_record(taken[i], &file, i, 10, 5);
        restart_checkpoint_grown(taken[i], 20);
    }
    restart_checkpoint_release_slot(w, taken[0]);
}

/* Keep the file as a kill does, for the next process. */
static int keep_copy(uint8_t **bytes, size_t *len) {
    struct stat st;
    int fd = openat(place, name, O_RDONLY);
    if (fd < 0 || fstat(fd, &st) != 0) { return 0; }
    *len = (size_t)st.st_size;
    *bytes = malloc(*len + 1);
    require(pread(fd, *bytes, *len, 0) == (ssize_t)*len);
    close(fd);
    return 1;
}

static void write_file(const uint8_t *bytes, size_t len) {
    unlinkat(place, name, 0);
    int fd = openat(place, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
    require(fd >= 0 && write(fd, bytes, len) == (ssize_t)len);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1 || !begin()) { return 0; }
    size_t len = size - 1 + (data[0] & 1 ? sizeof header : 0);
    uint8_t *file = malloc(len + 1), *kept = NULL;
    if (data[0] & 1) {
        memcpy(file, header, sizeof header);
        memcpy(file + sizeof header, data + 1, size - 1);
    } else {
        memcpy(file, data + 1, size - 1);
    }
    write_file(file, len);
    struct restart_checkpoint *w = restart_checkpoint_new(directory, where);
    require(w != NULL);
    use(w, file, len);
    if (data[0] & 2) { restart_checkpoint_void(w); }
    require(keep_copy(&kept, &len));
    restart_checkpoint_free(w);
    write_file(kept, len);
    require((w = restart_checkpoint_new(directory, where)) != NULL);
    if (data[0] & 2) { require(restart_checkpoint_found_count(w) == 0); }
    restart_checkpoint_free(w);
    free(kept);
    free(file);
    return 0;
}
