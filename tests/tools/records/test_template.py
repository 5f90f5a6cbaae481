"""Templates: output of each letter, invalid letters, and the same bytes as kcat's."""

import shutil
import subprocess
from types import SimpleNamespace

import click
import pytest

from pylog.tools.records.template import compiled
from tests.tools.records.test_records import send
from tests.tools.support import run, topic_of

RECORD = SimpleNamespace(topic="orders", partition=3, offset=42, timestamp=1_767_225_600_000,
                         key=b"k\xff", value=b"v", headers=[("a", b"1"), ("b", None)])
EMPTY = SimpleNamespace(topic="t", partition=0, offset=0, timestamp=-1, key=None, value=None,
                        headers=[])
EVERY = r"%t [%p] %o %T k=%k(%K) v=%s(%S) h=%h\n"


@pytest.mark.parametrize("text, record, wanted", [
    (EVERY, RECORD, b"orders [3] 42 1767225600000 k=k\xff(2) v=v(1) h=a=1,b=NULL\n"),
    (EVERY, EMPTY, b"t [0] 0 -1 k=(-1) v=(-1) h=\n"),
    ("%R%s", RECORD, b"\0\0\0\x01v"), ("%R", EMPTY, b"\xff\xff\xff\xff"),
    (r"\t\r\\ \x41\x00 100%% \q", RECORD, b"\t\r\\ A\0 100% \\q"), ("%s%s", RECORD, b"vv"),
    ("ä%s", RECORD, "äv".encode()),
])
def test_a_record_is_printed_by_a_template(text, record, wanted):
    assert compiled(text)(record) == wanted


@pytest.mark.parametrize("text", ["%x", "%", "%s %"])
def test_unknown_template_letter_is_rejected(text):
    with pytest.raises(click.BadParameter, match="is not a field; expected one of %s the value"):
        compiled(text)


def test_a_template_is_a_format_of_consume(target):
    topic = topic_of(target, 1)
    send(target, topic, "k:v\nq:w\n", "-K", ":")
    assert run("consume", topic, "-F", r"%o=%k/%s;", broker=target).out == "0=k/v;1=q/w;"
    assert "is not a field" in run("consume", topic, "-F", "%y", broker=target, fails=True).err
    assert "'xml' is not one of" in run("consume", topic, "-F", "xml", broker=target,
                                        fails=True).err


@pytest.mark.skipif(shutil.which("kcat") is None, reason="Debian's package kcat is missing")
def test_kcat_prints_the_same(target):
    topic = topic_of(target, 1)
    send(target, topic, "k:v\nq:\n", "-K", ":", "-H", "h=1", "--tombstones")
    ours = run("consume", topic, "-F", EVERY, broker=target).out
    theirs = subprocess.run(["kcat", "-b", target.bootstrap, "-C", "-t", topic, "-e", "-q", "-f",
                             EVERY], capture_output=True, text=True, timeout=60)
    assert ours == theirs.stdout and len(ours.splitlines()) == 2
