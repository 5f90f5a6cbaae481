"""Generates docs/reference/settings.md and topic-settings.md from the catalogue.

Owns: nothing; the document is generated, never edited.
Invariants: the same tables generate the same bytes.
"""

import sys
from pathlib import Path

from . import catalogue, groups, values

_INTRODUCTION = """\
# Broker settings

Generated from the tables of `pylog/config` by `make docs`; do not edit.

brokerd needs no settings. You can pass a Kafka `server.properties`, with Kafka's names and units,
and `--override key=value`, which takes precedence. `brokerd config explain KEY` describes one
setting and its value. `brokerd config list` lists them all. brokerd does not start with an unknown
name, and suggests the nearest valid one. It logs a warning for a setting of Kafka that has no
effect in pylog. [Topic and group settings](topic-settings.md) are on a separate page.

Importance is high for settings that most installations change, or must know.

- `listeners=PLAINTEXT://localhost:9092`, the default, serves this machine only, without
  authentication. `PLAINTEXT://:9092`, Kafka's default, listens on every interface; port 0 takes a
  free one, which the ready line names.
- You can leave out `advertised.listeners`. Clients then get the host of the listener, and on a
  listener for every interface the address that they connected to.
- `process.roles` is `broker,controller` or unset: both run in one process. `controller` alone
  serves brokers elsewhere, on the listeners named in `controller.listener.names`; `broker` alone
  joins the cluster of the controllers in `controller.quorum.voters`.

The column "changes" shows when you can change a value: only at the start, or while the broker runs
(`pylog configs set`), for one broker or for the cluster. A change takes effect at once, also on
topics without a setting of their own.
"""
_TOPICS = """\
# Topic and group settings

Generated from the tables of `pylog/config` by `make docs`; do not edit.

Set them when you create a topic (`pylog topics create orders --set retention.ms=3600000`) or later
(`pylog configs set topic orders retention.ms=3600000`). A topic without a value uses the broker
setting in the column "default from".

## Topic settings
"""
_GROUPS = """\
`pylog configs set group shop share.auto.offset.reset=earliest` changes a setting of a group. Each
value must lie within the broker's `min` and `max` settings of that name.
"""
# Most installations change these, or must know their values.
IMPORTANT = frozenset("""
    node.id process.roles log.dirs listeners advertised.listeners inter.broker.listener.name
    controller.quorum.voters controller.listener.names num.partitions auto.create.topics.enable
    default.replication.factor min.insync.replicas offsets.topic.replication.factor
    transaction.state.log.replication.factor unclean.leader.election.enable message.max.bytes
    log.retention.hours log.retention.ms log.retention.bytes log.segment.bytes
    log.flush.acks.all.enable replica.flush.before.fetch.enable metrics.listener metrics.token
    authorizer.class.name sasl.enabled.mechanisms security.inter.broker.protocol
    ssl.keystore.location ssl.truststore.location ssl.client.auth audit.log.file
    cleanup.policy max.message.bytes retention.ms retention.bytes segment.bytes
    share.auto.offset.reset""".split())
_FORMER_NAMES = """\
Four of these settings were renamed in 0.1.0. A former name still works until the next release, and
brokerd logs a warning that contains the new name. Setting both names is an error.

| former name | name |
|---|---|
"""
_CHANGES = {"": "start", "broker": "per broker", "cluster": "cluster"}


def document() -> str:
    """Return the text of docs/reference/settings.md."""
    own = [row[0] for row in catalogue.OWN]
    shown = [name for name in catalogue.broker_names() if name not in catalogue.INTERNAL]
    kafkas = [catalogue.broker(name) for name in shown if name not in own]
    former = [f"| {old} | {new} |" for old, new in sorted(catalogue.FORMER_NAMES.items())]
    parts = [_INTRODUCTION, "## pylog's own\n", _table(catalogue.broker(name) for name in own),
             _FORMER_NAMES + "\n".join(former) + "\n",
             "## Settings of the authorizer\n",
             "| setting | effect |\n|---|---|\n" + "\n".join(
                 _row(name, text) for name, text in catalogue.PLUGIN.items()) + "\n",
             "## Broker settings in effect\n",
             _table(setting for setting in kafkas if setting.effect == "live"),
             "## Settings of Kafka without effect\n",
             _table(setting for setting in kafkas if setting.effect == "inert")]
    return "\n".join(parts)


def topics() -> str:
    """Return the text of docs/reference/topic-settings.md."""
    return "\n".join([_TOPICS, _topic_table(), "## Group settings\n", _GROUPS, _group_table()])


def _importance(name: str) -> str:
    return "high" if name in IMPORTANT else ""


def _table(settings) -> str:
    lines = ["| setting | importance | type | default | allowed | changes | effect |",
             "|---|---|---|---|---|---|---|"]
    for setting in settings:
        lines.append(_row(setting.name, _importance(setting.name), _type(setting),
                          _default(setting),
                          values.allowed(setting), _CHANGES[setting.dynamic], setting.doc))
    return "\n".join(lines) + "\n"


def _group_table() -> str:
    lines = ["| setting | importance | type | default from | default | allowed | effect |",
             "|---|---|---|---|---|---|---|"]
    for name in groups.names():
        setting = groups.group(name)
        lines.append(_row(name, _importance(name), _type(setting), ", ".join(setting.synonyms),
                          _default(setting),
                          values.allowed(setting), setting.doc))
    return "\n".join(lines) + "\n"


def _topic_table() -> str:
    lines = ["| setting | importance | type | default from | default | allowed | supported "
             "| effect |", "|---|---|---|---|---|---|---|---|"]
    for name in catalogue.topic_names():
        setting = catalogue.topic(name)
        if name not in catalogue.INTERNAL:
            lines.append(_row(name, _importance(name), _type(setting), ", ".join(setting.synonyms),
                          _default(setting),
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
    folder = Path(sys.argv[1])
    (folder / "settings.md").write_text(document())
    (folder / "topic-settings.md").write_text(topics())
