import ast
from pathlib import PurePath

import pytest

from tests.checks import constants, tidy

HEAD = '"""A noun.\n\nOwns: it.\nInvariants: (1) none.\n"""\n'


def said(path: str, text: str) -> str:
    return "\n".join(message for _, message in tidy.check_text(PurePath(path), text))


@pytest.mark.parametrize(("path", "text", "words"), [
    ("pylog/log/x.py", HEAD + "a = 1  # " + "x" * 100, "columns"),
    ("pylog/log/x.py", "a = 1\n", "Owns:, Invariants:"),
    ("pylog/log/utils.py", HEAD, "says nothing"),
    ("pylog/log/x.py", HEAD + "import time\nt = time.monotonic()\n", "clock"),
    ("pylog/log/x.py", HEAD + "from time import sleep\n", "clock"),
    ("pylog/log/x.py", HEAD + "try:\n    pass\nexcept:\n    pass\n", "bare except"),
    ("pylog/log/x.py", HEAD + "# TO" "DO: more\n", "undone"),
    ("pylog/_native/x.pyx", HEAD + 'include "y.pxi"\n', "include"),
    ("pylog/_native/x.pyx", HEAD + "DEF N = 1\n", "DEF"),
    ("pylog/_native/x.pyx", HEAD + "cdef void f() except * nogil:\n    pass\n", "takes the GIL"),
    ("pylog/log/x.py", HEAD + "def f(loop):\n    loop.create_task(g())\n",
     "create_task() in f(): run it under pylog.supervisor"),
    ("pylog/log/x.py", HEAD + "t = asyncio.ensure_future(g())\n", "ensure_future() in ()"),
    ("pylog/log/x.py", HEAD + "threading.Thread(target=f).start()\n", "Thread() in ()"),
    ("pylog/log/x.py", HEAD + "Thread(target=f).start()\n", "Thread() in ()"),
    ("pylog/log/x.py", HEAD + "from pylog.log import cleaner as janitor\n",
     "janitor hides the name of pylog.log.cleaner"),
    ("pylog/log/x.py", HEAD + "from pylog.metadata.image import snapshot as snapshots\n",
     "snapshots hides the name"),
    ("csrc/log/x.c", "int f(void);\n", "contract or method"),
    ("csrc/log/x.c", '/* X. */\n#include "Python.h"\n', "no Python"),
])
def test_a_broken_rule_is_found(path, text, words):
    assert words in said(path, text)


@pytest.mark.parametrize(("path", "text"), [
    ("pylog/log/x.py", HEAD + "def f():\n" + "    a = 1\n" * 59),
    ("pylog/broker/broker.py", HEAD + "import time\nt = time.monotonic()\n"),
    ("pylog/log/x.py", HEAD + "import time\nt = time.gmtime(0)\n"),
    ("pylog/log/__init__.py", '"""Logs."""\n'),
    ("pylog/_native/x.pyx", HEAD + "cdef int f() except -1 nogil:\n    return 0\n"),
    ("pylog/config/kafka_settings.py", HEAD + "a = 1\n" * 900),
    ("csrc/log/x.c", "/* X. */\nint g(void);\nstruct x {\n" + "    int a;\n" * 90 + "};\n"),
    ("tests/x.py", "import time\ntime.sleep(1)\n"),
    ("pylog/log/x.py", HEAD + "loop.create_task(supervisor.restarting('x', f))\n"),
    ("pylog/client/x.py", HEAD + "asyncio.create_task(g())\n"),
    ("pylog/share/x.py", HEAD + "from pylog.coordinator.groups.share import heartbeat "
     "as share_heartbeat\n"),
    ("pylog/api/x.py", HEAD + "from pylog.coordinator.groups.assignors import tasks "
     "as task_assignor\n"),
])
def test_code_that_follows_the_rules_passes(path, text):
    assert said(path, text) == ""


@pytest.mark.parametrize(("path", "text", "words"), [
    ("pylog/log/x.py", HEAD + "def f():\n" + "    a = 1\n" * 60, "61 lines"),
    ("pylog/log/x.py", HEAD + "a = 1\n" * 600, "605 lines"),
    ("pylog/_native/x.pyx", HEAD + "def f():\n" + "    a = 1\n" * 60, "61 lines"),
    ("csrc/log/x.c", "/* X. */\nint f(void)\n{\n" + "    g();\n" * 60 + "}\n", "63 lines"),
    ("csrc/log/x.c", "/* X. */\nint f(int a,\n      int b) {\n" + "    g();\n" * 58 + "}\n",
     "61 lines"),
])
def test_long_code_is_reported_but_allowed(path, text, words):
    assert said(path, text) == ""
    found = list(tidy.lengths(PurePath(path), text))
    assert len(found) == 1 and words in found[0][1]


C = """/* Batches: LENGTH_AT = 9 in a comment. */
#define BATCH_BYTES_MAX (1u << 30)
enum { BATCH_LENGTH_AT = 8, BATCH_HEAD_BYTES = BATCH_LENGTH_AT + 4 };
enum batch_kind { KIND_NONE, KIND_CONTROL };
"""


def repeated(path: str, text: str) -> list[str]:
    texts = {PurePath("csrc/format/batch.h"): C, PurePath(path): text}
    return [message for _, _, message in constants.repeated(texts)]


@pytest.mark.parametrize(("path", "text"), [
    ("pylog/log/x.py", "BATCH_LENGTH_AT = 8\n"),
    ("pylog/log/x.py", "LENGTH_AT = 8\n"),
    ("pylog/log/x.py", "_LENGTH_AT: int = 0x8\n"),
    ("pylog/log/x.py", "A, LENGTH_AT = 3, 8\n"),
    ("pylog/log/x.py", "class X:\n    BYTES_MAX = 1024 ** 3\n"),
    ("pylog/log/x.py", "A = 4\nHEAD_BYTES = 2 * A + 4\n"),
    ("pylog/log/x.py", "KIND_CONTROL = 1\n"),
    ("pylog/_native/x.pyx", "cdef enum:\n    LENGTH_AT = 8  # bytes\n"),
])
def test_constant_of_c_that_python_repeats_is_found(path, text):
    [message] = repeated(path, text)
    assert message.endswith("of csrc/format/batch.h: import it from the native module")


def test_constant_that_differs_from_c_is_found():
    texts = {PurePath("csrc/log/log.h"):
             "enum log_bound { LOG_BOUND_END, LOG_BOUND_HIGH_WATERMARK, LOG_BOUND_LAST_STABLE };",
             PurePath("pylog/share/share_partition.py"):
             "BOUND_HIGH_WATERMARK, BOUND_LAST_STABLE = 0, 1\n"}
    assert [message.partition(":")[0] for _, _, message in constants.repeated(texts)] == [
        "BOUND_HIGH_WATERMARK = 0 differs from LOG_BOUND_HIGH_WATERMARK of csrc/log/log.h (1)",
        "BOUND_LAST_STABLE = 1 differs from LOG_BOUND_LAST_STABLE of csrc/log/log.h (2)"]


@pytest.mark.parametrize(("path", "text"), [
    ("pylog/log/x.py", "LENGTH_AT = 9\n"),
    ("pylog/log/x.py", "_BATCH_LENGTH_AT = 4\n"),
    ("pylog/log/x.py", "KIND_CONTROL = 2\n"),
    ("pylog/_native/records/batch.pyx", "BYTES_MAX = 1 << 20\n"),
])
def test_another_value_is_found_under_the_short_and_the_full_name(path, text):
    [message] = repeated(path, text)
    assert " differs from " in message


@pytest.mark.parametrize(("path", "text"), [
    ("pylog/log/x.py", "BYTES_MAX = 1 << 20\n"),
    ("pylog/log/x.py", "AT = 8\n"),
    ("pylog/log/x.py", "AT = 9\n"),
    ("pylog/log/x.py", "CONTROL = 1\n"),
    ("pylog/log/x.py", "LENGTH_AT = '8'\n"),
    ("pylog/log/x.py", "def f():\n    LENGTH_AT = 8\n"),
    ("pylog/_native/x.pyx", "LENGTH_AT = csrc.BATCH_LENGTH_AT\n"),
    ("tests/x.py", "LENGTH_AT = 8\n"),
])
def test_constant_of_another_name_or_place_and_a_generic_limit_are_allowed(path, text):
    assert repeated(path, text) == []


def test_listed_exceptions_exist_in_the_tree(monkeypatch):
    texts = {PurePath(name): (tidy.ROOT / name).read_text() for name in tidy.tracked(tidy.ROOT)
             if PurePath(name).suffix in tidy.SOURCES}
    assert {f"{path}:{function}" for path, text in texts.items() if path.suffix == ".py"
            for _, _, function in tidy.unsupervised(path, ast.parse(text))} \
        == tidy.OWN_SUPERVISION.keys()
    listed = {"repeats": constants.COINCIDENCES.keys(), "differs": constants.DIFFERENT.keys()}
    generic = constants.GENERIC
    monkeypatch.setattr(constants, "COINCIDENCES", {})
    monkeypatch.setattr(constants, "DIFFERENT", {})

    def found(how: str) -> set[str]:
        return {f"{path}:{message.split()[0]}" for path, _, message in constants.repeated(texts)
                if f" {how} " in message.partition(":")[0]}

    assert {how: found(how) for how in listed} == listed
    monkeypatch.setattr(constants, "GENERIC", set())
    assert {place.rpartition(":")[2] for place in found("differs") - listed["differs"]} == generic


def test_source_tree_follows_the_rules():
    assert list(tidy.check()) == []
