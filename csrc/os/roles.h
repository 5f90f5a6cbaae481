/* Which thread may call a function, for Clang's analysis only: a call to an ON_CONTROL_PLANE
 * function compiles (make tidy) only in a function with the same attribute. State of one reactor
 * has its own role (reactor_internal.h). */
#ifndef PYLOG_ROLES_H
#define PYLOG_ROLES_H

#include "os/lock.h"

/* Only a name for the analysis: never defined. */
extern struct lock_role control_plane;

/* Only the control plane calls it, through _native/; never a reactor, flusher or I/O worker. */
#define ON_CONTROL_PLANE REQUIRES(control_plane)

#endif
