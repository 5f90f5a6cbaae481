"""Builds csrc/ once as a static library and every pylog/_native/*.pyx as its own extension on top of it.

PYLOG_SANITIZE=address|thread adds the sanitizer's flags (see `make asan`, `make tsan`).
"""

import os
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_clib import build_clib as _build_clib
from setuptools.command.build_ext import build_ext as _build_ext

SANITIZE = os.environ.get("PYLOG_SANITIZE", "")
FLAGS = [
    "-std=c11", "-D_GNU_SOURCE", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-pthread",
    "-Wall", "-Wextra",
]
LINK = ["-pthread"]
if SANITIZE == "address":
    FLAGS += ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-O1"]
    LINK += ["-fsanitize=address,undefined"]
elif SANITIZE:
    FLAGS += [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-O1"]
    LINK += [f"-fsanitize={SANITIZE}"]

HEADERS = sorted(glob("csrc/*.h"))
CORE = sorted(glob("csrc/*.c"))
SYSTEM_LIBRARIES = ["isal", "lz4", "zstd", "snappy", "z"]


class build_clib(_build_clib):
    """Compiles csrc/ with warnings as strict as the code deserves; Cython's output is held to less."""

    def build_libraries(self, libraries):
        for _, info in libraries:
            info["cflags"] = [*FLAGS, "-Wconversion", "-Wshadow", "-Wstrict-prototypes"]
        super().build_libraries(libraries)


class build_ext(_build_ext):
    """Builds csrc/ first, also when only the extensions are asked for."""

    def run(self):
        self.run_command("build_clib")
        super().run()


def extension(path: str) -> Extension:
    name = path[: -len(".pyx")].replace("/", ".")
    return Extension(
        name, [path], include_dirs=["csrc"], libraries=["pylogcore", *SYSTEM_LIBRARIES],
        extra_compile_args=[*FLAGS, "-Wno-unused-function", "-Wno-unused-parameter"],
        extra_link_args=LINK, depends=[*HEADERS, *CORE, *glob("pylog/_native/*.pxd")],
    )


setup(
    cmdclass={"build_clib": build_clib, "build_ext": build_ext},
    libraries=[("pylogcore", {
        "sources": CORE, "include_dirs": ["csrc"], "obj_deps": {"": HEADERS},
    })],
    ext_modules=cythonize(
        [extension(path) for path in sorted(glob("pylog/_native/*.pyx"))],
        compiler_directives={
            "language_level": 3, "auto_pickle": False, "autotestdict": False,
            "boundscheck": False, "wraparound": False, "cdivision": True, "embedsignature": True,
        },
        nthreads=2,
    ),
)
