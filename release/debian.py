"""Download Debian packages of any architecture and unpack them below a folder.

Owns: a separate package manager state for each suite and architecture, and the unpacked files.
Invariants: this machine's packages and lists do not change, because nothing is installed; files
that exist are not downloaded again.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

LISTED = Path("/etc/apt/sources.list.d/debian.sources")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "http://deb.debian.org/debian"


class Debian:
    """A suite with its security updates, for one architecture, by Debian's names (bookworm, arm64).
    """

    def __init__(self, folder: Path, suite: str, architecture: str):
        self.folder = folder / f"{suite}-{architecture}"
        self.suite, self.architecture = suite, architecture
        self.files = self.folder / "files"

    def unpacked(self, package: str) -> Path:
        """Return the root with the files of `package` and of all packages requested before."""
        mark = self.folder / "unpacked" / package
        if not mark.exists():
            fetched = self._fetched("download", package)
            self.files.mkdir(exist_ok=True)
            for found in fetched.glob("*.deb"):
                run(["dpkg-deb", "-x", str(found), str(self.files)])
            mark.parent.mkdir(exist_ok=True)
            mark.touch()
        return self.files

    def source(self, package: str) -> Path:
        """Return the source tree of `package`, with Debian's patches."""
        fetched = self._fetched("source", package)
        found = [path for path in fetched.iterdir() if path.is_dir()]
        assert len(found) == 1, found
        return found[0]

    def version(self, package: str) -> str:
        """Return the version of a package that was unpacked, or of its source."""
        for verb, ending in (("download", "deb"), ("source", "dsc")):
            for path in (self.folder / verb / package).glob(f"{package}_*.{ending}"):
                # The file name of a binary package contains the architecture and quotes the epoch.
                return path.stem.split("_")[1].replace("%3a", ":")
        raise SystemExit(f"{package} of {self.suite} was not downloaded")

    def _fetched(self, verb: str, package: str) -> Path:
        """Return the output files of apt-get `verb package`, in a separate folder."""
        target = self.folder / verb / package
        if target.exists():
            return target
        self._begin()
        partial = target.with_name(f"{package}.partial")
        run(["rm", "-rf", str(partial)])
        partial.mkdir(parents=True)
        run([*self._apt(), verb, package], partial)
        partial.rename(target)
        return target

    def _begin(self) -> None:
        """Download the package lists, the first time."""
        listed = self.folder / "sources.list"
        if listed.exists():
            return
        for name in ("lists/partial", "cache/archives/partial"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "status").touch()
        # Security updates are published in a separate suite first.
        suites = f"{mirror()} {self.suite}", f"{mirror()}-security {self.suite}-security"
        partial = self.folder / "sources.partial"
        partial.write_text("".join(f"{kind} [signed-by={KEYRING}] {suite} main\n"
                                   for suite in suites for kind in ("deb", "deb-src")))
        run([*self._apt(partial), "update", "-qq"])
        partial.rename(listed)

    def _apt(self, listed: Path | None = None) -> list[str]:
        """Return the options that keep this machine's packages and lists unchanged."""
        own = {
            "Dir::Etc::SourceList": listed or self.folder / "sources.list",
            "Dir::Etc::SourceParts": "-", "Dir::State": self.folder,
            "Dir::State::status": self.folder / "status", "Dir::Cache": self.folder / "cache",
            "APT::Architecture": self.architecture, "APT::Architectures": self.architecture,
            "APT::Sandbox::User": "root", "Acquire::Languages": "none",
        }
        return ["apt-get", "-q", *[f"-o{key}={value}" for key, value in own.items()]]


def mirror() -> str:
    """Return the mirror that this machine uses."""
    found = re.search(r"^URIs:\s*(\S+)", LISTED.read_text(), re.M) if LISTED.exists() else None
    return found[1] if found else MIRROR


def run(command: list[str], folder: Path | None = None, **more: str) -> None:
    """Run a command. If it fails, print its output and exit."""
    import os

    done = subprocess.run(command, cwd=folder, env={**os.environ, **more}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SystemExit(f"{done.stdout[-8000:]}\n{' '.join(command)}: exit {done.returncode}")
