"""The environment of child programs that bring a sanitizer of their own, or none.

`make asan` and `make tsan` preload one into every process; two in one process do not work.
"""

import os

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
