/* Recovery of a log that is being opened. */
#ifndef PYLOG_RECOVERY_H
#define PYLOG_RECOVERY_H

#include <stdint.h>

#include "log/log_struct.h"
#include "log_manager/log_manager.h"

int log_recover(struct log *log, const struct log_checkpoint *given, int64_t now_ms)
    LOG_APPENDING(log);

#endif
