"""Logs of clients' requests: captured in a file and parsed for one client.

Owns: the process's file descriptor 2 while it captures.
Invariants: evidence is log lines only; a hung client could not answer a query.
librdkafka's clients log every request, pylog's clients log warnings.
"""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.process import die_with_parent

# A broker may delay a response for this long: fetches and joins wait for others.
PATIENCE_S = 30.0
_LINE = re.compile(r"%\d\|(?P<at>[\d.]+)\|(?P<what>\w+)\|(?P<handle>[^|]*)\| "
                   r"\[thrd:(?P<thread>.*?)\]: (?P<text>.*)")
_SENT = re.compile(r"Sent (\w+)Request \(.*CorrId (\d+)\)")
_RECEIVED = re.compile(r"Received (\w+)Response \(.*CorrId (\d+),")
# After these errors a producer continues with a new epoch.
_REFUSED = re.compile(r".*/(\d+): ProduceRequest failed: (.*sequence number|.*producer.*): "
                      r".*\bPermanent\b", re.IGNORECASE)
_OWN_REFUSED = re.compile(r"(?P<at>[\d.]+)\|producer (?P<name>.*?): broker (?P<broker>\d+) "
                          r"rejected records for \S+-\d+; they are sent again with a new epoch "
                          r"and may be "
                          r"duplicated: (?P<error>.*)")
_CLIENTS = logging.getLogger("pylog.client")
# Logged a thousand times a second by a broker handle that is still referenced.
NOISE = "|TERMINATE|"
FIRST = "ApiVersion"  # First request on each connection.
# Requests that every client sends continuously do not show why it waits.
_ALWAYS = {"Fetch", "Metadata", "Heartbeat", FIRST}


@dataclass
class Trace:
    """A client's requests. now_s: wall clock time at which the log was read."""

    now_s: float
    sent_count: int = 0
    last_sent: str = "nothing"
    last_received: str = "nothing"
    last_commit: str = ""
    # (handle, thread, correlation id) -> (name, time).
    open: dict[tuple, tuple[str, float]] = field(default_factory=dict)

    def dropped(self, connection: tuple) -> None:
        """Remove the pending requests of a closed connection."""
        self.open = {key: entry for key, entry in self.open.items() if key[:2] != connection}

    def unanswered(self) -> list[str]:
        """Return overdue requests on open connections."""
        return [f"{name} for {self.now_s - at_s:.0f} s by {key[1]}"
                for key, (name, at_s) in self.open.items() if self.now_s - at_s > PATIENCE_S]

    def summary(self) -> str:
        missing = self.unanswered()
        answered = f"NOT ANSWERED: {', '.join(missing)}" if missing else "all answered or cut off"
        commit = f"; its last commit: {self.last_commit}" if self.last_commit else ""
        return (f"{self.sent_count} requests sent, {answered}; last sent {self.last_sent}, last "
                f"received {self.last_received}{commit}")


def trace_of(lines: Iterable[str], name: str, now_s: float) -> Trace | None:
    """Return a client's trace, or None if it logged nothing, as clients without librdkafka do."""
    found, mark = Trace(now_s), f"|{name}#"
    for line in lines:
        if mark not in line or (match := _LINE.match(line)) is None:
            continue
        connection, at_s = (match["handle"], match["thread"]), float(match["at"])
        if match["what"] == "SEND" and (sent := _SENT.search(match["text"])):
            if sent[1] == FIRST:
                found.dropped(connection)
            found.sent_count += 1
            found.open[*connection, sent[2]] = sent[1], at_s
            if sent[1] not in _ALWAYS:
                found.last_sent = f"{sent[1]} to {match['thread']} {now_s - at_s:.0f} s ago"
        elif match["what"] == "RECV" and (received := _RECEIVED.search(match["text"])):
            found.open.pop((*connection, received[2]), None)
            if received[1] not in _ALWAYS:
                found.last_received = f"{received[1]} {now_s - at_s:.0f} s ago"
        elif match["what"] == "FAIL":
            found.dropped(connection)
        elif match["what"] == "COMMIT":
            found.last_commit = f"{match['text']} {now_s - at_s:.0f} s ago"
    return found if found.sent_count else None


class Refusal(NamedTuple):
    """A fatal error for a producer's records, caused by its state at the broker. at_s: wall clock.
    """

    at_s: float
    broker: int
    error: str


def refusals_of(lines: Iterable[str], name: str) -> list[Refusal]:
    """Return the fatal errors of a producer, librdkafka's or pylog's."""
    found, mark = [], f"|{name}#"
    for line in lines:
        if (own := _OWN_REFUSED.match(line)) and own["name"] == name:
            found.append(Refusal(float(own["at"]), int(own["broker"]), own["error"]))
        if mark not in line or (match := _LINE.match(line)) is None or match["what"] != "REQERR":
            continue
        if refused := _REFUSED.match(match["text"]):
            found.append(Refusal(float(match["at"]), int(refused[1]), refused[2]))
    return found


class CapturedLog:
    """The captured log lines of all clients, in a file."""

    def __init__(self, path: Path):
        self._path = path

    def of(self, name: str, now_s: float) -> Trace | None:
        with suppress(FileNotFoundError), open(self._path, errors="replace") as lines:
            return trace_of(lines, name, now_s)
        return None

    def refusals(self, name: str) -> list[Refusal]:
        with suppress(FileNotFoundError), open(self._path, errors="replace") as lines:
            return refusals_of(lines, name)
        return []


@contextmanager
def captured(path: Path):
    """Redirect libraries' stderr, except NOISE, and the warnings of pylog's clients to a file.

    Python's own output to stderr is unchanged.
    """
    terminal = os.dup(2)
    with open(path, "wb") as file, open(os.dup(2), "w", buffering=1) as stderr:
        with subprocess.Popen(
                ["grep", "--line-buffered", "--text", "-v", "-e", NOISE], stdin=subprocess.PIPE,
                stdout=file, preexec_fn=die_with_parent, start_new_session=True) as sieve:
            assert sieve.stdin is not None
            python, sys.stderr = sys.stderr, stderr
            os.dup2(sieve.stdin.fileno(), 2)
            warnings = logging.StreamHandler(open(sieve.stdin.fileno(), "w", closefd=False))
            warnings.setFormatter(logging.Formatter("%(created)f|%(message)s"))
            _CLIENTS.addHandler(warnings)
            try:
                yield CapturedLog(path)
            finally:
                _CLIENTS.removeHandler(warnings)
                sys.stderr = python
                os.dup2(terminal, 2)
                os.close(terminal)
                sieve.stdin.close()
                # A child process that inherited the other end may still run.
                sieve.terminate()
