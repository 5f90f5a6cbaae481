"""Settings: the catalogue of all settings, and the current values.

Owns: nothing; the names below are the package's interface.
Invariants: importing this package adds less than 3 ms to startup.
"""

from .errors import ConfigError
from .listeners import Listener
from .settings import Settings
from .topics import validate_topic_config

__all__ = ["ConfigError", "Listener", "Settings", "validate_topic_config"]
