/* Damage: counted per directory, and kept for reports until they are fetched. */
#include "segment/damage_report.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os/lock.h"
#include "os/meter.h"
#include "segment/log_dir.h"
#include "segment/segment.h"
#include "segment/segment_path.h"

static void log_damage_add(struct partition_dir *partition, struct log_damage damage) {
    struct log_dir *dir = partition->dir;
    assert(damage.kind < LOG_DAMAGE_KINDS);
    assert(damage.position >= 0);
    assert(damage.bytes >= 0);
    lock_acquire(&dir->files_lock);
    snprintf(damage.partition, sizeof damage.partition, "%s", partition->name);
    lock_release(&dir->files_lock);
    meter_add_shared(&dir->damage_counts[damage.kind], 1);
    meter_add_shared(&dir->damage_bytes[damage.kind], (uint64_t)damage.bytes);
    lock_acquire(&dir->damages_lock);
    if (dir->damages == NULL) dir->damages = malloc(LOG_DAMAGES_MAX * sizeof *dir->damages);
    if (dir->damages != NULL && dir->damage_count < LOG_DAMAGES_MAX)
        dir->damages[dir->damage_count++] = damage;
    lock_release(&dir->damages_lock);
}

void log_damage_record(struct segment *s, enum log_damage_kind kind, enum log_damage_why why,
                       int64_t offset, int64_t position, int64_t bytes) {
    log_damage_add(s->partition, (struct log_damage){.segment = s->base_offset,
                                                     .offset = offset,
                                                     .position = position,
                                                     .bytes = bytes,
                                                     .kind = kind,
                                                     .why = why});
}

void log_damage_record_epochs(struct partition_dir *partition, int64_t bytes) {
    log_damage_add(partition, (struct log_damage){
                                  .bytes = bytes, .kind = LOG_DAMAGE_EPOCHS, .why = LOG_WHY_TEXT});
}

uint32_t log_dir_fetch_damages(struct log_dir *dir, struct log_damage *out, uint32_t max) {
    lock_acquire(&dir->damages_lock);
    assert(dir->damage_count <= LOG_DAMAGES_MAX);
    uint32_t count = dir->damage_count < max ? dir->damage_count : max;
    if (count > 0) {
        memcpy(out, dir->damages, count * sizeof *out);
        dir->damage_count -= count;
        memmove(dir->damages, dir->damages + count, dir->damage_count * sizeof *out);
    }
    lock_release(&dir->damages_lock);
    return count;
}
