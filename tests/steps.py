"""How much work a piece of Python is, counted: lines run in one module, instead of seconds.

Owns: nothing.
Invariants: (1) whoever traced before traces again afterwards.
Source: sys.settrace.
"""

import contextlib
import sys


class Counted:
    """lines: how many ran."""

    def __init__(self) -> None:
        self.lines = 0


@contextlib.contextmanager
def steps_in(module):
    """Counts the lines of a module that this thread runs meanwhile."""
    counted, before = Counted(), sys.gettrace()

    def trace(frame, event, value):
        if frame.f_code.co_filename != module.__file__:
            return None
        counted.lines += event == "line"
        return trace

    sys.settrace(trace)
    try:
        yield counted
    finally:
        sys.settrace(before)     # Keeps (1).
