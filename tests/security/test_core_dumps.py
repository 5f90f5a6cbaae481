"""Keys and passwords stay out of core dumps."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys
from pylog.testing import Broker
from tests.security.test_core_dumps import settings
with Broker(settings=settings(sys.argv[1])):
    print(ctypes.CDLL(None).prctl(3))
"""


def settings(protocol):
    return {"listeners": f"{protocol}://127.0.0.1:0", "inter.broker.listener.name": protocol,
            "sasl.enabled.mechanisms": "SCRAM-SHA-256"}


@pytest.mark.parametrize("protocol,dumpable", [("PLAINTEXT", 1), ("SASL_PLAINTEXT", 0)])
def test_a_broker_with_secrets_leaves_no_core_dump(protocol, dumpable):
    done = subprocess.run([sys.executable, "-c", PROGRAM, protocol], capture_output=True,
                          text=True, timeout=60)
    assert done.stdout == f"{dumpable}\n", done.stderr
