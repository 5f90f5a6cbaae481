/* Why a log serves no requests. */
#ifndef PYLOG_LOG_FAILURE_H
#define PYLOG_LOG_FAILURE_H

#include "log/log_struct.h"

/* Takes the log offline if another program unlinked its last segment's file. */
void log_check_linked(struct log *log);
/* Files of the log are missing: takes it offline, or the directory if that is missing too. */
void log_mark_files_lost(struct log *log);
int log_storage_error(struct log *log, int error,
                      const char *call); /* -errno to a log_error; may take the directory offline */

#endif
