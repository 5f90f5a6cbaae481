"""Modules that importing the client loads."""

import subprocess
import sys

from tests.fixtures.brokers import REPOSITORY


def test_records_need_neither_numpy_nor_pyarrow():
    code = ("import sys; from pylog.client import Admin, Consumer, Producer, Record; "
            "from pylog.client import aio; aio.Consumer, aio.Admin, aio.Producer; "
            "print([name for name in ('numpy', 'pyarrow') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True,
                          capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
