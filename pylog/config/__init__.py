"""Settings: one table of what there is, and the values in force.

Owns: nothing; the names below are the package's interface.
Invariants: (1) importing it costs a start less than 3 ms.
"""

from .errors import ConfigError
from .listeners import Listener
from .settings import Settings
from .topics import validate_topic_config

__all__ = ["ConfigError", "Listener", "Settings", "validate_topic_config"]
