"""Each setting that the catalogue marks `live` is read by some module."""

import re
from pathlib import Path

from pylog.config import catalogue, groups

PACKAGE = Path(catalogue.__file__).resolve().parents[1]
QUOTED = re.compile(r"""["']([a-z][a-z0-9.]*)["']""")

TABLES = {"config/catalogue.py", "config/document.py", "config/dynamic.py", "config/groups.py",
          "config/kafka_settings.py", "config/own_settings.py", "config/relations.py",
          "security/outgoing.py"}
# Client settings have the same names as some broker settings.
OTHERS = {"client", "testing", "tools"}


def names_read() -> set[str]:
    """Return quoted names in pylog, except in tables of names."""
    found = set()
    for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyx")]:
        inside = path.relative_to(PACKAGE)
        if inside.as_posix() not in TABLES and inside.parts[0] not in OTHERS:
            found |= set(QUOTED.findall(path.read_text()))
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
