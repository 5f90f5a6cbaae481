from pathlib import PurePath

import pytest

from tests import callers

HEAD = '"""A noun.\n\nOwns: it.\nCalled by: %s\nInvariants: (1) none.\n"""\n'
OWN = "pylog/log/own.py"


def said(line: str, others: dict[str, str], path: str = OWN) -> list[str]:
    texts = {path: HEAD % line, **others}
    return [message for name, _, message in callers.untrue(
        {PurePath(name): text for name, text in texts.items()}) if name == path]


@pytest.mark.parametrize(("line", "others"), [
    ("broker.", {"pylog/broker.py": "from pylog.log.other import Own\n"}),
    ("api.topics; api.gone.", {"pylog/api/topics.py": "from pylog.log import own\n"}),
    ("other, on the event loop.", {"pylog/log/other.py": "from . import third\n"}),
    ("log.other and log.third.", {"pylog/log/other.py": "from . import own\n",
                                  "pylog/log/third.py": ""}),
    ("dispatch.", {"pylog/server/dispatch.py": "from pylog.log import own\n",
                   "pylog/api/dispatch.py": ""}),
    ("server.", {"pylog/server/dispatch.py": "import pylog.log\n"}),
    ("server (through log.other).", {"pylog/server/x.py": "", "pylog/log/other.py": ""}),
    ("server (through api.handlers).", {"pylog/server/x.py": "", "pylog/api/__init__.py": "",
                                        "pylog/api/x.py": "from pylog.log import own\n"}),
    ("server (by name).", {"pylog/server/__init__.py": "import_module('pylog.log.owned')\n"}),
    ("test_own.py.", {"tests/log/test_own.py": "from pylog.log import other\n"}),
])
def test_a_caller_that_does_not_import_the_module_is_found(line, others):
    assert len(said(line, others)) == 1


@pytest.mark.parametrize(("line", "others"), [
    ("dispatch.", {"pylog/server/dispatch.py": "from pylog.log import own\n"}),
    ("broker (open, close).", {"pylog/broker.py": "from pylog.log.own import Own\n"}),
    ("api.", {"pylog/api/a.py": "", "pylog/api/topics.py": "from pylog.log import own\n"}),
    ("other,\n  on the event loop; whoever asks.", {"pylog/log/other.py": "from . import own\n"}),
    ("applications, tests; dispatch frees it.", {"pylog/server/dispatch.py": ""}),
    ("server (through log.other).", {"pylog/server/x.py": "",
                                     "pylog/log/other.py": "from .own import x\n"}),
    ("server (through api.handlers).", {"pylog/server/x.py": "",
                                        "pylog/api/__init__.py": "from pylog.log import own\n"}),
    ("server, through `broker.own`; at the start.", {"pylog/server/x.py": ""}),
    ("server.x (as a program).", {"pylog/server/x.py": ""}),
    ("server (by name).", {"pylog/server/__init__.py": "import_module('pylog.log.own')\n"}),
    ("api.a.", {"pylog/log/__init__.py": "from .own import Own\n",
                "pylog/api/a.py": "from pylog.log import Own\n"}),
    ("_native.log.", {"pylog/_native/log.pyx": "from pylog.log.own import (\n    Own,\n)\n"}),
    ("test_own.py.", {"tests/log/test_own.py": "def f():\n    from pylog.log import own\n"}),
])
def test_a_caller_that_imports_the_module_or_says_how_it_gets_it_passes(line, others):
    assert said(line, others) == []


def test_cython_modules_are_callers_and_are_called():
    others = {"pylog/_native/reader.pyx": "from pylog._native.own cimport Own\n"}
    assert said("reader.", others, "pylog/_native/own.pyx") == []
    assert len(said("writer, reader.", others, "pylog/_native/own.pyx")) == 1


@pytest.mark.parametrize(("head", "count"), [
    ("/* A noun. Called by user.c only. More. */\n", 0),
    ("/* A noun.\n * Called by: user.c, other.c. */\n", 1),
    ("/* A noun.\n * Called by nobody.c and other.c. */\n", 2),
])
def test_files_that_a_header_names_include_it(head, count):
    others = {"csrc/net/user.c": '#include "log/own.h"\n', "csrc/net/other.c": "int a;\n"}
    texts = {"csrc/log/own.h": head, **others}
    found = list(callers.untrue({PurePath(name): text for name, text in texts.items()}))
    assert len(found) == count


def test_the_line_of_the_head_is_told():
    (path, line, message), = callers.untrue({PurePath(OWN): HEAD % "nobody."})
    assert (path, line) == (OWN, 4) and "nobody" in message
