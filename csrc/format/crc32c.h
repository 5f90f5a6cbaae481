/* CRC-32C (Castagnoli, reflected 0x82f63b78), the checksum of record batches. */
#ifndef PYLOG_CRC32C_H
#define PYLOG_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (initially 0) over `n` bytes with the fastest instructions of this CPU, chosen
 * at run time. */
uint32_t crc32c_extend(uint32_t crc, const void *data, size_t n);

/* The portable fallback, exported so that tests can compare it with the fast one. */
uint32_t crc32c_extend_portable(uint32_t crc, const void *data, size_t n);

#endif
