"""Functions of the application that the client calls on an event loop.

Owns: nothing.
Invariants: (1) nothing that such a function raises reaches the client's own code: the client's
  state is complete before and after the call; (2) SystemExit and KeyboardInterrupt end an event
  loop of the application, as in asyncio, but not the one that the synchronous clients share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

_LOG = logging.getLogger("pylog.client")


def call(what: str, function: Callable[..., Any], *given: Any) -> None:
    """Call function(*given) and log what it raises; what: its name for the log. Keeps (1)."""
    try:
        function(*given)
    except (SystemExit, KeyboardInterrupt) as failure:
        _LOG.error("%s raised %r", what, failure)
        try:
            asyncio.get_running_loop().call_soon(_raise, failure)  # Keeps (2).
        except RuntimeError:
            pass  # No loop runs here.
    except BaseException:  # CancelledError too.
        _LOG.exception("%s failed", what)


def _raise(failure: BaseException) -> None:
    raise failure
