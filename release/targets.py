"""List the targets of wheels: C libraries of other systems, and a compiler for them.

Owns: the table of targets.
Invariants: a target is named by the platform tag of its wheels (PEP 600, PEP 656).
Source: zig's `cc`, a Clang with the headers and stubs of every glibc and of musl.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple


class Target(NamedTuple):
    """zig: the compiler's name of the target. architecture: Debian's name. openssl: OpenSSL's name.

        gnu: the name that Debian and Python use for the architecture with glibc.
    """

    tag: str
    zig: str
    architecture: str
    openssl: str
    gnu: str

    @property
    def is_musl(self) -> bool:
        return self.tag.startswith("musllinux")

    @property
    def machine(self) -> str:
        return self.gnu.partition("-")[0]

    def tool(self, name: str) -> list[str]:
        """Return a command of the compiler: cc, c++, ar, ranlib."""
        import ziglang

        command = [str(Path(ziglang.__file__).with_name("zig")), name]
        if name in ("ar", "ranlib"):
            return command
        # Zig checks for undefined behaviour by default, but the runtime for that is missing here.
        return [*command, "-target", self.zig, "-fno-sanitize=undefined", "-w"]

    def environment(self) -> dict[str, str]:
        """Return variables for makefiles and configure scripts."""
        return {variable: shlex.join(self.tool(name)) for variable, name in (
            ("CC", "cc"), ("CXX", "c++"), ("AR", "ar"), ("RANLIB", "ranlib"))}


TARGETS = {target.tag: target for target in (
    Target("manylinux_2_28_x86_64", "x86_64-linux-gnu.2.28", "amd64", "linux-x86_64",
           "x86_64-linux-gnu"),
    Target("musllinux_1_2_x86_64", "x86_64-linux-musl", "amd64", "linux-x86_64",
           "x86_64-linux-gnu"),
    Target("manylinux_2_28_aarch64", "aarch64-linux-gnu.2.28", "arm64", "linux-aarch64",
           "aarch64-linux-gnu"),
    Target("musllinux_1_2_aarch64", "aarch64-linux-musl", "arm64", "linux-aarch64",
           "aarch64-linux-gnu"),
)}
