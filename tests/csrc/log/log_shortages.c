/* Lack of memory or disk space, at the C level. Usage: log_shortages DIRECTORY SCENE. Exits with
 * 0, or with 1 and a line on stderr. Linked with -Wl,--wrap=malloc,--wrap=realloc. */
#include <errno.h>

#include "log_manager/log_manager.h"
#include "segment/leader_epochs.h"
#include "log/log.h"
#include "segment/producer_state.h"
#include "scenes.h"

static bool starved;
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);

void *__wrap_malloc(size_t bytes) { return starved ? NULL : __real_malloc(bytes); }
void *__wrap_realloc(void *p, size_t bytes) { return starved ? NULL : __real_realloc(p, bytes); }

static void read_epochs(void) {
    const char good[] = "0\n1\n3 7\n", bad[] = "0\n1\n3 x\n";
    struct epochs epochs = {0};
    starved = true;
    CHECK(epochs_decode(&epochs, good, sizeof good - 1) == -ENOMEM);
    starved = false;
    CHECK(epochs_decode(&epochs, bad, sizeof bad - 1) == -EINVAL);
    CHECK(epochs_decode(&epochs, good, sizeof good - 1) == 0 && epochs.count == 1);
    epochs_free(&epochs);
}

static void read_producers(void) {
    struct producers producers = {0}, other = {0};
    struct batch_header h = {.producer_id = 7, .producer_epoch = 1, .base_sequence = 0};
    size_t len;
    CHECK(producers_update(&producers, &h, 0) == 0);
    uint8_t *bytes = producers_encode(&producers, &len);
    CHECK(bytes != NULL);
    starved = true;
    CHECK(producers_decode(&other, bytes, len) == -ENOMEM && other.count == 0);
    starved = false;
    bytes[len - 1] ^= 1;
    CHECK(producers_decode(&other, bytes, len) == -EINVAL);
    bytes[len - 1] ^= 1;
    CHECK(producers_decode(&other, bytes, len) == 0 && other.count == 1);
    free(bytes);
    producers_free(&producers);
    producers_free(&other);
}

/* One large batch that does not fit is rejected; small ones are accepted. */
static void take_room(const char *path) {
    const struct log_config config = {.segment_bytes = 1 << 20, .retention_bytes = -1};
    const struct log_checkpoint checkpoint = {.log_start_offset = -1, .high_watermark = -1};
    static const uint8_t id[16] = {1};
    struct iopool *pool = iopool_new(1, 16, NULL, NULL);
    int error;
    struct log_dir *dir = log_dir_new(path, pool, &error);
    struct log *log;
    CHECK(dir != NULL);
    CHECK(log_open(dir, "t", 0, id, &config, &checkpoint, 0, &log) == 0);
    int64_t free_bytes, total_bytes;
    CHECK(log_dir_measure_space(dir, &free_bytes, &total_bytes));
    log_dir_set_reserve(dir, free_bytes / 2);
    CHECK(log_dir_measure_space(dir, &free_bytes, &total_bytes));
    CHECK(!log_dir_reserve(dir, free_bytes));
    CHECK(log_dir_short_of_space(dir));
    CHECK(!log_dir_reserve(dir, free_bytes));
    CHECK(log_dir_reserve(dir, 1000));
    log_dir_unreserve(dir, 1000);
    /* Without any space small ones are rejected too. */
    log_dir_set_reserve(dir, free_bytes * 2);
    CHECK(log_dir_measure_space(dir, &free_bytes, &total_bytes));
    CHECK(!log_dir_reserve(dir, 1000));
    log_dir_set_reserve(dir, 0);
    CHECK(log_dir_measure_space(dir, &free_bytes, &total_bytes));
    CHECK(log_dir_reserve(dir, 1000));
    log_dir_unreserve(dir, 1000);
    log_release(log);
    log_dir_free(dir);
    iopool_free(pool);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    if (strcmp(argv[2], "epochs") == 0) read_epochs();
    if (strcmp(argv[2], "producers") == 0) read_producers();
    if (strcmp(argv[2], "room") == 0) take_room(argv[1]);
    puts("ok");
    return 0;
}
