"""The decoder process as its parent sees it: started on first use, ended when idle or broken.

Owns: the process and its pipes.
Invariants: one request at a time; a value that breaks or stalls the process fails, and the others
  are still decoded; after FAILURES_MAX such values the rest of the request fails too.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pylog.console.values.decoder import DONE, HEAD, RESULT, VALUE_S
from pylog.console.values.schema_formats import Bundle

FAILURES_MAX = 2
REQUEST_JOBS_MAX, REQUEST_BYTES_MAX = 1000, 8 << 20
SCHEMAS_MAX = 500
RESULTS_BYTES_MAX = 128 << 20
IDLE_S = 60.0
COMMAND = ("-P", "-m", "pylog.console.values.decoder")
DECODE, ENCODE = "decode", "encode"

Job = tuple[str, Any, Any, Any]


class Result(NamedTuple):
    """data: the value's JSON, or what `encode` made; None with a reason in `error`."""

    data: bytes | None
    error: str


def encoded_of(result: Result) -> tuple[bytes, tuple[int, ...]]:
    """Return (bytes, indexes of the message type) of an `encode` that succeeded."""
    assert result.data is not None
    count = result.data[0]
    indexes = struct.unpack_from(f">{count}I", result.data, 1)
    return result.data[1 + 4 * count:], indexes


class DecoderProcess:
    """seconds: a monotonic clock. Methods block: call them on a thread."""

    def __init__(self, seconds: Callable[[], float]):
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._sent: set[Any] = set()  # Keys of schemas that the process has.
        self._used_s = 0.0
        self._size = 0  # Of the results of the running request.

    def run(self, jobs: Sequence[Job], bundles: dict[Any, Bundle]) -> list[Result]:
        """Return the result of each job. bundles: all schemas that the jobs name."""
        results: list[Result] = []
        failures = 0
        is_careful = False
        with self._lock:
            self._size = 0
            while len(results) < len(jobs):
                if failures > FAILURES_MAX:
                    results += [Result(None, "not decoded: values before it broke the decoder")] \
                        * (len(jobs) - len(results))
                    break
                if self._request(_part(jobs[len(results):]), bundles, results, is_careful):
                    continue
                self._end()
                if is_careful:
                    failures += 1
                    results.append(Result(None, "it broke the decoder, or took longer than "
                                          f"{VALUE_S:g} s"))
                is_careful = True  # From now on, each result is sent before the next value.
            self._used_s = self._seconds()
        return results

    def _request(self, jobs: list[Job], bundles: dict[Any, Bundle], results: list[Result],
                 is_careful: bool) -> bool:
        """Append results. Returns False if the process ended before the last one."""
        if len(self._sent) > SCHEMAS_MAX:
            self._end()  # A new process starts without schemas.
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        needed = {key: bundles[key] for _, key, _, _ in jobs
                  if key in bundles and key not in self._sent}
        request = pickle.dumps((jobs, needed, is_careful))
        try:
            process.stdin.write(HEAD.pack(len(request)) + request)
            process.stdin.flush()
        except OSError:
            return False
        self._sent.update(needed)
        for _ in jobs:
            head = process.stdout.read(RESULT.size)
            if len(head) < RESULT.size:
                return False
            status, length = RESULT.unpack(head)
            data = process.stdout.read(length)
            if len(data) < length:
                return False
            self._size += len(data)
            if self._size > RESULTS_BYTES_MAX:
                results.append(Result(None, "not decoded: the values before it fill the memory "
                                      "that one page may use"))
            else:
                results.append(Result(data, "") if status == DONE
                               else Result(None, data.decode(errors="replace")))
        return True

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            root = str(Path(__file__).parents[3])
            self._process = subprocess.Popen(
                [sys.executable, *COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": root})
            self._sent = set()
        return self._process

    def end_idle(self) -> None:
        """End the process if it has not been used for IDLE_S. It starts again when needed."""
        if self._lock.acquire(blocking=False):
            try:
                if self._process is not None and self._seconds() - self._used_s > IDLE_S:
                    self._end()
            finally:
                self._lock.release()

    def close(self) -> None:
        """End the process. A running request ends within VALUE_S."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _part(jobs: Sequence[Job]) -> list[Job]:
    """Return the first jobs, as many as one request holds; at least one."""
    part: list[Job] = []
    size = 0
    for job in jobs[:REQUEST_JOBS_MAX]:
        size += len(job[2])
        if part and size > REQUEST_BYTES_MAX:
            break
        part.append(job)
    return part
