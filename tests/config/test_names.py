"""Every setting named by docs, messages and code exists."""

import ast
import re
from pathlib import Path

import pytest

from pylog.client.config import aliases
from pylog.client.config import settings
from pylog.config import catalogue, groups

ROOT = Path(__file__).resolve().parents[2]
DOCS = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md",
        *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name != "messages.md")]
KNOWN = {*catalogue.broker_names(), *catalogue.rate_names(), *catalogue.topic_names(),
         *groups.names(),
         *groups.subscription_names(), *catalogue.REMOVED, *catalogue.PLUGIN,
         *settings.ROWS}
# Settings of other clients: their name parts do not identify our settings.
THEIRS = {*aliases.ALIASES, *aliases.UNITS, *aliases.WITHOUT_EFFECT}
# Names that end like a setting, with their meaning.
OTHERS = {
    "metadata.version": "a feature", "transaction.version": "a feature",
    "group.version": "a feature", "kraft.version": "a feature",
    "eligible.leader.replicas.version": "a feature", "share.version": "a feature",
    "streams.version": "a feature", "num.standby.replicas": "what records call a setting",
    "cluster.id": "in meta.properties", "directory.id": "in meta.properties",
    "schema.registry.url": "an option of the Spark source",
    "schema.registry.basic.auth.user.info": "an option of the Spark source",
    "rlmm.config": "a prefix of a plug-in's settings", "rsm.config": "a prefix too",
    "memory.max": "a file of cgroups", "ca.key": "a file",
    "messaging.client.id": "OpenTelemetry's", "messaging.destination.name": "OpenTelemetry's",
    "messaging.system": "OpenTelemetry's",
    "spark.python.unix.domain.socket.enabled": "Spark's own",
}
KNOWN |= catalogue.FORMER_NAMES.keys()
FIRST = {".".join(name.split(".")[:2]) for name in KNOWN if name.count(".") > 1}
LAST = {name.rpartition(".")[2] for name in KNOWN}
NAME = re.compile(r"(?<![\w./:@<$-])[a-z][a-z0-9]*(?:\.[a-z0-9]+)+(?![\w/<*-]|\.\w)")
QUOTED = re.compile(r"`([^`\n]+)`")


def is_known(name: str) -> bool:
    """Return True for a setting, or the beginning or end of one."""
    # The Spark source takes Kafka's settings with this prefix.
    name = name.removeprefix("kafka.")
    return name in KNOWN or name in THEIRS or any(
        other.endswith(f".{name}") or other.startswith(f"{name}.") for other in KNOWN)


def is_module(name: str) -> bool:
    """Return True for a module of the tree, or something in one."""
    parts = name.split(".")
    return any((ROOT / top).joinpath(*parts[:count]).with_suffix(end).exists()
               for top in ("", "pylog", "pylog/tools") for end in (".py", ".pyx", "")
               for count in (len(parts), len(parts) - 1) if count)


def strangers(text: str) -> list[str]:
    """Return names in a text that look like a setting but do not exist."""
    return [name for name in NAME.findall(text)
            if (name.rpartition(".")[2] in LAST or ".".join(name.split(".")[:2]) in FIRST)
            and name not in OTHERS and not is_known(name) and not is_module(name)]


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_docs_name_only_existing_settings(path):
    quoted = "\n".join(QUOTED.findall(path.read_text()))
    assert strangers(quoted) == []


def test_messages_and_code_name_only_existing_settings():
    found = {}
    for path in sorted((ROOT / "pylog").rglob("*.py")):
        words = [word for node in ast.walk(ast.parse(path.read_text()))
                 if isinstance(node, ast.Constant) and isinstance(node.value, str)
                 for word in strangers(node.value)]
        if words:
            found[str(path.relative_to(ROOT))] = words
    assert found == {}


@pytest.mark.parametrize("name", ["log.segment.byte", "log.retention.day.ms", "client.timeout.ms",
                                  "max.connection.per.ip"])
def test_unknown_setting_is_reported(name):
    assert strangers(f"`{name}=3` and set {name} to 3.") == [name, name]
