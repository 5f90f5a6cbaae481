"""A newer OpenSSL for a checkout: files taken from Debian's package, and errors."""

import subprocess
from types import SimpleNamespace

import pytest

from release import debian, openssl


def made_package(folder, gnu):
    """Create the files of libssl-dev; its archives contain a call that only a newer glibc provides.
    """
    library, include = folder / "usr/lib" / gnu, folder / "usr/include"
    library.mkdir(parents=True)
    source, compiled = folder / "one.c", folder / "one.o"
    source.write_text("long __isoc23_strtol(const char *, char **, int);\n"
                      "long read_number(const char *s) { return __isoc23_strtol(s, 0, 10); }\n")
    subprocess.run(["gcc", "-c", source, "-o", compiled], check=True)
    for name in openssl.ARCHIVES:
        subprocess.run(["ar", "rc", library / name, compiled], check=True)
    for path in (include / "openssl/ssl.h", include / gnu / "openssl/configuration.h"):
        path.parent.mkdir(parents=True)
        path.write_text("\n")
    return SimpleNamespace(unpacked={"libssl-dev": folder}.__getitem__)


def test_archives_require_only_older_systems_and_headers_are_complete(tmp_path):
    gnu, made = openssl.said("gcc", "-dumpmachine"), tmp_path / "made"
    (made / "lib").mkdir(parents=True)
    openssl.taken(made_package(tmp_path / "package", gnu), made, gnu)
    for name in openssl.ARCHIVES:
        wanted = openssl.said("nm", "-u", str(made / "lib" / name))
        assert "U strtol" in wanted and "isoc23" not in wanted
    assert {path.name for path in (made / "include/openssl").iterdir()} == {
        "ssl.h", "configuration.h"}


def test_missing_debian_tools_are_reported():
    with pytest.raises(SystemExit, match="is had from Debian, on Debian: .*no-such-tool"):
        openssl.said("no-such-tool")


def test_packages_come_with_the_updates_of_security(tmp_path, monkeypatch):
    def run(command, *_, **__):
        if "download" in command:
            raise SystemExit("no network here")

    monkeypatch.setattr(debian, "run", run)
    suite = debian.Debian(tmp_path, "trixie", "amd64")
    with pytest.raises(SystemExit):
        suite.unpacked("libssl-dev")
    listed = (suite.folder / "sources.list").read_text()
    assert " trixie main\n" in listed and "-security trixie-security main\n" in listed
