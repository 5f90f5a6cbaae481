"""The composition root: one node with all its parts. The commands and pylog.testing import it.

Owns: nothing; a Broker owns every long-lived object of the process.
Invariants: users of the package import the names below from here.
"""

from pylog.broker.broker import Broker
from pylog.broker.process import run
from pylog.log.errors import StartError

__all__ = ["Broker", "StartError", "run"]
