"""Settings in the form of DescribeConfigs: value, source, synonyms, type, documentation.

Owns: nothing.
Invariants: the value of a password or of a setting of unknown type is never shown; synonyms are
  ordered by precedence, and the first is the source.
Source: KIP-133, KIP-226, KIP-569; orders and omissions as in Kafka 4.4.
"""

from collections import namedtuple
from weakref import WeakKeyDictionary

from . import catalogue, dynamic, groups, topics, values

(UNKNOWN, TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT, LOGGER, SUBSCRIPTION,
 GROUP) = range(9)
TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7,
         "class": 8, "password": 9}

Entry = namedtuple("Entry", ("name", "value", "read_only", "source", "sensitive", "synonyms",
                             "type", "doc"))
Entry.__doc__ = ("One setting of a resource; synonyms: (name, text, source) tuples, highest "
                 "precedence first.")


def of_broker(settings, wanted=None) -> list[Entry]:
    """Return the settings of this broker."""
    known = {name for name in catalogue.broker_names() if name not in catalogue.INTERNAL}
    names = known | settings.texts.keys() | settings.dynamic_cluster.keys() \
        | settings.dynamic_own.keys()
    return [_of_broker(settings, name, settings.value(name), True)
            for name in _chosen(names, wanted)]


def of_cluster(settings, wanted=None) -> list[Entry]:
    """Return the dynamic settings of all brokers."""
    return [_of_broker(settings, name, settings.dynamic_cluster[name], False)
            for name in _chosen(settings.dynamic_cluster, wanted)]


def of_topic(settings, own: dict, wanted=None) -> list[Entry]:
    """Return all settings of a topic. own: its overrides as text."""
    typed = topics.usable(own)
    names = [name for name in catalogue.topic_names()
             if name in typed or catalogue.is_shown(name)]
    inherited = _inherited(settings)
    return [_of_topic(settings, name, typed[name], True) if name in typed else inherited[name]
            for name in _chosen(names, wanted)]


def _inherited(settings) -> dict[str, Entry]:
    """Return the entries of a topic without overrides, which many topics share."""
    defaults = settings.topic_defaults()
    known, found = _inherited_of.get(settings, (None, None))
    if known is not defaults:
        found = {name: _of_topic(settings, name, value, False) for name, value in defaults.items()}
        _inherited_of[settings] = defaults, found
    return found


_inherited_of: WeakKeyDictionary = WeakKeyDictionary()


def _of_topic(settings, name: str, value, is_own: bool) -> Entry:
    setting = catalogue.topic(name)
    below = broker_synonyms(settings, setting.synonyms[0]) if setting.synonyms else []
    return _entry(setting, value, is_own, TOPIC, below)


def of_group(settings, own: dict, wanted=None) -> list[Entry]:
    """Return all settings of a group. own: its overrides as text."""
    own = groups.usable(own)
    effective = groups.group_config(own, settings)
    found = []
    names = [name for name in groups.names()
             if name in own or catalogue.is_shown(groups.SYNONYMS.get(name, name))]
    for name in _chosen(names, wanted):
        setting = groups.group(name)
        below = broker_synonyms(settings, setting.synonyms[0]) if setting.synonyms else \
            [(name, values.format_value(setting.default), DEFAULT)]
        found.append(_entry(setting, effective[name], name in own, GROUP, below))
    return found


def of_subscription(own: dict, wanted=None) -> list[Entry]:
    """Return all settings of a client metrics subscription. own: its overrides as text."""
    found = []
    for name in _chosen(groups.subscription_names(), wanted):
        setting = groups.subscription(name)
        value = values.parse(setting, own[name]) if name in own else setting.default
        found.append(_entry(setting, value, name in own, SUBSCRIPTION, []))
    return found


def broker_synonyms(settings, name: str, sensitive: bool = False) -> list[tuple]:
    """Return possible sources of a broker setting's value: (name, text, source), highest precedence
    first.
    """
    members = dynamic.family(name)
    found = []
    for texts, source in ((settings.dynamic_own, DYNAMIC_BROKER),
                          (settings.dynamic_cluster, DYNAMIC_DEFAULT), (settings.texts, STATIC)):
        found += [(member, texts[member], source) for member in members if member in texts]
    for member in members:
        if catalogue.is_broker(member) and catalogue.broker(member).default is not None:
            found.append((member, values.format_value(catalogue.broker(member).default), DEFAULT))
    # Kafka omits synonyms before the setting's own name.
    while found and found[0][0] != name:
        del found[0]
    return [(member, None, source) for member, _, source in found] if sensitive else found


def _chosen(names, wanted) -> list[str]:
    return sorted(name for name in names if not wanted or name in wanted)


def _of_broker(settings, name: str, value, all_layers: bool) -> Entry:
    setting = dynamic.setting(name)
    # Also hide settings of unknown type, which may be secrets.
    sensitive = setting is None or setting.type == "password"
    synonyms = broker_synonyms(settings, name, sensitive)
    if not all_layers:
        synonyms = [synonym for synonym in synonyms if synonym[2] == DYNAMIC_DEFAULT]
    return Entry(
        name, None if sensitive else _text(value),
        not (catalogue.is_broker(name) and catalogue.broker(name).dynamic),
        synonyms[0][2] if synonyms else DEFAULT, sensitive, synonyms,
        TYPES[setting.type] if setting is not None else UNKNOWN,
        setting.doc if setting is not None else None)


def _entry(setting, value, is_own: bool, own_source: int, below: list) -> Entry:
    text = _text(value)
    synonyms = ([(setting.name, text, own_source)] if is_own else []) + below
    return Entry(setting.name, text, False, synonyms[0][2] if synonyms else DEFAULT, False,
                 synonyms, TYPES[setting.type], setting.doc)


def _text(value) -> str | None:
    return None if value is None else values.format_value(value)
