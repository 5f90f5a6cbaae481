"""Record the public Python API, so that every change of it shows in a comparison: `make docs`.

Owns: release/public_api.txt, which has one line for each public name.
Invariants: the record comes from the sources by griffe, not from imports; the same sources give the
  same bytes; a class is recorded with the public members that it inherits within pylog.
Source: the names that `__all__` lists in MODULES.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).with_name("public_api.txt")
MODULES = ("pylog.client", "pylog.client.aio", "pylog.client.errors",
           "pylog.client.serialization", "pylog.testing")


def recorded(root: Path = ROOT) -> str:
    """Return the text of the record for the sources below root."""
    loader = griffe.GriffeLoader(search_paths=[str(root)], allow_inspection=False)
    package: Any = loader.load(root / "pylog")
    lines = ["# The public API: a release keeps it, or names the change in CHANGELOG.md. Written "
             "by `make docs`."]
    for name in MODULES:
        module = package[name.removeprefix("pylog.")]
        for member in sorted(module.exports or _own(module)):
            lines += _lines(f"{name}.{member}", module.members.get(str(member)))
    return "\n".join(lines) + "\n"


def _own(module: Any) -> list[str]:
    """Return the public names that a module without __all__ defines itself."""
    return [name for name, member in module.members.items()
            if not name.startswith("_") and not member.is_alias]


def _lines(path: str, member: Any) -> list[str]:
    """Return the line of a member, and those of a class's public members."""
    try:
        found = member.final_target if member.is_alias else member
    except (AttributeError, griffe.AliasResolutionError):
        return [path]  # It is created when it is first used, or belongs to another package.
    if found.is_function:
        return [path + _signature(one) for one in found.overloads or [found]]
    if not found.is_class:
        return [path]
    inner = [line for name, one in sorted(found.all_members.items())
             if not name.startswith("_") or name == "__init__"
             if (one.final_target if one.is_alias else one).path.startswith("pylog.")
             for line in _lines(f"{path}.{name}", one)]
    bases = ", ".join(str(base) for base in found.bases)
    return [f"{path}({bases})" if bases else path, *inner]


def _signature(function: Any) -> str:
    """Return the parameters and the result of a function."""
    parts: list[str] = []
    seen = None
    for one in function.parameters:
        kind = one.kind
        if seen is griffe.ParameterKind.positional_only and kind is not seen:
            parts.append("/")
        if kind is griffe.ParameterKind.keyword_only and "*" not in "".join(
                part[:1] for part in parts):
            parts.append("*")
        mark = {griffe.ParameterKind.var_positional: "*",
                griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        text = mark + one.name + (f": {one.annotation}" if one.annotation else "")
        parts.append(text if one.default is None or mark else f"{text} = {one.default}")
        seen = kind
    if seen is griffe.ParameterKind.positional_only:
        parts.append("/")
    result = f" -> {function.returns}" if function.returns else ""
    return f"({', '.join(parts)}){result}"


if __name__ == "__main__":
    RECORD.write_text(recorded())
    sys.exit(0)
