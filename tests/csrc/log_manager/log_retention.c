/* Removal of records: by age and size, by a new log start, by truncation, by deletion. Usage:
 * log_retention DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "log/single_log.h"

static struct log_config config_of(int32_t segment_bytes) {
    return scene_config(segment_bytes, 100);
}

static struct log_stats figures(void) {
    struct log_stats f;
    log_read_stats(one, &f);
    return f;
}

static uint64_t deleted_segments(void) {
    struct log_dir_stats f;
    log_dir_read_stats(dir, &f);
    return f.segments_deleted;
}

/* ---- retention ---- */

static void keep_by_time(void) {
    struct log_config config = config_of(2 * SMALL);
    open_one(config);
    fill(7, 1000); /* segments of two: their latest times are 1001, 1003, 1005 and 1006 */
    CHECK(segments_begin("0 2 4 6"));
    CHECK(log_apply_retention(one, INT64_MAX / 2) == 0);
    config.retention_ms = 500;
    log_set_config(one, &config);
    CHECK(log_apply_retention(one, 1501) == 0);
    CHECK(log_apply_retention(one, 1502) == 1 && segments_begin("2 4 6"));
    CHECK(ends_are(2, 7, 7, 7) && deleted_segments() == 1);
    CHECK(played_size(dir, file_of(0, "log")) == -1);
    CHECK(played_size(dir, file_of(0, "log.deleted")) == 2 * SMALL);
    CHECK(log_size_bytes(one) == 5 * SMALL && figures().segments == 3);
    config.cleanup_delete = false;
    log_set_config(one, &config);
    CHECK(log_apply_retention(one, 5000) == 0);
    config.cleanup_delete = true;
    config.retention_ms = 0;
    log_set_config(one, &config);
    CHECK(log_apply_retention(one, 1005) == 1 && segments_begin("4 6"));
    /* An expired active segment is removed too, after a roll. */
    CHECK(log_apply_retention(one, 1007) == 2 && segments_begin("7") && ends_are(7, 7, 7, 7));
    CHECK(log_apply_retention(one, 9000) == 0 && segments_begin("7"));
    fill(1, 5);
    log_abandon(one);
    CHECK(log_apply_retention(one, 9000) == LOG_E_DELETED);
    let_go();
}

static void keep_by_size(void) {
    struct log_config config = config_of(2 * SMALL);
    open_one(config);
    fill(7, 1000);
    config.retention_bytes = 5 * SMALL + 1;
    log_set_config(one, &config);
    CHECK(log_apply_retention(one, 5000) == 0);
    config.retention_bytes = 5 * SMALL;
    log_set_config(one, &config);
    CHECK(log_apply_retention(one, 5000) == 1 && segments_begin("2 4 6"));
    config.retention_bytes = SMALL;
    log_set_config(one, &config);
    CHECK(log_apply_retention(one, 5000) == 2 && segments_begin("6"));
    config.retention_bytes = 0;
    log_set_config(one, &config);
    CHECK(log_apply_retention(one, 5000) == 1 && segments_begin("7"));
    let_go();
}

/* Records above the high watermark are never removed. */
static void keep_what_is_not_committed(void) {
    struct log_config config = config_of(2 * SMALL);
    config.retention_bytes = 0;
    open_one(config);
    CHECK(log_lead_replicas(one, 1, 2) == 0);
    fill(5, 1000);
    CHECK(log_apply_retention(one, 5000) == 0);
    log_advance_high_watermark(one, 1);
    CHECK(log_apply_retention(one, 5000) == 0);
    log_advance_high_watermark(one, 2);
    CHECK(log_apply_retention(one, 5000) == 1 && ends_are(2, 2, 2, 5) && segments_begin("2 4"));
    log_dir_fail(dir, EIO, "fsync");
    log_advance_high_watermark(one, 5);
    CHECK(log_apply_retention(one, 5000) == LOG_E_OFFLINE && segments_begin("2 4"));
    let_go();
}

static void go_on_without_room(void) {
    struct log_config config = config_of(2 * SMALL);
    config.retention_bytes = 0;
    open_one(config);
    fill(6, 1000);
    CHECK(segments_begin("0 2 4"));
    played_fail(OPENAT, "006.log", ENOSPC, 1);
    CHECK(log_apply_retention(one, 5000) == 2 && segments_begin("4"));
    played_fail(OPENAT, "006.log", ENOSPC, 1);
    CHECK(log_apply_retention(one, 5000) == LOG_E_FULL && segments_begin("4"));
    played_fail(OPENAT, "006.log", EACCES, 1);
    CHECK(log_apply_retention(one, 5000) == LOG_E_IO && log_dir_offline(dir));
    let_go();
}

/* Files are renamed in order; the first failure ends the removal. */
static void remove_files(void) {
    struct log_config config = config_of(2 * SMALL);
    config.retention_bytes = 0;
    config.file_delete_delay_ms = 60000;
    open_one(config);
    fill(6, 1000);
    CHECK(log_move_start(one, 2, NOW) == 0 && segments_begin("2 4"));
    /* No space for the longer name. */
    played_fail(RENAMEAT, "002.log", ENOSPC, 1);
    CHECK(log_move_start(one, 4, NOW) == 0 && segments_begin("4"));
    CHECK(played_size(dir, file_of(2, "log")) == -1);
    CHECK(played_size(dir, file_of(2, "log.deleted")) == -1 && !log_dir_offline(dir));
    /* Delayed: no file is deleted yet. */
    int waiting = 0;
    int64_t now = clock_read_ms(CLOCK_MONOTONIC);
    for (struct log_dir_removal *r = dir->removals; r != NULL; r = r->next) {
        CHECK(r->due_ms > now + 50000 && r->due_ms <= now + 60000);
        waiting++;
    }
    CHECK(waiting == 6); /* 0: log, index, timeindex; 2: both indexes, snapshot */
    played_fail(RENAMEAT, "004.log", EIO, 1);
    CHECK(log_move_start(one, 6, NOW) == 0 && log_dir_offline(dir));
    CHECK(log_dir_failure(dir, NULL) == EIO && segments_begin("6"));
    CHECK(played_size(dir, file_of(4, "log")) == 2 * SMALL);
    let_go();
}

static void remove_at_once_when_short(void) {
    struct log_config config = config_of(2 * SMALL);
    config.file_delete_delay_ms = 60000;
    open_one(config);
    fill(3, 1000);
    atomic_store(&dir->short_of_space, true);
    CHECK(log_move_start(one, 2, NOW) == 0);
    int64_t now = clock_read_ms(CLOCK_MONOTONIC);
    for (struct log_dir_removal *r = dir->removals; r != NULL; r = r->next) CHECK(r->due_ms <= now);
    CHECK(dir->removals != NULL);
    atomic_store(&dir->short_of_space, false);
    let_go();
}

/* ---- the start ---- */

static void move_start(void) {
    open_one(config_of(2 * SMALL));
    fill(5, 1000);
    CHECK(log_move_start(one, -1, NOW) == LOG_E_RANGE);
    CHECK(log_move_start(one, 6, NOW) == LOG_E_RANGE);
    CHECK(log_move_start(one, 1, NOW) == 0 && ends_are(1, 5, 5, 5) && segments_begin("0 2 4"));
    CHECK(log_move_start(one, 0, NOW) == 0 && ends_are(1, 5, 5, 5));
    CHECK(log_epoch_of(one, 0) == -1 && log_epoch_of(one, 1) == 0);
    struct log_range range;
    CHECK(read_bytes(0, 1000, &range) == LOG_E_RANGE && read_bytes(1, 1000, &range) == SMALL);
    CHECK(log_move_start(one, 3, NOW) == 0 && ends_are(3, 5, 5, 5) && segments_begin("2 4"));
    CHECK(log_move_start(one, 5, NOW) == 0 && ends_are(5, 5, 5, 5) && segments_begin("5"));
    fill(1, 1000);
    CHECK(ends_are(5, 6, 6, 6) &&
          log_read(one,
                   &(struct log_read_request){.offset = 5,
                                              .bound = LOG_BOUND_HIGH_WATERMARK,
                                              .bytes_max = 1,
                                              .at_least_one = true},
                   &range) == 0);
    log_range_release(&range);
    log_abandon(one);
    CHECK(log_move_start(one, 6, NOW) == LOG_E_DELETED);
    let_go();
}

/* ---- rolls by time ---- */

static void roll_when_due(void) {
    struct log_config config = config_of(1 << 20);
    config.segment_ms = 1000;
    config.flush_ms = 5000;
    open_one(config);
    CHECK(log_roll_if_due(one, NOW) == 0 && played_asked(dir) == 0);
    fill(1, 1);
    one->view.segments[0]->created_ms = NOW;
    atomic_store(&one->flush.last_flush_ms, NOW);
    CHECK(log_roll_if_due(one, NOW + 1000) == 0 && segments_begin("0") && played_asked(dir) == 0);
    CHECK(log_roll_if_due(one, NOW + 1001) == 0 && segments_begin("0 1") && played_asked(dir) == 0);
    CHECK(log_roll_if_due(one, NOW + 9000) == 0 && segments_begin("0 1"));
    CHECK(played_asked(dir) == 1); /* by the time since the last flush */
    atomic_store(&one->flush.last_flush_ms, NOW);
    CHECK(log_roll_if_due(one, NOW + 4999) == 0 && played_asked(dir) == 0);
    CHECK(log_roll_if_due(one, NOW + 5000) == 0 && played_asked(dir) == 1);
    CHECK(log_roll_if_due(one, NOW) == 0 && played_asked(dir) == 0);
    CHECK(log_roll_if_due(one, NOW - 1) == 0 && played_asked(dir) == 1);
    CHECK(log_flush(one) == 0);
    CHECK(log_roll_if_due(one, NOW - 1) == 0 && played_asked(dir) == 0);
    /* If the clock is set back, the segment's age starts again. */
    fill(1, 1);
    CHECK(one->view.segments[1]->created_ms == NOW - 1);
    CHECK(log_roll_if_due(one, NOW + 999) == 0 && segments_begin("0 1"));
    one->view.segments[1]->jitter_ms = 10;
    CHECK(log_roll_if_due(one, NOW + 989) == 0 && segments_begin("0 1"));
    CHECK(log_roll_if_due(one, NOW + 990) == 0 && segments_begin("0 1 2"));
    CHECK(log_seal(one, NOW) == 0 && segments_begin("0 1 2"));
    fill(1, 1);
    CHECK(log_seal(one, NOW) == 0 && segments_begin("0 1 2 3"));
    log_abandon(one);
    CHECK(log_seal(one, NOW) == LOG_E_DELETED && log_roll_if_due(one, NOW * 2) == 0);
    let_go();
}

/* ---- truncations ---- */

static void truncate_to(void) {
    open_one(config_of(4 * SMALL));
    fill(10, 1000);
    CHECK(segments_begin("0 4 8") && log_flush(one) == 0);
    struct log_range range;
    CHECK(read_bytes(4, 1000, &range) == 4 * SMALL && one->view.hints != NULL);
    uint64_t before = one->view.truncations;
    log_become_follower(one, 2);
    CHECK(log_truncate(one, 9, 1) == LOG_E_NOT_LEADER);
    CHECK(log_truncate(one, 9, 3) == LOG_E_NOT_LEADER);
    CHECK(log_truncate(one, 9, 2) == 0 && ends_are(0, 9, 9, 9) && log_flushed_offset(one) == 9);
    CHECK(one->view.truncations > before && one->view.hints == NULL);
    CHECK(played_size(dir, file_of(8, "log")) == SMALL && log_size_bytes(one) == 9 * SMALL);
    CHECK(segment_largest_of(one->view.segments[2]).timestamp == 1008);
    CHECK(log_truncate(one, 9, 2) == 0 && log_truncate(one, 100, 2) == 0);
    CHECK(log_end_offset(one) == 9);
    CHECK(log_truncate(one, 6, -1) == 0 && ends_are(0, 6, 6, 6) && segments_begin("0 4"));
    CHECK(played_size(dir, file_of(8, "log")) == -1);
    CHECK(!atomic_load(&one->view.segments[1]->sealed));
    CHECK(log_truncate(one, 4, 2) == 0 && ends_are(0, 4, 4, 4) && segments_begin("0"));
    size_t taken;
    CHECK(follow((struct played_batch){.base = 4, .time = 3, .leader_epoch = 2}, &taken) == 0);
    CHECK(taken == 68 && segments_begin("0 4") && log_end_offset(one) == 5);
    CHECK(log_last_epoch(one) == 2);
    CHECK(log_truncate(one, 0, 2) == 0 && ends_are(0, 0, 0, 0) && segments_begin("0"));
    CHECK(log_last_epoch(one) == -1 && log_size_bytes(one) == 0);
    /* A leader's log cannot be truncated for a follower. */
    CHECK(log_become_leader(one, 3, 1) == 0 && log_truncate(one, 0, 3) == LOG_E_NOT_LEADER);
    fill(2, 1);
    CHECK(log_truncate(one, -5, -1) == 0 && ends_are(0, 0, 0, 0));
    log_abandon(one);
    CHECK(log_truncate(one, 0, -1) == LOG_E_DELETED);
    let_go();
}

static void truncate_within(void) {
    open_one(config_of(1 << 20));
    CHECK(append((struct played_batch){.time = 1, .records = 5, .value_bytes = 10}) == 0);
    CHECK(append((struct played_batch){.time = 2, .records = 5, .value_bytes = 10}) == 0);
    CHECK(log_move_start(one, 7, NOW) == 0 && log_flush(one) == 0);
    /* The batch that contains the offset is removed completely, and all boundaries follow. */
    CHECK(log_truncate(one, 8, -1) == 0 && ends_are(5, 5, 5, 5) && log_flushed_offset(one) == 5);
    CHECK(played_size(dir, file_of(0, "log")) == SMALL);
    /* An epoch without records is removed with the end. */
    CHECK(log_become_leader(one, 4, 1) == 0 && log_last_epoch(one) == 4);
    log_become_follower(one, 6);
    CHECK(log_last_epoch(one) == 4 && log_truncate(one, 5, 6) == 0 && log_last_epoch(one) == -1);
    let_go();
}

static void fail_to_truncate(void) {
    open_one(config_of(4 * SMALL));
    fill(10, 1000);
    played_fail(FTRUNCATE, "008.log", ENOSPC, 1);
    CHECK(log_truncate(one, 9, -1) == LOG_E_FULL && !log_dir_offline(dir));
    CHECK(log_truncate(one, 7, -1) == 0 && ends_are(0, 7, 7, 7));
    fill(4, 1000);
    uint32_t synced = played.counts[FSYNC];
    played_fail(FSYNC, "t-0", EIO, 1);
    CHECK(log_truncate(one, 6, -1) == LOG_E_IO && played.counts[FSYNC] == synced + 1);
    CHECK(log_dir_offline(dir) && log_dir_failure(dir, NULL) == EIO);
    let_go();
}

static void restart(void) {
    open_one(config_of(4 * SMALL));
    fill(10, 1000);
    uint64_t before = one->view.truncations;
    log_become_follower(one, 2);
    CHECK(log_restart_at(one, -1, 2) == LOG_E_RANGE);
    CHECK(log_restart_at(one, LOG_OFFSET_MAX + 1, 2) == LOG_E_RANGE);
    CHECK(log_restart_at(one, 50, 1) == LOG_E_NOT_LEADER && log_end_offset(one) == 10);
    CHECK(log_restart_at(one, 50, 2) == 0 && ends_are(50, 50, 50, 50) && segments_begin(""));
    CHECK(log_flushed_offset(one) == 50 && one->view.truncations > before);
    CHECK(played_size(dir, file_of(0, "log")) == -1 && log_size_bytes(one) == 0);
    size_t taken;
    CHECK(follow((struct played_batch){.base = 50, .time = 3, .records = 2}, &taken) == 0);
    CHECK(segments_begin("50") && ends_are(50, 50, 50, 52));
    CHECK(log_restart_at(one, 0, 2) == 0 && ends_are(0, 0, 0, 0));
    CHECK(log_restart_at(one, LOG_OFFSET_MAX, 2) == 0 && log_end_offset(one) == LOG_OFFSET_MAX);
    let_go();
}

/* ---- deletion ---- */

static char gone_name[300];
static bool note_gone(void) {
    snprintf(gone_name, sizeof gone_name, "%s", one->partition->name);
    size_t n = strlen(gone_name);
    return n > 40 && strcmp(gone_name + n - 7, "-delete") == 0 && gone_name[n - 40] == '.' &&
           strspn(gone_name + n - 39, "0123456789abcdef") == 32;
}

static void delete(void) {
    struct log_config config = config_of(1 << 20);
    config.file_delete_delay_ms = 60000;
    open_one(config);
    fill(1, 1);
    struct mailbox *m = mailbox_new(8);
    struct message message;
    struct log_waiter w = {.mailbox = m, .offset = 5, .wait_for = LOG_WAIT_END};
    CHECK(!log_wait(one, &w));
    CHECK(log_delete(one, NOW) == 0 && log_failed(one) == LOG_E_DELETED);
    CHECK(mailbox_take(m, &message, 1) == 1 && message.status == LOG_E_DELETED && !w.linked);
    CHECK(note_gone() && strncmp(gone_name, "t-0.", 4) == 0 && strlen(gone_name) == 43);
    CHECK(played_size(dir, "t-0") == -1 && played_size(dir, gone_name) >= 0);
    int64_t now = clock_read_ms(CLOCK_MONOTONIC);
    CHECK(strcmp(dir->removals->path, gone_name) == 0 && dir->removals->next == NULL);
    CHECK(dir->removals->due_ms > now + 50000 && dir->removals->due_ms <= now + 60000);
    CHECK(log_delete(one, NOW) == LOG_E_DELETED && dir->removals->next == NULL);
    struct log_range range;
    CHECK(read_bytes(0, 1000, &range) == LOG_E_DELETED && log_flush(one) == LOG_E_DELETED);
    mailbox_free(m);
    let_go();
}

static void delete_by_name(void) {
    static const struct {
        const char *name, *begin;
    } names[] = {{"a-b-7", "a-b-7."},
                 {"t-1.0123456789abcdef0123456789abcdef-future", "t-1."},
                 {"t-1.0123456789abcdef0123456789abcdef-delete", "t-1."},
                 {"t-1.0123456789abcdef0123456789abcdef-others",
                  "t-1.0123456789abcdef0123456789abcdef-others."}};
    const struct log_config config = config_of(1 << 20);
    const struct log_checkpoint checkpoint = from_nothing();
    static const uint8_t id[16] = {1};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CHECK(log_open_as(dir, names[i].name, id, &config, &checkpoint, NOW, &one) == 0);
        CHECK(log_delete(one, NOW) == 0 && note_gone());
        CHECK(strncmp(gone_name, names[i].begin, strlen(names[i].begin)) == 0);
        CHECK(strlen(gone_name) == strlen(names[i].begin) + 39);
        let_go();
    }
    char topic[250];
    memset(topic, 'x', sizeof topic);
    topic[249] = 0;
    CHECK(log_open(dir, topic, 12, id, &config, &checkpoint, NOW, &one) == 0);
    CHECK(log_delete(one, NOW) == 0 && note_gone() && strlen(gone_name) == 255);
    CHECK(memcmp(gone_name + 255 - 43, "-12.", 4) == 0 && gone_name[211] == 'x');
    let_go();
    /* If the rename fails, the log keeps its name and is deleted anyway. */
    CHECK(log_open_as(dir, "r-0", id, &config, &checkpoint, NOW, &one) == 0);
    played_fail(RENAMEAT, "r-0", ENOSPC, 1);
    CHECK(log_delete(one, NOW) == LOG_E_FULL && strcmp(one->partition->name, "r-0") == 0);
    CHECK(log_failed(one) == LOG_E_DELETED);
    let_go();
    CHECK(log_open_as(dir, "r-1", id, &config, &checkpoint, NOW, &one) == 0);
    short_of.starved = 1;
    CHECK(log_delete(one, NOW) == LOG_E_MEMORY && strcmp(one->partition->name, "r-1") == 0);
    let_go();
    CHECK(log_open_as(dir, "r-2", id, &config, &checkpoint, NOW, &one) == 0);
    played_fail(RENAMEAT, "r-2", ENOENT, 1);
    CHECK(log_delete(one, NOW) == 0 && !log_dir_offline(dir));
    let_go();
}

/* A hard-linked file is copied by a truncation, which may lack space. */
static void truncate_without_room(void) {
    open_one(scene_config(1 << 20, 100));
    fill(10, 1);
    CHECK(log_flush(one) == 0);
    int64_t bytes = log_size_bytes(one);
    CHECK(linkat(dir->fd, file_of(0, "log"), dir->fd, "branch", 0) == 0);
    played_fail(PWRITE, ".cleaned", ENOSPC, 1);
    CHECK(log_truncate(one, 4, -1) == LOG_E_FULL && !log_dir_offline(dir));
    CHECK(played_size(dir, file_of(0, "log.cleaned")) == -1);
    CHECK(log_size_bytes(one) == bytes && ends_are(0, 10, 10, 10));
    struct log_range range;
    CHECK(read_bytes(4, 1 << 20, &range) == bytes - 4 * SMALL);
    /* The next attempt truncates the file, not only the state in memory. */
    CHECK(log_truncate(one, 4, -1) == 0 && ends_are(0, 4, 4, 4));
    CHECK(log_size_bytes(one) == 4 * SMALL && played_size(dir, file_of(0, "log")) == 4 * SMALL);
    leave();
    CHECK(open_with(scene_config(1 << 20, 100), from_nothing()) == 0);
    CHECK(log_end_offset(one) == 4);
    let_go();
    CHECK(unlinkat(dir->fd, "branch", 0) == 0);
}

int main(int argc, char **argv) {
    static const struct scene scenes[] = {
        {"time", keep_by_time},     {"size", keep_by_size},   {"high", keep_what_is_not_committed},
        {"room", go_on_without_room}, {"files", remove_files}, {"short", remove_at_once_when_short},
        {"start", move_start},      {"roll", roll_when_due}, {"truncate", truncate_to},
        {"within", truncate_within}, {"cut", fail_to_truncate}, {"restart", restart},
        {"delete", delete},         {"names", delete_by_name},
        {"unshare", truncate_without_room}};
    return play_scenes(argc, argv, scenes, sizeof scenes / sizeof *scenes, true);
}
