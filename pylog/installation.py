"""Detects that an unrelated package with the name `pylog` replaced a file of this package.

The package index has such a package. It installs its own `pylog/__init__.py` over ours, and removes
that file when it is uninstalled. The other files of this package stay.

Owns: nothing.
Invariants: the check uses only files that the other package does not replace; on an intact
  installation it imports nothing.
"""

_DISTRIBUTION = "pylog-broker"
_REPAIR = f"pip uninstall pylog; pip install --force-reinstall --no-deps {_DISTRIBUTION}"


def problem() -> str | None:
    """Return what is wrong with the installation and how to repair it, None if it is intact."""
    import pylog

    if getattr(pylog, "__distribution__", None) == _DISTRIBUTION:
        return None
    from importlib import metadata

    path = pylog.__file__ or f"{list(pylog.__path__)[0]}/__init__.py"
    try:
        other = f"the unrelated package pylog {metadata.version('pylog')} replaced"
    except metadata.PackageNotFoundError:
        other = "an unrelated package pylog, which is no longer installed, replaced or removed"
    return f"{other} a file of {_DISTRIBUTION}: {path}. Repair it: {_REPAIR}"


def check() -> None:
    """Raise ImportError if the installation is not intact."""
    found = problem()
    if found is not None:
        raise ImportError(found, name="pylog")
