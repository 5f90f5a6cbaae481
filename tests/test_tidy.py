from pathlib import PurePath

import pytest

from tests import tidy

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
    ("csrc/log/x.c", "int f(void);\n", "contract or method"),
    ("csrc/log/x.c", '/* X. */\n#include "Python.h"\n', "no Python"),
])
def test_a_broken_rule_is_found(path, text, words):
    assert words in said(path, text)


@pytest.mark.parametrize(("path", "text"), [
    ("pylog/log/x.py", HEAD + "def f():\n" + "    a = 1\n" * 59),
    ("pylog/broker.py", HEAD + "import time\nt = time.monotonic()\n"),
    ("pylog/log/x.py", HEAD + "import time\nt = time.gmtime(0)\n"),
    ("pylog/log/__init__.py", '"""Logs."""\n'),
    ("pylog/_native/x.pyx", HEAD + "cdef int f() except -1 nogil:\n    return 0\n"),
    ("pylog/config/kafka_settings.py", HEAD + "a = 1\n" * 900),
    ("csrc/log/x.c", "/* X. */\nint g(void);\nstruct x {\n" + "    int a;\n" * 90 + "};\n"),
    ("tests/x.py", "import time\ntime.sleep(1)\n"),
])
def test_what_keeps_the_rules_passes(path, text):
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


def test_the_tree_keeps_the_rules():
    assert list(tidy.check()) == []
