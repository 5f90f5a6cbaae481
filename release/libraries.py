"""Build the C libraries that wheels contain, as static archives for a target.

Owns: a folder for each target, with include/, lib/, licenses/ and components.json.
Invariants: all libraries come from Debian with its patches, so that a security update of Debian
is one of the wheels; Debian's archives use glibc's symbols, so all of them are built from source
for musl; a folder is complete or absent.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from release import components, openssl
from release.components import Component
from release.debian import Debian, run
from release.targets import Target

SUITE = "bookworm"
# Package: its source package, and its archive.
PACKAGES = {"liblz4-dev": ("lz4", "liblz4.a"), "libzstd-dev": ("libzstd", "libzstd.a"),
            "zlib1g-dev": ("zlib", "libz.a")}
# ISA-L's assembly files for aarch64 that Clang rejects.
GNU_ASSEMBLER = "aarch64-linux-gnu-gcc -D__ASSEMBLY__"
FLAGS = ["-O2", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE"]
# Parts that a TLS client or server does not need; brokerd requires TLS 1.2 or newer.
OPENSSL_WITHOUT = """aria async bf blake2 camellia cast cmp cms comp ct dtls engine gost idea legacy
    md4 mdc2 module ocb rc2 rc4 rc5 rmd160 seed shared siphash sm2 sm3 sm4 srp srtp ssl3 tests tls1
    tls1_1 ts ui-console whirlpool""".split()


def libraries(cache: Path, target: Target, jobs: int) -> Path:
    """Return the folder with include/, lib/ and the symbols that an extension exports. Builds it
    once.
    """
    made = cache / "libraries" / target.tag
    if made.exists():
        return made
    partial = made.with_name(f"{target.tag}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name in ("include", "lib"):
        (partial / name).mkdir(parents=True)
    debian = Debian(cache, SUITE, target.architecture)
    _snappy(debian.source("snappy"), partial, target)
    _isal(_copied(debian.source("libisal"), partial), partial, target, jobs)
    linked = [_from_source(debian, name) for name in ("snappy", "libisal")]
    if target.is_musl:
        for package, build in _BUILDS.items():
            build(_copied(debian.source(package), partial), partial, target, jobs)
            linked.append(_from_source(debian, package))
    else:
        linked += _taken(debian, partial, target)
        newer = Debian(cache, openssl.SUITE, target.architecture)
        openssl.taken(newer, partial, target.gnu)
        linked.append(_from_package(newer, "libssl-dev", "openssl"))
    import ziglang

    components.record(partial, linked + components.compiler_components(
        Path(ziglang.__file__).parent, metadata.version("ziglang")))
    shutil.rmtree(partial / "build")
    (partial / "exports.map").write_text("{ global: PyInit_*; local: *; };\n")
    partial.rename(made)  # Rename last: a folder must be complete or absent.
    return made


def _taken(debian: Debian, made: Path, target: Target) -> list[tuple[Component, Path]]:
    """Copy Debian's archives and headers. Return the components."""
    for package, (_, name) in PACKAGES.items():
        shutil.copy(debian.unpacked(package) / "usr/lib" / target.gnu / name, made / "lib")
    shutil.copytree(debian.files / "usr/include", made / "include", dirs_exist_ok=True)
    return [_from_package(debian, package, source) for package, (source, _) in PACKAGES.items()]


def _from_package(debian: Debian, package: str, source: str) -> tuple[Component, Path]:
    """Return the component of a binary package, with its licence."""
    return components.debian_component(
        source, debian.version(package), debian.suite,
        debian.unpacked(package) / "usr/share/doc" / package / "copyright")


def _from_source(debian: Debian, source: str) -> tuple[Component, Path]:
    """Return the component of a source package, with its licence."""
    return components.debian_component(source, debian.version(source), debian.suite,
                                       debian.source(source) / "debian/copyright")


def _copied(source: Path, made: Path) -> Path:
    """Return a source tree to build in; targets share the sources."""
    return Path(shutil.copytree(source, made / "build" / source.name))


def _archive(sources: list[Path], flags: list[str], archive: Path, target: Target,
             compiler: str = "cc") -> None:
    """Compile files into one archive."""
    folder = archive.with_suffix(".objects")
    folder.mkdir()
    objects = [folder / f"{number}-{source.stem}.o" for number, source in enumerate(sources)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda pair: run([*target.tool(compiler), *FLAGS, *flags, "-c",
                                        str(pair[0]), "-o", str(pair[1])]),
                      zip(sources, objects)))
    run([*target.tool("ar"), "rcs", str(archive), *map(str, objects)])
    shutil.rmtree(folder)


def _snappy(source: Path, made: Path, target: Target) -> None:
    """Build it for every target: Debian's archive needs gcc's C++ library."""
    public = made / "build-snappy"
    public.mkdir()
    text = (source / "snappy-stubs-public.h.in").read_text()
    for name, value in (("HAVE_SYS_UIO_H_01", "1"), ("PROJECT_VERSION_MAJOR", "1"),
                        ("PROJECT_VERSION_MINOR", "1"), ("PROJECT_VERSION_PATCH", "0")):
        text = text.replace("${" + name + "}", value)
    (public / "snappy-stubs-public.h").write_text(text)
    names = ("snappy", "snappy-c", "snappy-sinksource", "snappy-stubs-internal")
    _archive([source / f"{name}.cc" for name in names],
             ["-std=c++11", "-fno-exceptions", "-fno-rtti", "-DNDEBUG", "-DHAVE_BUILTIN_EXPECT=1",
              "-DHAVE_BUILTIN_CTZ=1", f"-I{public}", f"-I{source}"],
             made / "lib" / "libsnappy.a", target, "c++")
    shutil.copy(source / "snappy-c.h", made / "include")
    shutil.rmtree(public)


def _lz4(source: Path, made: Path, target: Target, jobs: int) -> None:
    _archive(sorted((source / "lib").glob("*.c")), ["-DXXH_NAMESPACE=LZ4_"],
             made / "lib" / "liblz4.a", target)
    _headers((source / "lib").glob("*.h"), made)


def _zstd(source: Path, made: Path, target: Target, jobs: int) -> None:
    folder = source / "lib"
    sources = [path for part in ("common", "compress", "decompress")
               for path in sorted((folder / part).glob("*.c"))]
    _archive(sources, ["-DZSTD_DISABLE_ASM=1", "-DXXH_NAMESPACE=ZSTD_", f"-I{folder}"],
             made / "lib" / "libzstd.a", target)
    _headers(folder.glob("*.h"), made)


def _zlib(source: Path, made: Path, target: Target, jobs: int) -> None:
    _archive(sorted(source.glob("*.c")), ["-DHAVE_UNISTD_H", "-DHAVE_HIDDEN"],
             made / "lib" / "libz.a", target)
    _headers([source / "zlib.h", source / "zconf.h"], made)


def _isal(source: Path, made: Path, target: Target, jobs: int) -> None:
    """Build it for every target: Debian has no archive of it."""
    command = ["make", "-f", "Makefile.unx", "lib", f"-j{jobs}", "units=crc igzip",
               f"host_cpu={target.machine}", f"arch={_isal_arch(target)}",
               "CFLAGS_=-fPIC -O2 -D_GNU_SOURCE"]
    tools = target.environment()
    run([*command, *[f"{name}={tools[name]}" for name in ("CC", "AR")],
         *([f"AS={GNU_ASSEMBLER}"] if target.machine == "aarch64" else [])], source)
    shutil.copy(source / "bin" / "isa-l.a", made / "lib" / "libisal.a")
    (made / "include" / "isa-l").mkdir()
    for path in (source / "include").glob("*.h"):
        shutil.copy(path, made / "include" / "isa-l")


def _isal_arch(target: Target) -> str:
    return "" if target.machine == "x86_64" else target.machine


def _openssl(source: Path, made: Path, target: Target, jobs: int) -> None:
    without = [f"no-{name}" for name in OPENSSL_WITHOUT]
    run(["perl", "Configure", target.openssl, "--prefix=/usr", "--openssldir=/etc/ssl",
         "--libdir=lib", "enable-ktls", "-fPIC", *without], source, **target.environment())
    run(["make", f"-j{jobs}", "build_libs"], source)
    for name in ("libssl.a", "libcrypto.a"):
        shutil.copy(source / name, made / "lib")
    shutil.copytree(source / "include" / "openssl", made / "include" / "openssl")


def _headers(found: Iterable[Path], made: Path) -> None:
    for path in found:
        shutil.copy(path, made / "include")


_BUILDS: dict[str, Callable[[Path, Path, Target, int], None]] = {
    "lz4": _lz4, "libzstd": _zstd, "zlib": _zlib, "openssl": _openssl}
