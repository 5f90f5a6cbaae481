"""The console's pages: one module each, which exports PAGES. See pylog.console for the contract.

Owns: nothing.
Invariants: the application imports every module of this package.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pylog.console.pages import Page


def all_pages() -> list[Page]:
    """Return the pages of all modules of this package."""
    found: list[Page] = []
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda one: one.name):
        found += importlib.import_module(f"{__name__}.{module.name}").PAGES
    return found
