"""Fetch a newer Debian's OpenSSL, which needs a fifth less CPU to encrypt.

    make openssl        # for later builds in this checkout

Owns: the folder `openssl/` of the cache ($PYLOG_CACHE, by default .cache/ of the checkout).
Invariants: nothing is installed, and the system's OpenSSL does not change; the folder is complete
and as new as Debian's version at the time of the call.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from release.debian import Debian, run

SUITE = "trixie"
ARCHIVES = ("libssl.a", "libcrypto.a")
# The name of this function in its glibc; older ones lack C23's binary numbers.
RENAMED = "__isoc23_strtol=strtol"


def main() -> int:
    root = Path(os.environ.get("PYLOG_CACHE") or Path(__file__).resolve().parent.parent / ".cache")
    made, partial = root / "openssl", root / "openssl.partial"
    architecture, gnu = (said("dpkg", "--print-architecture"), said("gcc", "-dumpmachine"))
    shutil.rmtree(partial, ignore_errors=True)
    for name in ("include", "lib"):
        (partial / name).mkdir(parents=True)
    taken(Debian(partial, SUITE, architecture), partial, gnu)
    shutil.rmtree(partial / f"{SUITE}-{architecture}")
    shutil.rmtree(made, ignore_errors=True)
    partial.rename(made)  # Rename last: the folder must be complete.
    text = (made / "include/openssl/opensslv.h").read_text()
    version = text.partition("OPENSSL_VERSION_STR \"")[2].partition("\"")[0]
    print(f"OpenSSL {version} in {made}: `make build` links it from now on")
    return 0


def taken(debian: Debian, made: Path, gnu: str) -> None:
    """Return the folder with include/ and lib/. gnu: the GNU name of the architecture."""
    files = debian.unpacked("libssl-dev")
    for name in ARCHIVES:
        run([f"{gnu}-objcopy", f"--redefine-sym={RENAMED}",
             str(files / "usr/lib" / gnu / name), str(made / "lib" / name)])
    for include in (files / "usr/include/openssl", files / "usr/include" / gnu / "openssl"):
        # Set the current time, so that objects compiled with older headers are compiled again.
        shutil.copytree(include, made / "include/openssl", copy_function=shutil.copy,
                        dirs_exist_ok=True)


def said(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as failure:
        raise SystemExit(f"a newer OpenSSL is had from Debian, on Debian: {failure}") from None


if __name__ == "__main__":
    sys.exit(main())
