"""Blocking work beside the event loop, over before its caller goes on, even a cancelled one.

Owns: nothing.
Invariants: (1) work that was begun is over when its caller goes on, also when that is cancelled:
  nobody closes what a thread still writes to.
Source: none.
"""

import asyncio


async def in_thread(work, *args):
    """What `work` returns. Files are written there; the loop goes on answering."""
    return await whole(asyncio.get_running_loop().run_in_executor(None, work, *args))


async def whole(awaitable):
    """The result; a cancellation comes after the end, not amid it. Keeps (1)."""
    going = asyncio.ensure_future(awaitable)
    try:
        return await asyncio.shield(going)
    except asyncio.CancelledError:
        # Nobody is left whom a failure could be told: asyncio is not to complain of that, also when
        # one more cancellation ends the wait.
        going.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([going])
        raise
