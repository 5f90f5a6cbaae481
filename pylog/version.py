"""The version and commit, as --version prints them and bug reports need them.

Owns: nothing.
Invariants: an undetermined commit is reported as unknown, never guessed.
"""

from pathlib import Path

from pylog import __version__


def version() -> str:
    """Return version and commit of this build, for example `0.1.0, commit 1a2b3c4d5e6f`."""
    return f"{__version__}, commit {commit() or 'unknown'}"


def commit() -> str | None:
    """Return the commit of this build, 12 hex digits, None if unknown.

    Wheels and sdists contain the commit in the module `_commit`, which setup.py writes. In a
    checkout git provides it; `-dirty` marks uncommitted changes.
    """
    return _built() or _checked_out()


def _built() -> str | None:
    try:
        from pylog._commit import COMMIT  # type: ignore[import-not-found]
    except ImportError:
        return None
    return COMMIT


def _checked_out() -> str | None:
    import subprocess

    root = Path(__file__).resolve().parent.parent
    # A package inside another project's checkout must not report that project's commit.
    if not (root / ".git").exists() or not (root / "csrc").is_dir():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12",
             "--exclude=*"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
