"""Each setting that the catalogue marks `live` is read by some module and named by some test."""

import re
from pathlib import Path

from pylog.client.config.settings import TABLE
from pylog.config import catalogue, groups

TESTS = Path(__file__).resolve().parents[1]
PACKAGE = Path(catalogue.__file__).resolve().parents[1]
QUOTED = re.compile(r"""["']([a-z][a-z0-9.]*)["']""")

TABLES = {"config/catalogue.py", "config/document.py", "config/dynamic.py", "config/groups.py",
          "config/kafka_settings.py", "config/own_settings.py", "config/relations.py"}
# Client settings have the same names as some broker settings.
OTHERS = {"client", "testing", "tools"}
# Programs that brokerd starts, and the prefix of their settings.
PROGRAMS = {"console": "console.", "registry": "schema.registry."}


# Files that name settings without testing what they do.
LISTS = {"config/test_effects.py"}
# Files and folders that give settings without this prefix, as words of a dictionary or of a call.
PREFIXES = {"security/oauth/test_client_assertions.py": "sasl.oauthbearer.assertion.",
            "security/oauth/test_token_retriever.py": "sasl.oauthbearer.",
            "client": "", "registry": "schema.registry."}
NAME = re.compile(r"(?<![\w.-])[a-z0-9]+(?:[._][a-z0-9]+)+(?![\w-])")
WORD = re.compile(r"""["']([a-z0-9]+(?:\.[a-z0-9]+)*)["']|\b([a-z0-9]+(?:_[a-z0-9]+)*)=""")

# Live settings that no test names. Remove a name with its first test; never add one.
# Clients can use two-phase commit only through version 6 of InitProducerId, which is not offered.
BROKER_GAPS = {"transaction.two.phase.commit.enable"}


def names_read() -> set[str]:
    """Return quoted names in pylog, except in tables of names."""
    found = set()
    for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyx")]:
        inside = path.relative_to(PACKAGE)
        if inside.as_posix() not in TABLES and inside.parts[0] not in OTHERS:
            names = QUOTED.findall(path.read_text())
            # These have settings of the broker, and give their clients settings of clients.
            prefix = PROGRAMS.get(inside.parts[0], "")
            found |= {name for name in names if name.startswith(prefix)}
    return found


def test_live_settings_are_exactly_those_read():
    read = names_read()
    wrong = []
    for name in catalogue.topic_names():
        if (catalogue.topic(name).effect == "live") != (name in read):
            wrong.append(f"{name} of topics")
    through_topics = {synonym for name in catalogue.topic_names() if name in read
                      for synonym in catalogue.topic(name).synonyms}
    # A group setting is read by its name; its bounds take effect where it is set.
    read_of_groups = {name for name in groups.SYNONYMS if name in read}
    through_groups = {found for name in read_of_groups
                      for found in (groups.SYNONYMS[name], *groups.BOUNDS.get(name, ()))}
    for name in catalogue.broker_names():
        live = catalogue.broker(name).effect == "live"
        if live != (name in read or name in through_topics or name in through_groups):
            wrong.append(name)
    assert not wrong


def names_tested() -> set[str]:
    """Return names of settings in tests, also those with underscores for dots."""
    found = set()
    for path in TESTS.rglob("*.py"):
        inside = path.relative_to(TESTS).as_posix()
        if inside in LISTS:
            continue
        text = path.read_text()
        for name in NAME.findall(text):
            found.add(name)
            if name.startswith("listener.name."):  # A listener follows, and sometimes a mechanism.
                parts = name.split(".")
                found |= {".".join(parts[3:]), ".".join(parts[4:])}
        prefix = PREFIXES.get(inside, PREFIXES.get(inside.partition("/")[0]))
        if prefix is not None:
            found |= {prefix + (quoted or word.replace("_", "."))
                      for quoted, word in WORD.findall(text)}
    return found


def untested(names) -> set[str]:
    tested = names_tested()
    return {name for name in names if not {name, name.replace(".", "_")} & tested}


def test_listed_files_exist():
    assert [name for name in TABLES if not (PACKAGE / name).is_file()] == []
    assert [name for name in LISTS | PREFIXES.keys() if not (TESTS / name).exists()] == []


def test_every_live_broker_setting_is_named_by_a_test():
    live = {name for name in catalogue.broker_names() if catalogue.broker(name).effect == "live"}
    assert untested(live) == BROKER_GAPS


def test_every_client_setting_is_named_by_a_test():
    assert untested(setting.name for setting in TABLE) == set()


def test_name_in_another_name_is_not_a_test_of_it():
    assert set(NAME.findall('"a.b": 1, b_c=2, x.y.z')) == {"a.b", "b_c", "x.y.z"}
