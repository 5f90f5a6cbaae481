"""Record the components that a wheel contains: their licences, and a bill of materials.

Owns: components.json and licenses/ in the folder of a target's libraries.
Invariants: versions and licence texts belong to the files that were linked, because they are read
from the same packages; the same components give the same bytes.
Source: PEP 639 (licence files), PEP 770 (bills of materials), CycloneDX 1.6, package URLs.
"""

from __future__ import annotations

import datetime
import json
import shutil
import uuid
from pathlib import Path
from typing import NamedTuple

LISTING = "components.json"
LICENSES = "licenses"
# Name: its licence (SPDX). Debian's source packages have these names.
EXPRESSIONS = {
    "openssl": "Apache-2.0", "lz4": "BSD-2-Clause", "libzstd": "BSD-3-Clause",
    "zlib": "Zlib", "snappy": "BSD-3-Clause", "libisal": "BSD-3-Clause",
    "libcxx": "Apache-2.0 WITH LLVM-exception", "zig": "MIT",
}


class Component(NamedTuple):
    """origin: a package URL. version: Debian's, with the revision that has its security patches."""

    name: str
    version: str
    origin: str


def debian_component(name: str, version: str, suite: str, licence: Path) -> tuple[Component, Path]:
    """Return a library of a Debian suite. name: of the source package; licence: its text."""
    quoted = version.replace(":", "%3A").replace("+", "%2B")
    origin = f"pkg:deb/debian/{name}@{quoted}?arch=source&distro={suite}"
    return Component(name, version, origin), licence


def compiler_components(zig: Path, version: str) -> list[tuple[Component, Path]]:
    """Return what the compiler links: the C++ library of snappy, and its own runtime.

    zig: the folder of the package `ziglang`.
    """
    origin = f"pkg:pypi/ziglang@{version}"
    return [(Component("libcxx", f"zig-{version}", f"{origin}#lib/libcxx"),
             zig / "lib/libcxx/LICENSE.TXT"),
            (Component("zig", version, origin), zig / "LICENSE")]


def record(folder: Path, found: list[tuple[Component, Path]]) -> None:
    """Write the listing and the licence texts of all components into `folder`."""
    texts = folder / LICENSES
    texts.mkdir()
    for component, licence in found:
        shutil.copyfile(licence, texts / f"LICENSE.{component.name}")
    listed = sorted(component for component, _ in found)
    (folder / LISTING).write_text(json.dumps([one._asdict() for one in listed], indent=1))


def recorded(folder: Path) -> list[Component]:
    return [Component(**row) for row in json.loads((folder / LISTING).read_text())]


def bill_of_materials(components: list[Component], version: str, target: str, time: int) -> str:
    """Return a CycloneDX document. target: the wheel's tag. time: of the build, in seconds."""
    seed = json.dumps([version, target, time, components])
    built = datetime.datetime.fromtimestamp(time, datetime.UTC)
    root = f"pkg:pypi/pylog-broker@{version}"
    parts = [{
        "type": "library", "bom-ref": one.origin, "name": one.name, "version": one.version,
        "purl": one.origin, "scope": "required",
        "licenses": [{"expression": EXPRESSIONS[one.name]}],
    } for one in components]
    return json.dumps({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, seed)}",
        "metadata": {
            "timestamp": built.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "application", "bom-ref": root, "name": "pylog-broker",
                          "version": version, "purl": root,
                          "licenses": [{"expression": "Apache-2.0"}],
                          "properties": [{"name": "pylog:wheel", "value": target}]}},
        "components": parts,
        "dependencies": [{"ref": root, "dependsOn": [one.origin for one in components]}],
    }, indent=1) + "\n"
