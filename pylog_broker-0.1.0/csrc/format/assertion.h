/* Assertions of two prices. assert: on in every build, for what costs nothing measurable.
 * assert_slow: on in the sanitized builds (make asan, make tsan), for what walks a list or reads
 * memory that the code does not read anyway. Neither is given bytes of a disk or a socket that
 * nobody has checked: those get an error. */
#ifndef PYLOG_ASSERTION_H
#define PYLOG_ASSERTION_H

#include <assert.h>

#if !defined(NDEBUG) && (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__))
#define ASSERT_SLOW 1
#define assert_slow(fact) assert(fact)
#else
#define ASSERT_SLOW 0
/* Compiled, so that it stays right, and left out. */
#define assert_slow(fact) ((void)sizeof(fact))
#endif

#endif
