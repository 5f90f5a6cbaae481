"""Terminal escapes in names and values are displayed as text and have no effect."""

import errno
import os
import pty
import select
import subprocess
import sys
import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from pylog.tools.cli.escapes import escaped
from tests.tools.support import run, topic_of
from tests.wire import raw
from tests.wire.talk import append

EVIL = "g\x1b]0;owned\x07\x9b31m\n\u202ex"
SHOWN = "g\\u001b]0;owned\\u0007\\u009b31m\\n\\u202ex"
UNSAFE = ("\x1b]0;", "\x07", "\x9b", "\u202e")


@pytest.mark.parametrize("text,shown", [
    ("orders-7 ä 漢 \u3000\xa0", "orders-7 ä 漢 \u3000\xa0"), (EVIL, SHOWN), ("\ud800", "\\ud800"),
    ("\U000e0001", "\\udb40\\udc01"), ("\u2028", "\\u2028"), ("\x7f", "\\u007f")])
def test_unprintable_characters_become_json_escapes(text, shown):
    assert escaped(text) == shown


@pytest.fixture(scope="module")
def topic(target):
    """A topic whose only record and only group have terminal escapes."""
    name = topic_of(target, partitions=1)
    append(target.port, name, raw.batch([raw.record(EVIL.encode(), EVIL.encode())]))
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": EVIL})
    consumer.commit(offsets=[TopicPartition(name, 0, 0)], asynchronous=False)
    consumer.close()
    return name


def on_terminal(*words) -> str:
    """Return everything that the command writes to a terminal, errors included."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c",
         "import sys; from pylog import cli; sys.exit(cli.pylog(sys.argv[1:]))", *words],
        stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "300"})
    os.close(theirs)
    found, end = b"", time.monotonic() + 60
    try:
        while time.monotonic() < end:
            if not select.select([ours], [], [], 0.1)[0]:
                continue
            try:
                part = os.read(ours, 65536)
            except OSError as error:
                assert error.errno == errno.EIO     # Linux: the other end is closed.
                break
            if not part:
                break
            found += part
        process.wait(60)
    finally:
        process.kill()
        os.close(ours)
    return found.decode()


@pytest.mark.parametrize("words", [
    ("groups", "list"), ("groups", "list", "--json"), ("groups", "describe", EVIL),
    ("groups", "explain", EVIL, "-s", "0.2"), ("groups", "delete", EVIL + "x", "-y"),
    ("consume", "TOPIC"), ("consume", "TOPIC", "-F", "table"), ("consume", "TOPIC", "--json"),
    ("consume", "TOPIC", "-F", "%k %s\\n")])
def test_commands_print_no_terminal_escapes_of_names_and_values(target, topic, words):
    told = on_terminal(*[topic if word == "TOPIC" else word for word in words],
                       "-b", target.bootstrap)
    assert "owned" in told, told
    assert not [sign for sign in UNSAFE if sign in told], told


def test_escapes_do_not_change_files_or_json(target, topic):
    assert run("consume", topic, broker=target).out == EVIL + "\n"
    assert run("consume", topic, "--json", "-H", broker=target).lines[0]["value"] == EVIL
    assert EVIL in [row["group"] for row in run("groups", "list", "--json", broker=target).json]
