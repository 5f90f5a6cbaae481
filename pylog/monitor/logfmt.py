"""Log lines on stderr: one event per line, in logfmt.

Owns: the handler of the root logger.
Invariants: an event is exactly one line, for any message, fields and traceback; none of these is
  longer than its limit, because clients and peers choose parts of them.
Source: the key=value format that logfmt parsers accept. Considered: logfmter (0.7 ms to import,
  this module 0.4), which does not escape U+0085 and U+2028, so parsers that split there see two
  lines.

    log.info("segment rolled", extra={"topic": "a"})
    time=2026-11-21T07:00:00.123Z level=info logger=pylog.log msg="segment rolled" topic=a
"""

import logging
import sys
import time

FIELD_CHARACTERS_MAX = 2000
TRACEBACK_CHARACTERS_MAX = 20_000
_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/,+@%")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class Formatter(logging.Formatter):
    """Writes time, level, logger, msg, the fields of `extra`, then a traceback as `exc`."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        parts = [f"time={seconds}.{int(record.msecs):03d}Z", f"level={record.levelname.lower()}",
                 f"logger={record.name}", f"msg={quoted(_bounded(record.getMessage()))}"]
        parts += [f"{key}={quoted(_bounded(str(value)))}" for key, value in record.__dict__.items()
                  if key not in _STANDARD]
        if record.exc_info:
            traceback = _without_middle(self.formatException(record.exc_info))
            parts.append(f"exc={quoted(traceback)}")
        return " ".join(parts)


def _bounded(text: str) -> str:
    """Return `text` cut to FIELD_CHARACTERS_MAX: clients choose group names of up to 32 KiB."""
    left_out = len(text) - FIELD_CHARACTERS_MAX
    return text if left_out <= 0 else f"{text[:FIELD_CHARACTERS_MAX]}...({left_out} more)"


def _without_middle(text: str) -> str:
    """Return `text` cut to TRACEBACK_CHARACTERS_MAX. The beginning of a traceback shows the call
    that failed, and the end shows the exception.
    """
    left_out = len(text) - TRACEBACK_CHARACTERS_MAX
    half = TRACEBACK_CHARACTERS_MAX // 2
    return text if left_out <= 0 else f"{text[:half]}...({left_out} more)...{text[-half:]}"


def quoted(text: str) -> str:
    """Return `text` unchanged if it is one plain word, else quoted and escaped: never two lines."""
    if text and _BARE.issuperset(text):
        return text
    shown = text.translate(_ESCAPES)
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in shown)
    return f'"{shown}"'


def set_up(level: int = logging.INFO) -> None:
    """Send all loggers to stderr, from `level` up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter())
    # brokerd must outlive the reader of its stderr: do not report a broken pipe there.
    logging.raiseExceptions = False
    logging.basicConfig(handlers=[handler], level=level, force=True)
