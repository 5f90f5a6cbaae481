from pathlib import Path

import pylog
from pylog.config import internal_topics
from pylog.config.settings import Settings


def test_internal_topic_names_are_defined_in_one_module():
    source = Path(internal_topics.__file__)
    assert [path for path in Path(pylog.__file__).parent.rglob("*.py") if path != source
            and any(f'"{name}"' in path.read_text() for name in internal_topics.NAMES)] == []


def test_each_internal_topic_has_a_setting_for_its_replicas():
    settings = Settings({})
    assert [settings[name] for name in internal_topics.FACTORS.values()] == [3, 3, 3]
