"""The version, commit and build date, which --version prints and bug reports need.

Owns: nothing.
Invariants: an undetermined commit or date is reported as unknown, never guessed.
"""

from pathlib import Path

from pylog import __version__


def version() -> str:
    """Return all three, for example `0.1.0, commit 1a2b3c4d5e6f, built 2026-11-28`."""
    return f"{__version__}, commit {commit() or 'unknown'}, built {build_date() or 'unknown'}"


def commit() -> str | None:
    """Return the commit of this build, 12 hex digits, None if unknown.

    Wheels and sdists contain it in the module `_commit`, which setup.py writes. In a checkout git
    provides it; `-dirty` marks uncommitted changes.
    """
    return _stamped("COMMIT") or _checked_out()


def build_date() -> str | None:
    """Return the date of this build (UTC, as 2026-11-28), None if unknown.

    Reproducible builds contain the date of their commit. In a checkout it is the date of the newest
    native module.
    """
    return _stamped("DATE") or _compiled()


def _stamped(name: str) -> str | None:
    try:
        from pylog import _commit  # type: ignore[attr-defined]
    except ImportError:
        return None
    value: str | None = getattr(_commit, name, None)
    return value


def _compiled() -> str | None:
    from datetime import UTC, datetime

    native = Path(__file__).resolve().parent / "_native"
    times = [path.stat().st_mtime for path in native.rglob("*.so")]
    return str(datetime.fromtimestamp(max(times), UTC).date()) if times else None


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
