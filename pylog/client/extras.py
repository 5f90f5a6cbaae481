"""Import the libraries of optional extras, and name the missing extra.

Owns: the extras and their libraries.
Invariants: a library that is not installed raises MissingExtraError with the pip command that
  installs it; importing this module imports no library.
"""

from __future__ import annotations

import importlib
from typing import Any

from pylog.client.errors import MissingExtraError

# As in pyproject.toml. arrow: both libraries are needed for Arrow data, numpy for poll_numpy.
LIBRARIES = {"pyarrow": "arrow", "numpy": "arrow", "fastavro": "avro", "msgspec": "msgspec",
             "pydantic": "pydantic", "google.protobuf.message": "protobuf"}


def require(caller: str, *libraries: str) -> Any:
    """Import the libraries that a call needs, and return the last one.

    caller: named in the error. Raises MissingExtraError.
    """
    found = None
    for library in libraries:
        try:
            found = importlib.import_module(library)
        except ModuleNotFoundError as failure:
            if failure.name is not None and not f"{library}.".startswith(f"{failure.name}."):
                raise  # The library is installed, and one of its own dependencies is not.
            raise MissingExtraError(
                caller, library.removesuffix(".message"), LIBRARIES[library]) from failure
    return found
