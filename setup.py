"""Builds csrc/ once into a static library and every pylog/_native/*.pyx as its own extension on it.

CC names the compiler ("ccache gcc"). PYLOG_SANITIZE=address|thread adds that sanitizer's flags,
PYLOG_STRICT=1 turns warnings into errors (see `make asan`, `make tsan`, .ci/run).
Only what changed is compiled: gcc writes down which headers each object came from, and beside each
product stands the command that made it. JOBS says how many commands run at a time.

For machines other than this one (release/wheels.py): PYLOG_LIBRARIES is a folder with include/ and
lib/ whose archives go into the extensions, CXX links them, AR packs, PYLOG_PYTHON_INCLUDE has the
headers of the Python that the extensions are for, by colons. PYLOG_OPENSSL is such a folder with
OpenSSL alone, in place of the system's (release/openssl.py).
"""

import compileall
import os
import re
import shlex
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext as _build_ext
from setuptools.command.build_py import build_py as _build_py
from setuptools.command.sdist import sdist as _sdist

JOBS_MAX = int(os.environ.get("JOBS", 2))
CHECKOUT_ONLY = {("pylog.spark", name) for name in ("comparison", "floor", "soak", "trial")}
SANITIZERS = {
    "": [],
    "address": ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-O1"],
    "thread": ["-fsanitize=thread", "-fno-omit-frame-pointer", "-O1"],
}
SANITIZE = SANITIZERS[os.environ.get("PYLOG_SANITIZE", "")]
STRICT = ["-Werror"] if os.environ.get("PYLOG_STRICT") else []
LIBRARIES = os.environ.get("PYLOG_LIBRARIES", "")
OPENSSL = os.environ.get("PYLOG_OPENSSL", "")
PYTHON_INCLUDE = os.environ.get("PYLOG_PYTHON_INCLUDE") or sysconfig.get_path("include")
FLAGS = [
    "-std=c11", "-D_GNU_SOURCE", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-pthread",
    "-Icsrc", *[f"-I{folder}/include" for folder in (LIBRARIES, OPENSSL) if folder], "-Wall",
    *SANITIZE, *STRICT,
]
# Asserts stay on in release, so nothing here defines NDEBUG for csrc/.
CORE_FLAGS = [*FLAGS, "-Wextra", "-Wconversion", "-Wshadow", "-Wstrict-prototypes"]
# Cython's output is held to less: it declares more than it uses. NDEBUG drops CPython's own
# asserts in its headers; Cython's assert statements do not depend on it.
EXTENSION_FLAGS = [
    *FLAGS, "-DNDEBUG", "-fwrapv", *[f"-I{path}" for path in PYTHON_INCLUDE.split(":")],
    "-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-but-set-variable",
    "-Wno-maybe-uninitialized", "-Wno-sign-compare",
]
# OpenSSL's archives need zstd and zlib: they go first.
NAMES = ("ssl", "crypto", "isal", "lz4", "zstd", "snappy", "z")
TLS_ARCHIVES = [f"{OPENSSL}/lib/lib{name}.a" for name in NAMES[:2]] if OPENSSL else []
# An archive's symbols stay inside: two extensions, or Python's own ssl, may have others.
if LIBRARIES:
    LINKED = [f"{LIBRARIES}/lib/lib{name}.a" for name in NAMES] + [
        f"-Wl,--version-script={LIBRARIES}/exports.map", "-Wl,--gc-sections", "-Wl,-s"]
elif OPENSSL:
    LINKED = [*TLS_ARCHIVES, "-Wl,--exclude-libs,libssl.a:libcrypto.a", "-Wl,--gc-sections",
              *[f"-l{name}" for name in NAMES[2:]]]
else:
    LINKED = [f"-l{name}" for name in NAMES]
DIRECTIVES = {
    "language_level": 3, "auto_pickle": False, "autotestdict": False, "boundscheck": False,
    "wraparound": False, "cdivision": True, "embedsignature": True,
}


def stamp_commit(folder: Path) -> None:
    """Write the commit of this checkout into the module `pylog._commit` below `folder`.

    An sdist has that file already; outside a checkout nothing is written.
    """
    done = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True,
                          text=True) if Path(".git").exists() else None
    if done is not None and done.returncode == 0:
        (folder / "pylog" / "_commit.py").write_text(f'COMMIT = "{done.stdout.strip()}"\n')


class sdist(_sdist):
    """With the commit that it was made from."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        stamp_commit(Path(base_dir))


class build_py(_build_py):
    """With the commit, and without the jobs that need the checkout's bench/."""

    def run(self):
        super().run()
        if not self.editable_mode:
            stamp_commit(Path(self.build_lib))

    def find_package_modules(self, package, package_dir):
        found = super().find_package_modules(package, package_dir)
        return [row for row in found if (package, row[1]) not in CHECKOUT_ONLY]


class build_ext(_build_ext):
    """Compiles by file and in parallel; the base class redoes every extension for any change."""

    def run(self):
        super().run()
        if self.inplace:
            # A start of brokerd counts in milliseconds, the first one too, also where the
            # environment forbids Python to write byte code.
            compileall.compile_dir("pylog", quiet=1)

    def build_extensions(self):
        self.cc = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        # Snappy's archive is C++: its library comes from the compiler's other driver.
        self.linker = shlex.split(os.environ["CXX"]) if LIBRARIES else self.cc
        self.objects = Path(self.build_temp)
        with ThreadPoolExecutor(JOBS_MAX) as pool:
            core = pool.map(lambda path: self._compile(path, CORE_FLAGS),
                            sorted(glob("csrc/*/*.c")))
            for extension in self.extensions:
                _forget_stale(Path(extension.sources[0]))
            # Translated while csrc/ compiles: the two use different processes.
            translated = cythonize(self.extensions, compiler_directives=DIRECTIVES,
                                   nthreads=JOBS_MAX if len(self.extensions) > 1 else 0)
            archive = self._archive(list(core))
            list(pool.map(lambda extension: self._build(extension, archive), translated))

    def _compile(self, source: str, flags: list[str]) -> Path:
        """The object of `source`, compiled when the source, a header of it or setup.py is newer."""
        made = self.objects / Path(source).with_suffix(".o")
        listed = made.with_suffix(".d")
        command = [*self.cc, *flags, "-MMD", "-MF", str(listed), "-c", source, "-o", str(made)]
        if not (_is_newer(made, _headers(listed)) and _is_same(made.with_suffix(".how"), command)):
            made.parent.mkdir(parents=True, exist_ok=True)
            _run(command)
            made.with_suffix(".how").write_text(shlex.join(command))
        return made

    def _archive(self, objects: list[Path]) -> Path:
        archive = self.objects / "libpylogcore.a"
        names = "\n".join(map(str, objects))
        listed = archive.with_suffix(".list")
        # The list too: a source that was removed leaves no newer object behind.
        same = listed.exists() and listed.read_text() == names
        if not (same and _is_newer(archive, objects)):
            archive.unlink(missing_ok=True)
            archive.parent.mkdir(parents=True, exist_ok=True)
            _run([*shlex.split(os.environ.get("AR", "ar")), "qcs", str(archive),
                  *map(str, objects)])
            listed.write_text(names)
        return archive

    def _build(self, extension: Extension, archive: Path) -> None:
        made = Path(self.get_ext_fullpath(extension.name))
        compiled = self._compile(extension.sources[0], EXTENSION_FLAGS)
        command = [*self.linker, "-shared", "-pthread", "-Wl,--as-needed", *SANITIZE, str(compiled),
                   str(archive), *LINKED, "-o", str(made)]
        how = compiled.with_suffix(".linked")
        linked = [compiled, archive, *map(Path, TLS_ARCHIVES)]
        if not (_is_newer(made, linked) and _is_same(how, command)):
            made.parent.mkdir(parents=True, exist_ok=True)
            _run(command)
            how.write_text(shlex.join(command))

    def get_source_files(self):
        return [*super().get_source_files(), *glob("csrc/*/*.[ch]"),
                *glob("pylog/_native/*.p[yx]*")]


def _headers(listed: Path) -> list[Path] | None:
    """What the object was made from, by gcc's own list; None when there is no list."""
    if not listed.exists():
        return None
    names = listed.read_text().replace("\\\n", " ").partition(": ")[2].split()
    return [Path(name) for name in names]


def _is_newer(made: Path, sources: list[Path] | None) -> bool:
    if sources is None or not made.exists():
        return False
    age = made.stat().st_mtime_ns
    return all(source.exists() and source.stat().st_mtime_ns <= age for source in sources)


def _is_same(how: Path, command: list[str]) -> bool:
    """Whether something was made by this very command; what has no note of it is believed."""
    return not how.exists() or how.read_text() == shlex.join(command)


def _forget_stale(source: Path) -> None:
    """Remove a translation that is older than a .pxd that it uses, directly or through another.

    Cython 3.3 misses those of `from pylog._native cimport csrc`.
    """
    made = source.with_suffix(".c")
    used, unread = set(), [source, source.with_suffix(".pxd")]
    while unread:
        path = unread.pop()
        if path in used or not path.exists():
            continue
        used.add(path)
        words = {word for line in path.read_text().splitlines() if "cimport" in line
                 for word in re.findall(r"\w+", line)}
        unread += [other for other in source.parent.glob("*.pxd") if other.stem in words]
    if made.exists() and any(path.stat().st_mtime_ns > made.stat().st_mtime_ns
                             for path in used - {source}):
        made.unlink()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout + done.stderr, end="", flush=True)
    if done.returncode:
        raise SystemExit(f"build failed: {shlex.join(command)}")


setup(
    cmdclass={"build_ext": build_ext, "build_py": build_py, "sdist": sdist},
    ext_modules=[
        Extension(path.removesuffix(".pyx").replace("/", "."), [path])
        for path in sorted(glob("pylog/_native/*.pyx"))
    ],
)
