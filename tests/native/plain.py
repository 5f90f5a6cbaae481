"""The environment of child programs that have their own sanitizer, or none.

`make asan` and `make tsan` preload one into every process, and two in one process do not work.
"""

import os

import pytest

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
# It starts threads by thrd_create, which gcc's TSan does not support: they crash at their first
# call.
NO_LIBRDKAFKA = pytest.mark.skipif("libtsan" in os.environ.get("LD_PRELOAD", ""),
                                   reason="librdkafka's threads do not start under TSan")
