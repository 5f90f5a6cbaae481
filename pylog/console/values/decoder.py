"""The decoder process: reads requests on stdin, writes a result for each value on stdout.

Owns: the compiled schemas.
Invariants: a value that takes longer than VALUE_S, or a schema that takes longer than COMPILE_S,
  ends the process, also inside native code; memory is limited; nothing is read from the network.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import struct
import sys
from typing import Any

from pylog.console.values.schema_formats import Bundle, Format, MessagePackFormat, compiled

COMPILE_S, VALUE_S = 10.0, 5.0
MEMORY_BYTES_MAX = 1 << 30
TEXT_BYTES_MAX = 2 << 20
WAITING_BYTES_MAX = 256 << 10
MESSAGE_PACK = "msgpack"
HEAD, RESULT = struct.Struct(">I"), struct.Struct(">BI")
DONE, NOT_DONE = 0, 1


class _Formats:
    """Compiled schemas, by their keys."""

    def __init__(self) -> None:
        self._bundles: dict[Any, Bundle] = {}
        self._formats: dict[Any, Format | Exception] = {}

    def add(self, bundles: dict[Any, Bundle]) -> None:
        self._bundles.update(bundles)

    def find(self, key: Any) -> Format:
        found = self._formats.get(key)
        if found is None:
            try:
                found = MessagePackFormat() if key == MESSAGE_PACK else compiled(self._bundles[key])
            except Exception as failure:  # Schemas are hostile: their exceptions are of any kind.
                found = failure
            self._formats[key] = found
        if isinstance(found, Exception):
            raise found
        return found


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = sys.stdin.buffer, sys.stdout.fileno()
    formats = _Formats()
    while head := source.read(HEAD.size):
        jobs, bundles, is_careful = pickle.loads(source.read(HEAD.unpack(head)[0]))
        formats.add(bundles)
        waiting = bytearray()
        for job in jobs:
            signal.setitimer(signal.ITIMER_REAL, COMPILE_S)
            status, result = _run(formats, job)
            signal.setitimer(signal.ITIMER_REAL, 0)
            waiting += RESULT.pack(status, len(result)) + result
            # A careful request shows its parent which value ended the process.
            if is_careful or len(waiting) > WAITING_BYTES_MAX:
                _write(sink, waiting)
                waiting.clear()
        _write(sink, waiting)


def _run(formats: _Formats, job: tuple[str, Any, Any, Any]) -> tuple[int, bytes]:
    """Run ("decode", key of the schema, bytes, indexes) or ("encode", key, text, message)."""
    action, key, given, more = job
    try:
        form = formats.find(key)
        signal.setitimer(signal.ITIMER_REAL, VALUE_S)
        if action == "encode":
            data, indexes = form.to_bytes(given, more)
            return DONE, struct.pack(f">B{len(indexes)}I", len(indexes), *indexes) + data
        text = form.to_json(given, more).encode()
        if len(text) > TEXT_BYTES_MAX:
            return NOT_DONE, (f"it has {len(text)} bytes as JSON, more than "
                              f"{TEXT_BYTES_MAX}").encode()
        return DONE, text
    except RecursionError:
        return NOT_DONE, b"it is nested too deeply"
    except MemoryError:
        return NOT_DONE, f"it needs more than {MEMORY_BYTES_MAX >> 20} MiB of memory".encode()
    except Exception as failure:  # Libraries raise exceptions of any kind for hostile bytes.
        return NOT_DONE, (str(failure) or type(failure).__name__)[:500].encode(
            errors="backslashreplace")


def _write(sink: int, data: bytes | bytearray) -> None:
    at = 0
    while at < len(data):
        with memoryview(data) as view:
            at += os.write(sink, view[at:])


if __name__ == "__main__":
    main()
