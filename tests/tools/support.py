"""Runs the `pylog` command in this process, as a shell would, and returns its output."""

import contextlib
import io
import json
from typing import NamedTuple

from pylog import cli
from pylog.tools import app
from tests.wire.talk import create_topic, unique


class Ended(NamedTuple):
    """code: the exit code; out, err: content of each stream."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


def run(*words, broker=None, fails: bool = False) -> Ended:
    """Run pylog WORDS, on `broker` if given. Fails if the exit status is not as expected."""
    argv = [str(word) for word in words]
    if broker is not None:
        argv += ["-b", broker.bootstrap]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.pylog(argv)
    ended = Ended(code, out.getvalue(), err.getvalue())
    assert (code != 0) == fails, (argv, ended)
    assert "Traceback" not in ended.err and "internal error" not in ended.err, ended
    if fails and code != app.EXIT_INTERRUPTED and "Usage:" not in ended.err:
        assert ended.err.splitlines()[-1].startswith("pylog: "), ended
    return ended


def topic_of(broker, partitions: int = 2, **settings) -> str:
    """Create a topic whose leaders accept requests."""
    name = unique("tool")
    create_topic(broker.port, name, partitions, **settings)
    return name
