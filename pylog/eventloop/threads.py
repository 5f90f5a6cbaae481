"""Run blocking work on threads. It always finishes before its caller continues.

Owns: nothing.
Invariants: the work has finished when the caller continues, even after cancellation, so that no
  file is closed while a thread writes to it.
Source: none.
"""

import asyncio


async def in_thread(work, *args):
    """Run `work` on a thread and return its result. For file I/O, so the event loop stays free."""
    return await whole(asyncio.get_running_loop().run_in_executor(None, work, *args))


async def whole(awaitable):
    """Await to the end and return the result; a cancellation is raised only after that."""
    going = asyncio.ensure_future(awaitable)
    try:
        return await asyncio.shield(going)
    except asyncio.CancelledError:
        # The result is not used any more. Fetch the exception, so that asyncio does not log it as
        # never retrieved, also if a second cancellation ends the wait.
        going.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([going])
        raise
