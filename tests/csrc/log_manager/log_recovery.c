/* Recovery of a log directory at a start. Usage: log_recovery DIRECTORY SCENE. Exits with 0, or
 * with 1 and a line on stderr. */
#include "log/single_log.h"

static struct log_config config_of(int32_t segment_bytes) {
    return scene_config(segment_bytes, 3 * SMALL);
}

static struct log_config config;

static struct log_checkpoint at_point(int64_t recovery_point) {
    struct log_checkpoint c = from_nothing();
    c.recovery_point = recovery_point;
    return c;
}

/* Make a log of `count` small batches in segments of ten, and abandon it. */
static void make_and_leave(int count, bool flush) {
    config = config_of(10 * SMALL);
    open_one(config);
    fill(count, 1000);
    if (flush) CHECK(log_flush(one) == 0);
    leave();
}

static void change_byte(int64_t base, int64_t at, uint8_t bits) {
    uint8_t byte;
    int fd = openat(dir->fd, file_of(base, "log"), O_RDWR);
    CHECK(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= bits;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

static void cut_file(const char *path, off_t bytes) {
    int fd = openat(dir->fd, path, O_WRONLY);
    CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
    close(fd);
}

static int64_t bytes_cut(uint32_t *scanned) {
    int64_t bytes;
    log_recovery_report(one, &bytes, scanned);
    return bytes;
}

static struct log_damage damages[16];
static uint32_t take_damages(void) { return log_dir_fetch_damages(dir, damages, 16); }

static bool damage_is(uint32_t i, enum log_damage_kind kind, enum log_damage_why why, int64_t base,
                      int64_t offset, int64_t position, int64_t bytes) {
    const struct log_damage *d = &damages[i];
    return d->kind == kind && d->why == why && d->segment == base && d->offset == offset &&
           d->position == position && d->bytes == bytes && strcmp(d->partition, "t-0") == 0;
}

/* ---- the files ---- */

static void list_files(void) {
    static const char *const gone[] = {
        "t-0/00000000000000000000.log.deleted", "t-0/00000000000000000000.index.deleted",
        "t-0/00000000000000000010.log.cleaned", "t-0/leader-epoch-checkpoint.tmp",
        "t-0/partition.metadata.tmp",           "t-0/00000000000000000010.snapshot.deleted"};
    static const char *const kept[] = {"t-0/other.deleted", "t-0/notes.tmp", "t-0/x.cleaned",
                                       "t-0/leader-epoch", "t-0/0000.log.deleted"};
    make_and_leave(125, true);
    for (int i = 0; i < 6; i++) played_write(dir, gone[i], "x", 1);
    for (int i = 0; i < 5; i++) played_write(dir, kept[i], "x", 1);
    CHECK(open_with(config, at_point(0)) == 0);
    CHECK(segments_begin("0 10 20 30 40 50 60 70 80 90 100 110 120"));
    for (int i = 0; i < 6; i++) CHECK(played_size(dir, gone[i]) == -1);
    for (int i = 0; i < 5; i++) CHECK(played_size(dir, kept[i]) == 1);
    uint32_t scanned;
    CHECK(bytes_cut(&scanned) == 0 && scanned == 13);
    CHECK(ends_are(0, 0, 0, 125) && log_flushed_offset(one) == 0 && take_damages() == 0);
    CHECK(log_size_bytes(one) == 125 * SMALL);
    for (uint32_t i = 0; i < 13; i++) {
        struct segment *s = one->view.segments[i];
        CHECK(atomic_load(&s->sealed) == (i < 12) && s->index_interval_bytes == 3 * SMALL);
        int64_t latest = 1000 + (i < 12 ? 10 * i + 9 : 124);
        CHECK(segment_largest_of(s).timestamp == latest && s->created_ms > 0);
    }
    let_go();
}

/* Below the recovery point a segment is trusted, unless its indexes contradict it. */
static void believe_what_was_flushed(void) {
    uint32_t scanned;
    make_and_leave(35, true);
    change_byte(0, 9 * SMALL + 70, 1); /* below: not checked */
    CHECK(open_with(config, at_point(30)) == 0);
    CHECK(bytes_cut(&scanned) == 0 && ends_are(0, 0, 0, 35) && log_flushed_offset(one) == 30);
    CHECK(take_damages() == 0 && atomic_load(&one->view.segments[2]->flush_done));
    CHECK(atomic_load(&one->view.segments[2]->sealed));
    CHECK(!atomic_load(&one->view.segments[3]->flush_done));
    CHECK(segment_largest_of(one->view.segments[2]).timestamp == 1029);
    CHECK(segment_largest_of(one->view.segments[2]).offset == 29);
    let_go();
    uint32_t before = scanned;
    CHECK(unlinkat(dir->fd, file_of(10, "index"), 0) == 0);
    CHECK(open_with(config, at_point(35)) == 0 && bytes_cut(&scanned) == 0);
    CHECK(scanned == before + 1 && played_size(dir, file_of(10, "index")) > 0);
    let_go();
    /* High watermark and log start are limited to the existing offsets. */
    struct log_checkpoint c = at_point(35);
    c.high_watermark = 40;
    c.log_start_offset = 12;
    CHECK(open_with(config, c) == 0 && ends_are(12, 35, 35, 35));
    let_go();
    c.high_watermark = 3;
    CHECK(open_with(config, c) == 0 && ends_are(12, 12, 12, 35));
    let_go();
    change_byte(0, 9 * SMALL + 70, 1);
    c.recovery_point = -5;
    c.log_start_offset = -1;
    CHECK(open_with(config, c) == 0 && ends_are(0, 3, 3, 35) && log_flushed_offset(one) == 0);
    let_go();
    c.recovery_point = LOG_OFFSET_MAX + 1;
    c.log_start_offset = LOG_OFFSET_MAX + 1;
    CHECK(open_with(config, c) == 0 && ends_are(0, 3, 3, 35) && log_flushed_offset(one) == 0);
    let_go();
    c.recovery_point = 1000;
    c.log_start_offset = 0;
    CHECK(open_with(config, c) == 0 && log_flushed_offset(one) == 35 && log_end_offset(one) == 35);
    let_go();
}

/* ---- torn ends ---- */

static void cut_the_end(void) {
    static const struct {
        int64_t at;
        uint8_t bits;
        enum log_damage_why why;
    } torn[] = {{3 * SMALL + 70, 1, LOG_WHY_CRC},
                {3 * SMALL + 16, 1, LOG_WHY_HEADER},
                {3 * SMALL + 10, 1, LOG_WHY_SHORT},
                {3 * SMALL + 7, 0x10, LOG_WHY_ORDER}};
    uint32_t scanned;
    for (size_t i = 0; i < sizeof torn / sizeof *torn; i++) {
        make_and_leave(25, false);
        change_byte(20, torn[i].at, torn[i].bits);
        CHECK(open_with(config, at_point(0)) == 0);
        CHECK(ends_are(0, 0, 0, 23) && bytes_cut(&scanned) == 2 * SMALL && scanned == 3);
        CHECK(played_size(dir, file_of(20, "log")) == 3 * SMALL);
        CHECK(log_size_bytes(one) == 23 * SMALL);
        CHECK(take_damages() == 1);
        CHECK(damage_is(0, LOG_DAMAGE_CUT, torn[i].why, 20, 23, 3 * SMALL, 2 * SMALL));
        CHECK(segment_largest_of(one->view.segments[2]).timestamp == 1022);
        CHECK(log_become_leader(one, 0, 1) == 0);
        fill(1, 2000);
        CHECK(log_end_offset(one) == 24);
        CHECK(played_size(dir, file_of(20, "log")) == 4 * SMALL);
        leave();
        CHECK(log_dir_unlink(dir, file_of(20, "log")) == 0);
        CHECK(log_dir_unlink(dir, file_of(10, "log")) == 0);
        CHECK(log_dir_unlink(dir, file_of(0, "log")) == 0);
    }
}

static void drop_what_follows_a_cut(void) {
    uint32_t scanned;
    make_and_leave(45, false);
    change_byte(10, 5 * SMALL + 70, 1);
    uint32_t syncs = played.counts[FSYNC];
    CHECK(open_with(config, at_point(0)) == 0);
    CHECK(ends_are(0, 0, 0, 15) && segments_begin("0 10") && played.counts[FSYNC] == syncs + 2);
    CHECK(bytes_cut(&scanned) == 30 * SMALL && scanned == 2 && take_damages() == 4);
    CHECK(damage_is(0, LOG_DAMAGE_CUT, LOG_WHY_CRC, 10, 15, 5 * SMALL, 5 * SMALL));
    CHECK(damage_is(1, LOG_DAMAGE_DROPPED, LOG_WHY_BEHIND, 20, 20, 0, 10 * SMALL));
    CHECK(damage_is(3, LOG_DAMAGE_DROPPED, LOG_WHY_BEHIND, 40, 40, 0, 5 * SMALL));
    CHECK(played_size(dir, file_of(20, "log")) == -1 && log_size_bytes(one) == 15 * SMALL);
    CHECK(!atomic_load(&one->view.segments[1]->sealed));
    let_go();
}

/* A segment that ends before the next one begins has lost batches; compaction leaves such gaps
 * too. */
static void end_at_gaps(void) {
    uint32_t scanned;
    make_and_leave(35, false);
    cut_file(file_of(10, "log"), 8 * SMALL);
    struct log_config compacting = config;
    compacting.cleanup_compact = true;
    CHECK(open_with(compacting, at_point(0)) == 0);
    CHECK(ends_are(0, 0, 0, 35) && take_damages() == 0 && bytes_cut(&scanned) == 0);
    let_go();
    /* Below the recovery point nothing is truncated. */
    CHECK(open_with(config, at_point(20)) == 0);
    CHECK(ends_are(0, 0, 0, 35) && take_damages() == 0 && segments_begin("0 10 20 30"));
    let_go();
}

static void end_at_gap(void) {
    uint32_t scanned;
    make_and_leave(35, false);
    cut_file(file_of(10, "log"), 8 * SMALL);
    CHECK(open_with(config, at_point(0)) == 0);
    CHECK(ends_are(0, 0, 0, 18) && segments_begin("0 10") && bytes_cut(&scanned) == 15 * SMALL);
    CHECK(take_damages() == 3);
    CHECK(damage_is(0, LOG_DAMAGE_CUT, LOG_WHY_GAP, 10, 18, 8 * SMALL, 0));
    CHECK(damage_is(1, LOG_DAMAGE_DROPPED, LOG_WHY_BEHIND, 20, 20, 0, 10 * SMALL));
    let_go();
}

/* All remaining records lie below the log start: the log continues empty from there. */
static void end_below_the_start(void) {
    make_and_leave(15, false);
    struct log_checkpoint c = at_point(0);
    c.log_start_offset = 15;
    CHECK(open_with(config, c) == 0 && ends_are(15, 15, 15, 15) && segments_begin("0 10"));
    let_go();
    c.log_start_offset = 16;
    CHECK(open_with(config, c) == 0 && ends_are(16, 16, 16, 16) && segments_begin(""));
    CHECK(played_size(dir, file_of(10, "log")) == -1);
    CHECK(played_size(dir, file_of(10, "snapshot")) == -1);
    CHECK(log_become_leader(one, 0, 1) == 0);
    fill(1, 1);
    CHECK(segments_begin("16") && log_end_offset(one) == 17);
    let_go();
}

/* ---- derived state ---- */

static void derive_epochs(void) {
    int32_t found;
    int64_t end;
    config = config_of(10 * SMALL);
    open_one(config);
    fill(12, 1000);
    CHECK(log_become_leader(one, 3, 1) == 0);
    fill(12, 2000);
    CHECK(log_flush(one) == 0);
    leave();
    static const char *const texts[] = {"", "0\n1\n0 0\n", "0\n3\n0 0\n2 5\n3 12\n",
                                        "0\n2\n0 0\n9 20\n", "rubbish"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        played_write(dir, "t-0/leader-epoch-checkpoint", texts[i], strlen(texts[i]));
        CHECK(open_with(config, at_point(0)) == 0);
        log_end_for_epoch(one, 0, &found, &end);
        CHECK(found == 0 && end == 12 && log_last_epoch(one) == 3);
        log_end_for_epoch(one, 3, &found, &end);
        CHECK(found == 3 && end == 24 && log_marked(&one->flush.epochs_marks));
        CHECK(log_epoch_of(one, 8) == 0 && log_epoch_of(one, 23) == 3);
        let_go();
    }
    played_fail(OPENAT, "leader-epoch", EMFILE, 3);
    CHECK(open_with(config, at_point(0)) == LOG_E_MEMORY && !log_dir_offline(dir));
    played_heal();
    /* An epoch that begins beyond the end is removed. */
    const char *text = "0\n3\n0 0\n3 12\n5 25\n";
    played_write(dir, "t-0/leader-epoch-checkpoint", text, strlen(text));
    CHECK(open_with(config, at_point(24)) == 0 && log_last_epoch(one) == 3);
    let_go();
    text = "0\n3\n0 0\n3 12\n5 24\n";
    played_write(dir, "t-0/leader-epoch-checkpoint", text, strlen(text));
    CHECK(open_with(config, at_point(24)) == 0 && log_last_epoch(one) == 5);
    let_go();
}

static int64_t producer_state(int64_t id) {
    struct log_producer p;
    CHECK(log_producer_of(one, id, NOW, &p));
    return p.epoch;
}

/* From the newest snapshot that is complete and not beyond the end, and the later batches. */
static void derive_producers(void) {
    config = config_of(10 * 68);
    open_one(config);
    for (int i = 0; i < 35; i++)
        CHECK(append((struct played_batch){.time = i, .producer = 1 + i / 10, .epoch = 3,
                                           .sequence = i % 10}) == 0);
    CHECK(log_flush(one) == 0 && played_size(dir, file_of(30, "snapshot")) == 10 + 3 * 46);
    leave();
    struct played_batch again = {.time = 1, .producer = 4, .epoch = 3};
    for (int damage = 0; damage < 4; damage++) {
        if (damage == 1) cut_file(file_of(30, "snapshot"), 20);
        if (damage == 2) played_write(dir, file_of(30, "snapshot"), "", 0);
        if (damage == 3) CHECK(unlinkat(dir->fd, file_of(20, "snapshot"), 0) == 0);
        CHECK(open_with(config, at_point(35)) == 0 && log_become_leader(one, 0, 1) == 0);
        for (int id = 0; id < 4; id++) CHECK(producer_state(id) == 3);
        CHECK(producer_state(4) == -1);
        again.sequence = 4;
        CHECK(append(again) == 0 && appended.duplicate && appended.base_offset == 34);
        again.sequence = 0;
        CHECK(append(again) == 0 && appended.duplicate && appended.base_offset == 30);
        again.producer = 3;
        again.sequence = 9;
        CHECK(append(again) == 0 && appended.duplicate && appended.base_offset == 29);
        again.sequence = 5;
        CHECK(append(again) == 0 && appended.duplicate && appended.base_offset == 25);
        again.sequence = 4;
        CHECK(append(again) == LOG_E_SEQUENCE);
        again.producer = 4;
        leave();
        if (damage > 0) CHECK(played_size(dir, file_of(30, "snapshot")) == -1);
    }
    /* Above the recovery point a snapshot is not trusted. */
    CHECK(open_with(config, at_point(35)) == 0 && log_become_leader(one, 0, 1) == 0);
    again.sequence = 4;
    CHECK(append(again) == 0 && appended.duplicate && log_close_clean(one, NOW) == 0);
    CHECK(played_size(dir, file_of(35, "snapshot")) == 10 + 4 * 46);
    leave();
    CHECK(open_with(config, at_point(34)) == 0 && producer_state(3) == 3);
    CHECK(played_size(dir, file_of(35, "snapshot")) == -1);
    let_go();
    played_fail(OPENAT, "010.snapshot", EMFILE, 3);
    CHECK(open_with(config, at_point(15)) == LOG_E_MEMORY && !log_dir_offline(dir));
    played_heal();
    CHECK(played_size(dir, file_of(10, "snapshot")) > 0);
    CHECK(open_with(config, at_point(15)) == 0);
    let_go();
}

/* ---- faults ---- */

static void give_up(void) {
    make_and_leave(25, false);
    log_dir_stop_recovery(dir);
    CHECK(open_with(config, at_point(0)) == LOG_E_OFFLINE && !log_dir_offline(dir));
    atomic_store(&dir->recovery_stopped, false);
    played_fail(OPENAT, "t-0/.", EMFILE, 3);
    CHECK(open_with(config, at_point(0)) == LOG_E_MEMORY);
    played_heal();
    for (int skip = 0; skip < 12; skip++) {
        played.faults[OPENAT] = (struct played_fault){EMFILE, skip, 3, NULL, 0};
        int result = open_with(config, at_point(0));
        CHECK(result == 0 || result == LOG_E_MEMORY);
        played_heal();
        if (result == 0) let_go();
    }
    change_byte(20, 3 * SMALL + 70, 1);
    played_fail(FTRUNCATE, "020.log", ENOSPC, 1);
    CHECK(open_with(config, at_point(0)) == LOG_E_FULL && !log_dir_offline(dir));
    /* Indexes without disk space wait in memory: the log opens. */
    played_fail(PWRITE, "index", ENOSPC, 100);
    CHECK(open_with(config, at_point(0)) == 0 && log_end_offset(one) == 23);
    CHECK(segment_index_has_pending(one->view.segments[0]));
    let_go();
    played_heal();
    played_fail(PREAD, "020.log", EIO, 1);
    CHECK(open_with(config, at_point(0)) == LOG_E_IO && log_dir_failure(dir, NULL) == EIO);
}

static int listed_max = -1; /* entries that readdir returns before EIO; -1: all */

struct dirent *__real_readdir(DIR *entries);
struct dirent *__wrap_readdir(DIR *entries);
struct dirent *__wrap_readdir(DIR *entries) {
    if (listed_max > 0) listed_max--;
    if (listed_max != 0) return __real_readdir(entries);
    errno = EIO;
    return NULL;
}

/* Segments that cannot be listed must not count as absent. */
static void list_in_part(void) {
    make_and_leave(25, true);
    for (int count = 0; count < 6; count++) {
        listed_max = count;
        CHECK(open_with(config, at_point(0)) == LOG_E_IO);
        listed_max = -1;
        CHECK(log_dir_failure(dir, NULL) == EIO);
        atomic_store(&dir->failure, 0);
        atomic_store(&dir->offline, false);
    }
    CHECK(open_with(config, at_point(25)) == 0 && log_end_offset(one) == 25);
    let_go();
    /* No segment is left, although records were on disk. */
    for (int base = 0; base < 25; base += 10)
        CHECK(unlinkat(dir->fd, file_of(base, "log"), 0) == 0);
    CHECK(open_with(config, at_point(25)) == LOG_E_CORRUPT && !log_dir_offline(dir));
    CHECK(open_with(config, at_point(0)) == 0 && log_end_offset(one) == 0);
    let_go();
}

int main(int argc, char **argv) {
    static const struct scene scenes[] = {
        {"files", list_files},   {"believe", believe_what_was_flushed}, {"end", cut_the_end},
        {"rest", drop_what_follows_a_cut}, {"gaps", end_at_gaps},       {"gap", end_at_gap},
        {"below", end_below_the_start}, {"epochs", derive_epochs},
        {"producers", derive_producers}, {"faults", give_up}, {"part", list_in_part}};
    return play_scenes(argc, argv, scenes, sizeof scenes / sizeof *scenes, true);
}
