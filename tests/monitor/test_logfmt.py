import logging

import pytest

from pylog.monitor import logfmt


def record(message, *args, **fields):
    made = logging.makeLogRecord({"name": "pylog.x", "levelno": 20, "levelname": "INFO",
                                  "msg": message, "args": args, "created": 0.25, "msecs": 250})
    made.__dict__.update(fields)
    return logfmt.Formatter().format(made)


def test_a_line_has_time_level_logger_message_and_fields():
    assert record("segment %s rolled", 7, topic="a b", base_offset=3) == (
        'time=1970-01-01T00:00:00.250Z level=info logger=pylog.x msg="segment 7 rolled" '
        'topic="a b" base_offset=3')


@pytest.mark.parametrize(("text", "shown"), [
    ("plain-1.2", "plain-1.2"), ("", '""'), ("a b", '"a b"'), ('say "x"', '"say \\"x\\""'),
    ("two\nlines", '"two\\nlines"'), ("bell\x07", '"bell\\u0007"'), ("a=b", '"a=b"'),
])
def test_any_text_stays_on_one_line(text, shown):
    assert logfmt.quoted(text) == shown


def test_long_fields_are_cut():
    line = record("joined", group="g" * 32_000)
    assert len(line) < 2200 and line.endswith('...(30000 more)"')


def test_a_long_message_is_cut():
    line = record("refused: %s", "m" * 32_000)
    assert len(line) < 2200 and line.endswith('...(30009 more)"')


def test_long_traceback_is_truncated_in_the_middle():
    try:
        raise ValueError("x" * 100_000 + " the end")
    except ValueError as error:
        line = record("failed", exc_info=(type(error), error, error.__traceback__))
    assert len(line) < logfmt.TRACEBACK_CHARACTERS_MAX + 1000
    assert 'exc="Traceback' in line and " more)...xxx" in line and line.endswith('xxx the end"')


def test_a_traceback_is_one_field():
    try:
        raise ValueError("x\ny")
    except ValueError as error:
        line = record("failed", exc_info=(type(error), error, error.__traceback__))
    assert "\n" not in line and "exc=" in line and "ValueError" in line
