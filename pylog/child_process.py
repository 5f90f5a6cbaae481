"""Child processes that must not outlive brokerd.

Owns: nothing.
Invariants: end_with_parent() is safe between fork and exec: it only makes a system call; a process
  has ended when stop() returns.
Source: prctl(2), PR_SET_PDEATHSIG.
"""

import asyncio
import ctypes
import signal

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Set the parent-death signal of a child process: pass it as preexec_fn.

    The kernel sends the signal when the forking thread ends, which must be the event loop's.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def stop(process: asyncio.subprocess.Process | None, seconds: float) -> None:
    """Send SIGTERM, and SIGKILL if the process still runs after `seconds`. None: do nothing."""
    if process is None or process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
