"""Licences and the bill of materials of the libraries that a wheel contains."""

import json
import re
import sys
import types

import pytest

from release import components, libraries, wheels
from release.targets import TARGETS

LINKED = {"openssl", "lz4", "libzstd", "zlib", "snappy", "libisal", "libcxx", "zig"}
TARGET = TARGETS["manylinux_2_28_x86_64"]


@pytest.fixture
def linked(tmp_path, monkeypatch):
    """Return the folder of a target's libraries, built from a stub of Debian."""
    class Debian:
        def __init__(self, folder, suite, architecture):
            self.suite = suite
            self.files = tmp_path / suite

        def unpacked(self, package):
            for name in (f"usr/share/doc/{package}/copyright", "usr/include/x.h",
                         f"usr/lib/{TARGET.gnu}/{libraries.PACKAGES.get(package, '?x')[1]}"):
                (self.files / name).parent.mkdir(parents=True, exist_ok=True)
                (self.files / name).write_text(f"licence of {package}")
            return self.files

        def source(self, package):
            (self.files / package / "debian").mkdir(parents=True, exist_ok=True)
            (self.files / package / "debian/copyright").write_text(f"licence of {package}")
            return self.files / package

        def version(self, package):
            return f"1:2.3+{package}"

    zig = tmp_path / "ziglang"
    (zig / "lib/libcxx").mkdir(parents=True)
    for name in ("LICENSE", "lib/libcxx/LICENSE.TXT"):
        (zig / name).write_text(name)
    module = types.ModuleType("ziglang")
    module.__file__ = str(zig / "__init__.py")
    monkeypatch.setitem(sys.modules, "ziglang", module)
    monkeypatch.setattr(libraries.metadata, "version", lambda name: "0.17")
    monkeypatch.setattr(libraries, "Debian", Debian)
    monkeypatch.setattr(libraries.openssl, "taken", lambda debian, *rest: None)
    for name in ("_snappy", "_isal"):
        monkeypatch.setattr(libraries, name, lambda *arguments: None)
    return libraries.libraries(tmp_path / "cache", TARGET, 1)


def test_every_linked_library_has_its_licence_text(linked):
    texts = {path.name.removeprefix("LICENSE."): path.read_text()
             for path in (linked / "licenses").iterdir()}
    assert set(texts) == LINKED
    assert texts["openssl"] == "licence of libssl-dev" and texts["snappy"] == "licence of snappy"


def test_every_archive_that_extensions_link_is_a_component():
    """setup.py lists the archives; libcxx and zig are parts of the compiler."""
    text = (wheels.ROOT / "setup.py").read_text()
    [names] = re.findall(r"^NAMES = \((.+)\)$", text, re.M)
    of_archive = {"ssl": "openssl", "crypto": "openssl", "isal": "libisal", "zstd": "libzstd",
                  "z": "zlib"}
    archives = re.findall(r'"(\w+)"', names)
    assert {of_archive.get(name, name) for name in archives} == LINKED - {"libcxx", "zig"}
    assert LINKED == set(components.EXPRESSIONS)


def test_bill_of_materials_has_the_linked_versions_and_origins(linked):
    found = components.recorded(linked)
    bill = json.loads(components.bill_of_materials(found, "0.1.0", "cp311", 1_700_000_000))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    parts = {part["name"]: part for part in bill["components"]}
    assert set(parts) == LINKED
    assert parts["openssl"]["version"] == "1:2.3+libssl-dev"
    assert parts["openssl"]["purl"] == (
        "pkg:deb/debian/openssl@1%3A2.3%2Blibssl-dev?arch=source&distro=trixie")
    assert parts["zlib"]["purl"].endswith("&distro=bookworm")
    assert bill["dependencies"] == [{"ref": "pkg:pypi/pylog-broker@0.1.0",
                                     "dependsOn": [part["purl"] for part in bill["components"]]}]


def test_bill_of_materials_of_one_build_is_always_the_same(linked):
    found = components.recorded(linked)
    first, again, later = (components.bill_of_materials(found, "0.1.0", "cp311", time)
                           for time in (1, 1, 2))
    assert first == again != later


def test_tree_of_a_wheel_gets_the_licences_of_its_target_only(linked, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "LICENSE").touch()
    (tree / "LICENSE.other").touch()
    (tree / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: pylog-broker\nVersion: 0.1.0\n")
    bill = wheels.add_components(tree, linked, tmp_path / "base", "cp311")
    assert {path.name for path in tree.glob("LICENSE*")} == {
        "LICENSE", *[f"LICENSE.{name}" for name in LINKED]}
    assert json.loads(bill.read_text())["metadata"]["component"]["version"] == "0.1.0"
