/* Which kind of thread may call what, for Clang's analysis alone: a call that is declared
 * ON_CONTROL_PLANE compiles (make tidy) only in a function that is itself. What belongs to one
 * reactor has its own role (reactor_state.h). */
#ifndef PYLOG_ROLES_H
#define PYLOG_ROLES_H

#include "thread/lock.h"

/* A name and no object: nobody defines it. */
extern struct lock_role control_plane;

/* Called by the control plane, through _native/: never by a reactor, a flusher or an io worker. */
#define ON_CONTROL_PLANE REQUIRES(control_plane)

#endif
