"""Generates docs/reference/settings.md from the catalogue.

Owns: nothing; the document is generated, never edited.
Invariants: the same tables generate the same bytes.
"""

import sys

from . import catalogue, groups, values

_INTRODUCTION = """\
# Settings

Generated from the tables of `pylog/config` by `make docs`; do not edit.

brokerd takes a Kafka `server.properties` with Kafka's names and units, and `--override key=value`
on top of it. It needs neither. `brokerd config explain KEY` describes one setting and its value,
`brokerd config list` lists them all. An unknown key stops the start and names the nearest valid
one; a known one without effect in pylog gives a warning.

- `listeners=PLAINTEXT://localhost:9092`, the default, serves this machine only, without
  authentication. `PLAINTEXT://:9092`, Kafka's default, listens on every interface; port 0 takes a
  free one, which the ready line names.
- You can leave out `advertised.listeners`. Clients then get the host of the listener, and on a
  listener for every interface the address that they connected to.
- `process.roles` is `broker,controller` or unset: both run in one process. `controller` alone
  serves brokers elsewhere, on the listeners named in `controller.listener.names`; `broker` alone
  joins the cluster of the controllers in `controller.quorum.voters`.

"Changes" says when a value may change: at start only, or while the broker runs, per broker or
cluster-wide too (`kafka-configs`). A change is saved in the metadata log and takes effect at once,
also on topics without a setting of their own.
"""
_GROUPS = """\
Saved and shown for `kafka-configs --entity-type groups`; each lies within the broker's `min` and
`max` settings of that name. The groups that use them are not served yet.
"""
_CHANGES = {"": "start", "broker": "per broker", "cluster": "cluster"}


def document() -> str:
    """Return the text of docs/reference/settings.md."""
    own = [row[0] for row in catalogue.OWN]
    shown = [name for name in catalogue.broker_names() if name not in catalogue.INTERNAL]
    kafkas = [catalogue.broker(name) for name in shown if name not in own]
    parts = [_INTRODUCTION, "## pylog's own\n", _table(catalogue.broker(name) for name in own),
             "## Broker settings in effect\n",
             _table(setting for setting in kafkas if setting.effect == "live"),
             "## Topic settings\n", _topic_table(),
             "## Group settings\n", _GROUPS, _group_table(),
             "## Broker settings known, without effect yet\n",
             _table(setting for setting in kafkas if setting.effect == "inert")]
    return "\n".join(parts)


def _table(settings) -> str:
    lines = ["| setting | type | default | allowed | changes | what it does |",
             "|---|---|---|---|---|---|"]
    for setting in settings:
        lines.append(_row(setting.name, _type(setting), _default(setting),
                          values.allowed(setting), _CHANGES[setting.dynamic], setting.doc))
    return "\n".join(lines) + "\n"


def _group_table() -> str:
    lines = ["| setting | type | default from | default | allowed | what it does |",
             "|---|---|---|---|---|---|"]
    for name in groups.names():
        setting = groups.group(name)
        lines.append(_row(name, _type(setting), ", ".join(setting.synonyms), _default(setting),
                          values.allowed(setting), setting.doc))
    return "\n".join(lines) + "\n"


def _topic_table() -> str:
    lines = ["| setting | type | default from | default | allowed | in effect | what it does |",
             "|---|---|---|---|---|---|---|"]
    for name in catalogue.topic_names():
        setting = catalogue.topic(name)
        if name not in catalogue.INTERNAL:
            lines.append(_row(name, _type(setting), ", ".join(setting.synonyms), _default(setting),
                              values.allowed(setting),
                              "yes" if setting.effect == "live" else "not yet", setting.doc))
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(setting) -> str:
    return f"{setting.type}, {setting.unit}" if setting.unit else setting.type


def _default(setting) -> str:
    text = values.format_value(setting.default) or "unset"
    if setting.kafka_default == setting.default:
        return text
    kafka = values.format_value(setting.kafka_default).strip("<>")
    return f"{text} (Kafka: {kafka})"


if __name__ == "__main__":
    with open(sys.argv[1], "w") as file:
        file.write(document())
