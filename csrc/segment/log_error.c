/* Errors: their codes in Kafka's protocol, and which of them are shortages. */
#include "segment/log_error.h"

#include <stdbool.h>
#include <stdint.h>

#include "format/batch.h"
#include "os/disk.h"

int16_t log_error_code(int error) {
    static const int16_t codes[] = {
        [LOG_E_IO - LOG_E_NOT_REPLICA] = 56,
        [LOG_E_OFFLINE - LOG_E_NOT_REPLICA] = 56,
        [LOG_E_RANGE - LOG_E_NOT_REPLICA] = 1,
        [LOG_E_SEQUENCE - LOG_E_NOT_REPLICA] = 45,
        [LOG_E_EPOCH - LOG_E_NOT_REPLICA] = 47,
        [LOG_E_DUPLICATE - LOG_E_NOT_REPLICA] = 46,
        [LOG_E_NOT_LEADER - LOG_E_NOT_REPLICA] = 6,
        [LOG_E_DELETED - LOG_E_NOT_REPLICA] = 3,
        [LOG_E_FULL - LOG_E_NOT_REPLICA] = 56,
        [LOG_E_MEMORY - LOG_E_NOT_REPLICA] = 56, /* clients retry it, unlike -1 */
        [LOG_E_CORRUPT - LOG_E_NOT_REPLICA] = 2,
        [LOG_E_TXN_STATE - LOG_E_NOT_REPLICA] = 48,
        [LOG_E_WOULD_BLOCK - LOG_E_NOT_REPLICA] = 56,
        [0] = 75,
    };
    if (error >= 0) return 0;
    if (error > LOG_E_IO || error < LOG_E_NOT_REPLICA) return batch_error_code(error);
    return codes[error - LOG_E_NOT_REPLICA];
}

bool log_error_is_shortage(int result) {
    return result == LOG_E_FULL || result == LOG_E_MEMORY ||
           (result < 0 && !log_is_error(result) && disk_error_is_shortage(-result));
}
