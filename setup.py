"""Build csrc/ into a static library and each .pyx below pylog/_native/ as an extension on it.

CC names the compiler ("ccache gcc"). PYLOG_SANITIZE=address|thread adds that sanitizer's flags,
PYLOG_STRICT=1 turns warnings into errors (see `make asan`, `make tsan`, .ci/run).
Only what changed is compiled: gcc writes down which headers each object came from, and beside each
product stands the command that made it. JOBS says how many commands run at a time.

For machines other than this one (release/wheels.py): PYLOG_LIBRARIES is a folder with include/ and
lib/ whose archives go into the extensions, CXX links them, AR packs, PYLOG_PYTHON_INCLUDE has the
headers of the Python that the extensions are for, by colons. PYLOG_OPENSSL is such a folder with
OpenSSL alone, in place of the system's (release/openssl.py). PYLOG_WHEEL_TAG names the wheel's
Python, ABI and platform, and PYLOG_SBOM the list of linked components that the wheel carries.
PYLOG_CORE is a folder for the objects of csrc/, which wheels for several Pythons share.

Two builds of one commit have the same bytes if SOURCE_DATE_EPOCH is set.
"""

import compileall
import datetime
import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel as _bdist_wheel
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


# Header: the packages of Debian and Fedora that contain it.
HEADERS = {
    "Python.h": ("python3-dev", "python3-devel"),
    "isa-l/igzip_lib.h": ("libisal-dev", "isa-l-devel"),
    "lz4frame.h": ("liblz4-dev", "lz4-devel"),
    "zstd.h": ("libzstd-dev", "libzstd-devel"),
    "snappy-c.h": ("libsnappy-dev", "snappy-devel"),
    "zlib.h": ("zlib1g-dev", "zlib-devel"),
    "openssl/ssl.h": ("libssl-dev", "openssl-devel"),
}
COMPILER = ("gcc libc6-dev", "gcc glibc-devel")
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def unsupported_reason() -> str | None:
    """Return why pylog cannot be built for this Python and system, None if it can."""
    if not sys.platform.startswith("linux"):
        return ("pylog runs on Linux only: brokerd and the client use epoll, sendfile and other "
                "interfaces that other systems do not have. Use a Linux machine, a container, or "
                "WSL 2 on Windows")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return ("pylog does not support free-threaded Python (3.13t, 3.14t) yet. Use the standard "
                "build of the same version")
    return None


def missing_headers(compiler: list[str], flags: list[str]) -> list[str] | None:
    """Return the headers that the compiler cannot find, None if it does not run at all."""
    def compiles(text: str) -> bool:
        return not subprocess.run([*compiler, *flags, "-E", "-x", "c", "-", "-o", os.devnull],
                                  input=text, capture_output=True, text=True).returncode

    try:
        if not compiles("#include <stdio.h>\n"):
            return None
        return [name for name in HEADERS if not compiles(f"#include <{name}>\n")]
    except OSError:
        return None


def installation_advice(missing: list[str] | None) -> str:
    """Return what to install for the result of missing_headers()."""
    packages = ([COMPILER, *HEADERS.values()] if missing is None
                else [HEADERS[name] for name in missing])
    debian, fedora = (" ".join(names) for names in zip(*packages))
    what = "a C compiler" if missing is None else f"the headers {', '.join(missing)}"
    return (f"Cannot build pylog without {what}. Install them and try again:\n"
            f"  Debian, Ubuntu:  apt install {debian}\n"
            f"  Fedora, RHEL:    dnf install {fedora}")


def readme(text: str, repository: str, version: str) -> str:
    """Return README.md for the package index, which cannot resolve links to other files.

    They lead to the repository, to the files of this version. Without a repository only their texts
    remain.
    """
    def replaced(found: re.Match) -> str:
        label, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        return f"[{label}]({repository}/blob/v{version}/{target})" if repository else label

    return LINK.sub(replaced, text)


def urls(repository: str, version: str) -> dict[str, str]:
    """Return the URLs of the package's metadata."""
    if not repository:
        return {}
    files = f"{repository}/blob/v{version}"
    return {"Repository": repository, "Documentation": f"{files}/docs/README.md",
            "Changelog": f"{files}/CHANGELOG.md", "Security": f"{files}/SECURITY.md",
            "Issues": f"{repository}/issues"}


def build_time() -> int:
    """Return the time of this build in seconds, the commit's in a reproducible build."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())


def stamp_commit(folder: Path) -> None:
    """Write commit and build date into the module `pylog._commit` below `folder`.

    An sdist has that file already; outside a checkout nothing is written.
    """
    done = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True,
                          text=True) if Path(".git").exists() else None
    if done is not None and done.returncode == 0:
        date = datetime.datetime.fromtimestamp(build_time(), datetime.UTC).date()
        (folder / "pylog" / "_commit.py").write_text(
            f'COMMIT = "{done.stdout.strip()}"\nDATE = "{date}"\n')


class sdist(_sdist):
    """With the commit that it was made from."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        stamp_commit(Path(base_dir))

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None,
                     group=None):
        """Write names in order, and no time, owner or umask of this machine: one commit, one hash.
        """
        assert format == "gztar" and base_dir, (format, base_dir)

        def neutral(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = build_time()
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        name = f"{base_name}.tar.gz"
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        with (open(name, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=build_time()) as out,
              tarfile.open(mode="w", fileobj=out, format=tarfile.PAX_FORMAT) as archive):
            for path in [Path(base_dir), *sorted(Path(base_dir).rglob("*"))]:
                archive.add(path, recursive=False, filter=neutral)
        return name


class bdist_wheel(_bdist_wheel):
    """With the tag and the bill of materials that release/wheels.py provides (PEP 770)."""

    def get_tag(self):
        given = os.environ.get("PYLOG_WHEEL_TAG")
        return tuple(given.split("-")) if given else super().get_tag()

    def write_wheelfile(self, wheelfile_base, *args, **kwargs):
        super().write_wheelfile(wheelfile_base, *args, **kwargs)
        given = os.environ.get("PYLOG_SBOM")
        if given:
            folder = Path(wheelfile_base) / "sboms"
            folder.mkdir(exist_ok=True)
            shutil.copy(given, folder)


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

    def finalize_options(self):
        super().finalize_options()
        if self.editable_mode:
            # setuptools chooses a temporary folder. Share the objects with `build_ext --inplace`.
            self.build_temp = f"build/temp.{self.plat_name}-{sys.implementation.cache_tag}"

    def run(self):
        super().run()
        if self.inplace:
            _remove_orphans()
            # A start of brokerd counts in milliseconds, the first one too, also where the
            # environment forbids Python to write byte code.
            compileall.compile_dir("pylog", quiet=1)

    def build_extensions(self):
        self.cc = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        # Snappy's archive is C++: its library comes from the compiler's other driver.
        self.linker = shlex.split(os.environ["CXX"]) if LIBRARIES else self.cc
        self.objects = Path(self.build_temp)
        # The core does not depend on Python: builds for several versions can share it.
        self.core = Path(os.environ.get("PYLOG_CORE") or self.build_temp)
        self._check_requirements()
        with ThreadPoolExecutor(JOBS_MAX) as pool:
            core = pool.map(lambda path: self._compile(path, CORE_FLAGS, self.core),
                            sorted(glob("csrc/*/*.c")))
            for extension in self.extensions:
                _forget_stale(Path(extension.sources[0]))
            # Translated while csrc/ compiles: the two use different processes.
            translated = cythonize(self.extensions, compiler_directives=DIRECTIVES,
                                   nthreads=JOBS_MAX if len(self.extensions) > 1 else 0)
            archive = self._archive(list(core))
            list(pool.map(lambda extension: self._build(extension, archive), translated))

    def _check_requirements(self) -> None:
        """Before the first build: report an unsupported system and missing packages."""
        if (self.core / "libpylogcore.a").exists():
            return
        reason = unsupported_reason()
        if reason:
            raise SystemExit(reason)
        missing = missing_headers(self.cc, EXTENSION_FLAGS)
        if missing or missing is None:
            raise SystemExit(installation_advice(missing))

    def _compile(self, source: str, flags: list[str], folder: Path) -> Path:
        """The object of `source`, compiled when the source, a header of it or setup.py is newer."""
        made = folder / Path(source).with_suffix(".o")
        listed = made.with_suffix(".d")
        command = [*self.cc, *flags, "-MMD", "-MF", str(listed), "-c", source, "-o", str(made)]
        if not (_is_newer(made, _headers(listed)) and _is_same(made.with_suffix(".how"), command)):
            made.parent.mkdir(parents=True, exist_ok=True)
            _run(command)
            made.with_suffix(".how").write_text(shlex.join(command))
        return made

    def _archive(self, objects: list[Path]) -> Path:
        archive = self.core / "libpylogcore.a"
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
        compiled = self._compile(extension.sources[0], EXTENSION_FLAGS, self.objects)
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
                *glob("pylog/_native/**/*.p[yx]*", recursive=True)]


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

    Cython 3.3 misses those of `from pylog._native.log cimport csrc`.
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
        unread += [other for other in Path("pylog/_native").rglob("*.pxd") if other.stem in words]
    if made.exists() and any(path.stat().st_mtime_ns > made.stat().st_mtime_ns
                             for path in used - {source}):
        made.unlink()


def _remove_orphans() -> None:
    """Remove extensions whose source has gone: an import of their old name must fail."""
    for made in Path("pylog/_native").rglob("*.so"):
        source = made.with_name(made.name.partition(".")[0])
        if not source.with_suffix(".pyx").exists():
            made.unlink()
            source.with_suffix(".c").unlink(missing_ok=True)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout + done.stderr, end="", flush=True)
    if done.returncode:
        raise SystemExit(f"build failed: {shlex.join(command)}")


def main() -> None:
    version = re.search(r'^__version__ = "(.+)"', Path("pylog/__init__.py").read_text(), re.M)[1]
    repository = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["pylog"]["repository"]
    setup(
        cmdclass={"bdist_wheel": bdist_wheel, "build_ext": build_ext, "build_py": build_py,
                  "sdist": sdist},
        long_description=readme(Path("README.md").read_text(), repository, version),
        long_description_content_type="text/markdown",
        project_urls=urls(repository, version),
        ext_modules=[
            Extension(path.removesuffix(".pyx").replace("/", "."), [path])
            for path in sorted(glob("pylog/_native/*/*.pyx"))
        ],
    )


if __name__ == "__main__":
    main()
