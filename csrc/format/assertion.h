/* Two kinds of assertions. assert is enabled in every build, for checks without measurable cost.
 * assert_slow is enabled in sanitizer builds (make asan, make tsan), for checks that walk a list
 * or read memory that the code does not read otherwise. Never assert anything about bytes from a
 * disk or a socket before they have been validated: invalid bytes return an error. */
#ifndef PYLOG_ASSERTION_H
#define PYLOG_ASSERTION_H

#include <assert.h>

#if !defined(NDEBUG) && (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__))
#define ASSERT_SLOW 1
#define assert_slow(fact) assert(fact)
#else
#define ASSERT_SLOW 0
/* Compiled so that it stays valid, but never executed. */
#define assert_slow(fact) ((void)sizeof(fact))
#endif

#endif
