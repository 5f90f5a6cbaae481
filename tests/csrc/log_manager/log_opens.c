/* Opening and closing a log: files written, state trusted, requests rejected. Usage: log_opens
 * DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "log/single_log.h"

static struct log_config config_of(int32_t segment_bytes) {
    return scene_config(segment_bytes, 100);
}

static bool text_is(const char *path, const char *expected) {
    char text[256];
    ssize_t n = played_read(dir, path, text, sizeof text);
    return n == (ssize_t)strlen(expected) && memcmp(text, expected, (size_t)n) == 0;
}

/* ---- names ---- */

static int open_named(const char *name) {
    const struct log_config config = config_of(1 << 20);
    const struct log_checkpoint checkpoint = from_nothing();
    static const uint8_t id[16] = {1};
    int result = log_open_as(dir, name, id, &config, &checkpoint, NOW, &one);
    CHECK((result == 0) == (one != NULL));
    if (one != NULL) let_go();
    return result;
}

static void refuse_names(void) {
    char name[300];
    memset(name, 'n', sizeof name);
    name[255] = 0;
    CHECK(open_named(name) == 0);
    name[255] = 'n';
    name[256] = 0;
    CHECK(open_named(name) == LOG_E_CORRUPT);
    CHECK(open_named("a/b") == LOG_E_CORRUPT && open_named("t-0") == 0);
    const struct log_config config = config_of(1 << 20);
    const struct log_checkpoint checkpoint = from_nothing();
    static const uint8_t id[16] = {1};
    name[250] = 0;
    CHECK(log_open(dir, name, 0, id, &config, &checkpoint, NOW, &one) == LOG_E_CORRUPT);
    CHECK(log_open(dir, "", 0, id, &config, &checkpoint, NOW, &one) == LOG_E_CORRUPT);
    name[249] = 0;
    CHECK(log_open(dir, name, 12345, id, &config, &checkpoint, NOW, &one) == 0);
    let_go();
    for (int after = 0; after < 3; after++) {
        short_of.starved_after = after;
        short_of.starved = 1;
        CHECK(open_named("u-0") == LOG_E_MEMORY);
        CHECK(played_size(dir, "u-0") == -1);
    }
    short_of.starved = 0;
    played_fail(MKDIRAT, "u-0", ENOSPC, 1);
    CHECK(open_named("u-0") == LOG_E_FULL && !log_dir_offline(dir));
    played_fail(MKDIRAT, "u-0", EACCES, 1);
    CHECK(open_named("u-0") == LOG_E_IO && log_dir_failure(dir, NULL) == EACCES);
    CHECK(open_named("u-0") == LOG_E_OFFLINE);
}

/* ---- partition.metadata ---- */

static void write_metadata(void) {
    static const char *const path = "t-0/partition.metadata";
    static const char *const whole = "version: 0\ntopic_id: AQAAAAAAAAAAAAAAAAAAAA";
    struct log_config config = config_of(1 << 20);
    open_one(config);
    CHECK(text_is(path, whole));
    let_go();
    struct stat before, after;
    CHECK(fstatat(dir->fd, path, &before, 0) == 0);
    played_write(dir, path, "version: 0\ntopic_id: AQAAAAAAAAAAAAAAAAAAAA\n\n", 45);
    CHECK(open_with(config, from_nothing()) == 0 && played_size(dir, path) == 45);
    let_go();
    /* A truncated file is rewritten; with another topic id the log is not opened. */
    played_write(dir, path, whole, 20);
    CHECK(open_with(config, from_nothing()) == 0 && text_is(path, whole));
    let_go();
    played_write(dir, path, "", 0);
    CHECK(open_with(config, from_nothing()) == 0 && text_is(path, whole));
    let_go();
    played_write(dir, path, "version: 0\ntopic_id: AQAAAAAAAAAAAAAAAAAAAB", 43);
    CHECK(open_with(config, from_nothing()) == LOG_E_CORRUPT);
    CHECK(!text_is(path, whole) && !log_dir_offline(dir));
    CHECK(unlinkat(dir->fd, path, 0) == 0);
    /* The records matter more than this file: if it has no space, they are still served. */
    played_fail(PWRITE, "metadata", ENOSPC, 1);
    CHECK(open_with(config, from_nothing()) == 0 && played_size(dir, path) == -1);
    let_go();
    played_fail(PWRITE, "metadata", ENOMEM, 1);
    CHECK(open_with(config, from_nothing()) == LOG_E_MEMORY);
    played_fail(OPENAT, "metadata", EMFILE, 2);
    CHECK(open_with(config, from_nothing()) == LOG_E_MEMORY && !log_dir_offline(dir));
    CHECK(open_with(config, from_nothing()) == 0 && text_is(path, whole));
    let_go();
    played_fail(PREAD, "metadata", EIO, 1);
    CHECK(open_with(config, from_nothing()) == LOG_E_IO && log_dir_offline(dir));
}

/* ---- clean starts ---- */

static struct log_checkpoint clean(const int64_t *segments, uint32_t count, int64_t end) {
    return (struct log_checkpoint){.clean = true, .segments = segments, .segment_count = count,
                                   .log_end_offset = end, .log_start_offset = -1,
                                   .high_watermark = -1, .last_epoch = -1};
}

static void believe_checkpoints(void) {
    struct log_config config = config_of(1 << 20);
    const int64_t two[] = {5, 100, 7, 9, 50, 8};
    struct log_checkpoint c = clean(two, 2, 20);
    played_note();
    CHECK(open_with(config, c) == 0 && played.noted == 0); /* without disk access */
    CHECK(ends_are(5, 5, 5, 20) && log_flushed_offset(one) == 20 && log_size_bytes(one) == 150);
    CHECK(segments_begin("5 9") && log_last_epoch(one) == -1);
    CHECK(atomic_load(&one->view.segments[0]->sealed));
    CHECK(atomic_load(&one->view.segments[0]->flush_done));
    CHECK(!atomic_load(&one->view.segments[1]->sealed));
    CHECK(!atomic_load(&one->view.segments[1]->flush_done));
    CHECK(one->view.segments[1]->index_interval_bytes == 100);
    CHECK(segment_largest_of(one->view.segments[1]).timestamp == 8);
    CHECK(log_recovery_point(one) == 20 && !log_is_leader(one) && log_in_sync_count(one) == 2);
    let_go();
    c.log_start_offset = 6;
    c.high_watermark = 18;
    c.last_epoch = 4;
    CHECK(open_with(config, c) == 0 && ends_are(6, 18, 18, 20) && log_last_epoch(one) == 4);
    let_go();
    c.high_watermark = 21;
    CHECK(open_with(config, c) == 0 && ends_are(6, 20, 20, 20));
    let_go();
    c.high_watermark = 5;
    c.log_start_offset = 0;
    CHECK(open_with(config, c) == 0 && ends_are(0, 5, 5, 20));
    let_go();
    c = clean(NULL, 0, 7);
    CHECK(open_with(config, c) == 0 && ends_are(7, 7, 7, 7) && segments_begin(""));
    let_go();
    CHECK(played_size(dir, "t-0") == -1);
}

static void doubt_checkpoints(void) {
    struct log_config config = config_of(1 << 20);
    static const struct {
        int64_t segments[6], end, start;
        bool holds;
    } cases[] = {
        {{5, 10, 0, 9, 10, 0}, 9, -1, true},    {{5, 10, 0, 9, 10, 0}, 8, -1, false},
        {{5, 10, 0, 5, 10, 0}, 20, -1, false},  {{5, 10, 0, 4, 10, 0}, 20, -1, false},
        {{-1, 10, 0, 4, 10, 0}, 20, -1, false}, {{0, 10, 0, 4, 10, 0}, 20, -1, true},
        {{5, -1, 0, 9, 10, 0}, 20, -1, false},  {{5, 0, 0, 9, 0, 0}, 20, -1, true},
        {{5, 10, 0, 9, 10, 0}, 20, 20, true},   {{5, 10, 0, 9, 10, 0}, 20, 21, false},
        {{5, 10, 0, 9, 10, 0}, LOG_OFFSET_MAX + INT32_MAX, -1, true},
        {{5, 10, 0, 9, 10, 0}, LOG_OFFSET_MAX + INT32_MAX + 1, -1, false},
        {{5, 10, 0, 9, 10, 0}, -1, -1, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct log_checkpoint c = clean(cases[i].segments, 2, cases[i].end);
        c.log_start_offset = cases[i].start;
        int result = open_with(config, c);
        CHECK(result == (cases[i].holds ? 0 : LOG_E_CORRUPT));
        if (result == 0) let_go();
    }
    struct log_checkpoint c = clean(NULL, 0, -1);
    CHECK(open_with(config, c) == LOG_E_CORRUPT);
    c.log_end_offset = 0;
    CHECK(open_with(config, c) == 0);
    let_go();
    for (int after = 4; after < 6; after++) {
        const int64_t segments[] = {5, 10, 0};
        short_of.starved_after = after - 1;
        short_of.starved = 1;
        CHECK(open_with(config, clean(segments, 1, 9)) == LOG_E_MEMORY);
    }
    short_of.starved = 0;
}

/* Close the log and return its checkpoint. */
static struct log_checkpoint closed(int64_t triples[3 * 32]) {
    CHECK(log_close_clean(one, NOW) == 0);
    struct log_checkpoint c = clean(triples, log_segments(one, triples, 32), log_end_offset(one));
    c.last_epoch = log_last_epoch(one);
    c.high_watermark = log_high_watermark(one);
    c.recovery_point = log_recovery_point(one);
    leave();
    return c;
}

static void close_whole(void) {
    int64_t triples[3 * 32];
    open_one(config_of(10 * SMALL));
    fill(25, 1);
    struct segment *s = one->view.segments[2];
    atomic_store(&s->allocated, 1 << 20);
    CHECK(ftruncate(s->fd, 9000) == 0);
    struct log_checkpoint c = closed(triples);
    CHECK(c.segment_count == 3 && c.log_end_offset == 25 && c.recovery_point == 25);
    CHECK(triples[6] == 20 && triples[7] == 5 * SMALL && triples[8] == 25);
    CHECK(played_size(dir, file_of(20, "log")) == 5 * SMALL);
    CHECK(played_size(dir, file_of(25, "snapshot")) == 10);
    CHECK(played_size(dir, file_of(20, "index")) == 2 * 8);
    CHECK(played_size(dir, file_of(20, "timeindex")) == 2 * 12);
    CHECK(text_is("t-0/leader-epoch-checkpoint", "0\n1\n0 0\n"));
    /* The first append continues at the same end. */
    CHECK(open_with(config_of(10 * SMALL), c) == 0 && log_become_leader(one, 3, 1) == 0);
    CHECK(log_last_epoch(one) == 3 && ends_are(0, 25, 25, 25));
    fill(1, 30);
    s = one->view.segments[2];
    CHECK(s->first_timestamp == 21 && s->created_ms > 0 && !atomic_load(&s->sealed));
    CHECK(segment_largest_of(s).timestamp == 30 && segment_index_entries(s, false) == 2);
    CHECK(log_epoch_of(one, 24) == 0 && log_epoch_of(one, 25) == 3);
    CHECK(log_roll_if_due(one, NOW) == 0);
    leave();
}

static void adopt_what_lies_there(void) {
    int64_t triples[3 * 32];
    open_one(config_of(1 << 20));
    fill(10, 1);
    struct log_checkpoint c = closed(triples);
    struct played_batch b = {.time = 50, .value_bytes = 10};
    /* Bytes beyond the checkpoint are truncated. */
    played_change(dir, file_of(0, "log"), 10 * SMALL, "rest", 4);
    CHECK(open_with(config_of(1 << 20), c) == 0 && log_become_leader(one, 0, 1) == 0);
    played_fail(FTRUNCATE, ".log", ENOSPC, 1);
    CHECK(append(b) == LOG_E_FULL && append(b) == 0);
    CHECK(played_size(dir, file_of(0, "log")) == 11 * SMALL);
    c = closed(triples);
    /* With fewer bytes the log is invalid. */
    int fd = openat(dir->fd, file_of(0, "log"), O_WRONLY);
    CHECK(fd >= 0 && ftruncate(fd, 11 * SMALL - 1) == 0);
    close(fd);
    CHECK(open_with(config_of(1 << 20), c) == 0 && log_become_leader(one, 0, 1) == 0);
    CHECK(append(b) == LOG_E_CORRUPT && !log_dir_offline(dir));
    leave();
    CHECK(unlinkat(dir->fd, file_of(0, "log"), 0) == 0);
    CHECK(open_with(config_of(1 << 20), c) == 0 && log_become_leader(one, 0, 1) == 0);
    CHECK(!log_offline(one) && append(b) == LOG_E_IO);
    CHECK(log_offline(one) && !log_dir_offline(dir) && log_dir_lost_logs(dir) == 1);
    leave();
}

/* The checkpoint's last epoch extends the file's epochs and removes none. */
static void adopt_epochs(void) {
    static const char *const path = "t-0/leader-epoch-checkpoint";
    struct log_config config = config_of(1 << 20);
    int64_t triples[3 * 32];
    open_one(config);
    fill(10, 1);
    CHECK(log_become_leader(one, 4, 1) == 0);
    fill(1, 20);
    struct log_checkpoint c = closed(triples);
    CHECK(c.last_epoch == 4 && text_is(path, "0\n2\n0 0\n4 10\n"));
    /* Unknown, partly known, completely known. */
    for (int32_t last = -1; last < 5; last++) {
        c.last_epoch = last;
        CHECK(open_with(config, c) == 0 && log_epoch_of(one, 10) == 4);
        CHECK(log_epoch_of(one, 9) == 0 && log_last_epoch(one) == 4);
        CHECK(!log_marked(&one->flush.epochs_marks));
        leave();
    }
    c.last_epoch = 5;
    CHECK(open_with(config, c) == 0 && log_epoch_of(one, 10) == 4 && log_last_epoch(one) == 5);
    CHECK(log_marked(&one->flush.epochs_marks) && log_flush(one) == 0);
    CHECK(text_is(path, "0\n3\n0 0\n4 10\n5 11\n"));
    leave();
}

/* A clean start reads the epochs from the batches if their file is missing or damaged. */
static void rebuild_epochs(void) {
    static const char *const path = "t-0/leader-epoch-checkpoint";
    static const char *const texts[] = {"", "0\n2\n0 0\n", "rubbish", NULL};
    struct log_config config = config_of(5 * SMALL);
    struct log_damage damage;
    int64_t triples[3 * 32], end;
    int32_t found;
    open_one(config);
    fill(10, 1);
    CHECK(log_become_leader(one, 4, 1) == 0);
    fill(10, 20);
    struct log_checkpoint c = closed(triples);
    c.last_epoch = -1;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        CHECK(unlinkat(dir->fd, path, 0) == 0);
        if (texts[i] != NULL) played_write(dir, path, texts[i], strlen(texts[i]));
        CHECK(open_with(config, c) == 0 && log_epoch_of(one, 9) == 0);
        CHECK(log_epoch_of(one, 10) == 4 && log_last_epoch(one) == 4);
        log_end_for_epoch(one, 0, &found, &end);
        CHECK(found == 0 && end == 10);
        CHECK(log_dir_fetch_damages(dir, &damage, 1) == (texts[i] != NULL));
        if (texts[i] != NULL) {
            CHECK(damage.kind == LOG_DAMAGE_EPOCHS && strcmp(damage.partition, "t-0") == 0);
            CHECK(text_is("t-0/leader-epoch-checkpoint.damaged", texts[i]));
        }
        CHECK(log_flush(one) == 0 && text_is(path, "0\n2\n0 0\n4 10\n"));
        leave();
    }
    /* The epochs must not stay incomplete because the batches cannot be read. */
    CHECK(unlinkat(dir->fd, path, 0) == 0);
    CHECK(open_with(config, c) == 0);
    played_fail(OPENAT, ".log", EMFILE, 9);
    CHECK(log_epoch_of(one, 10) == -1);
    played_heal();
    CHECK(log_epoch_of(one, 10) == 4);
    leave();
}

/* If a clean start finds invalid indexes, the first append rebuilds them. */
static void adopt_without_indexes(void) {
    int64_t triples[3 * 32];
    open_one(config_of(1 << 20));
    fill(10, 1);
    struct log_checkpoint c = closed(triples);
    struct played_batch b = {.time = 50, .value_bytes = 10};
    CHECK(open_with(config_of(1 << 20), c) == 0 && log_become_leader(one, 0, 1) == 0);
    played_fail(OPENAT, ".timeindex", EMFILE, 2);
    CHECK(append(b) == LOG_E_MEMORY);
    CHECK(unlinkat(dir->fd, file_of(0, "index"), 0) == 0);
    CHECK(append(b) == 0);
    CHECK(segment_index_entries(one->view.segments[0], false) >= 4);
    CHECK(segment_largest_of(one->view.segments[0]).timestamp == 50);
    leave();
    CHECK(open_with(config_of(1 << 20), c) == 0 && log_become_leader(one, 0, 1) == 0);
    played_fail(OPENAT, "000.log", EMFILE, 1);
    CHECK(append(b) == LOG_E_MEMORY && append(b) == 0);
    leave();
}

/* A segment with a hard link is followed by a new one. */
static void follow_shared(void) {
    int64_t triples[3 * 32];
    open_one(config_of(1 << 20));
    fill(10, 1);
    struct log_checkpoint c = closed(triples);
    CHECK(linkat(dir->fd, file_of(0, "log"), dir->fd, "branch", 0) == 0);
    CHECK(open_with(config_of(1 << 20), c) == 0 && log_become_leader(one, 0, 1) == 0);
    played_fail(OPENAT, "010.log", ENOSPC, 1);
    CHECK(append((struct played_batch){.time = 50}) == LOG_E_FULL && segments_begin("0"));
    fill(1, 50);
    CHECK(segments_begin("0 10") && played_size(dir, "branch") == 10 * SMALL);
    CHECK(atomic_load(&one->view.segments[0]->sealed));
    CHECK(!atomic_load(&one->view.segments[1]->sealed));
    CHECK(log_marked(&one->flush.files_marks));
    leave();
}

/* ---- close ---- */

static void close_with_faults(void) {
    open_one(config_of(1 << 20));
    fill(10, 1);
    CHECK(segment_index_entries(one->view.segments[0], false) > 0);
    played_fail(PWRITE, ".index", ENOSPC, 1);
    CHECK(log_close_clean(one, NOW) == LOG_E_FULL);
    fill(1, 40);
    CHECK(log_close_clean(one, NOW) == 0 && log_flushed_offset(one) == 11);
    fill(1, 50);
    played_fail(OPENAT, ".snapshot", ENOSPC, 1);
    CHECK(log_close_clean(one, NOW) == LOG_E_FULL && !log_dir_offline(dir));
    fill(1, 51);
    played_shorten(PWRITE, ".snapshot", 5);
    CHECK(log_close_clean(one, NOW) == LOG_E_FULL);
    CHECK(played_size(dir, file_of(13, "snapshot")) == -1);
    CHECK(played_size(dir, file_of(13, "snapshot.tmp")) == -1);
    fill(1, 52);
    atomic_store(&one->view.segments[0]->allocated, 1);
    played_fail(FTRUNCATE, ".log", ENOSPC, 1);
    CHECK(log_close_clean(one, NOW) == LOG_E_FULL);
    fill(1, 53);
    log_hold_recovery_point(one, 3);
    played_fail(PWRITE, "epoch", ENOSPC, 1);
    log_mark(&one->flush.epochs_marks);
    CHECK(log_close_clean(one, NOW) == LOG_E_FULL && log_recovery_point(one) == 3);
    CHECK(log_close_clean(one, NOW) == 0 && log_recovery_point(one) == 15);
    log_abandon(one);
    CHECK(log_close_clean(one, NOW) == LOG_E_DELETED);
    let_go();
    open_one(config_of(1 << 20));
    fill(10, 1);
    log_dir_fail(dir, EIO, "pwrite");
    played_note();
    CHECK(log_close_clean(one, NOW) == LOG_E_OFFLINE && played.noted == 0);
    CHECK(one->append.writable);
    let_go();
}

/* ---- settings ---- */

static void change_settings(void) {
    struct log_config config = config_of(1 << 20), copy;
    open_one(config);
    fill(1, 1);
    CHECK(log_config_get(one, &copy)->compression_codec == -1 && !log_flush_before_ack(one));
    config.index_interval_bytes = 777;
    config.compression_codec = 2;
    config.acks_all_flush = true;
    config.min_insync_replicas = 3;
    log_set_config(one, &config);
    CHECK(one->view.segments[0]->index_interval_bytes == 777);
    CHECK(log_flush_before_ack(one) && log_config_get(one, &copy) == &copy);
    CHECK(copy.index_interval_bytes == 777 && copy.min_insync_replicas == 3);
    CHECK(copy.compression_codec == 2);
    CHECK(!log_below_min_isr(one, false)); /* one replica: no more required */
    CHECK(log_become_leader(one, 1, 2) == 0 && !log_flush_before_ack(one));
    let_go();
    CHECK(open_with(config, from_nothing()) == 0);
    CHECK(log_config_get(one, &copy)->compression_codec == 2);
    CHECK(!atomic_load(&one->role.flush_before_fetch));
    CHECK(atomic_load(&one->role.flush_before_ack));
    let_go();
}

int main(int argc, char **argv) {
    static const struct scene scenes[] = {
        {"names", refuse_names},         {"metadata", write_metadata},
        {"believe", believe_checkpoints}, {"doubt", doubt_checkpoints},
        {"close", close_whole},          {"adopt", adopt_what_lies_there},
        {"epochs", adopt_epochs},
        {"rebuilt_epochs", rebuild_epochs},
        {"indexes", adopt_without_indexes}, {"shared", follow_shared},
        {"faults", close_with_faults},   {"settings", change_settings}};
    return play_scenes(argc, argv, scenes, sizeof scenes / sizeof *scenes, true);
}
