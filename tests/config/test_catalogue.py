from pylog.config import catalogue, values


def test_names_are_unique_and_sorted_in_each_table():
    for table in (catalogue.BROKER, catalogue.OWN, catalogue.TOPIC_DEFAULTS, catalogue.TOPIC_OWN):
        names = [row[0] for row in table]
        assert names == sorted(set(names))


def test_the_tables_hold_all_of_kafkas_settings():
    assert len(catalogue.BROKER) == 379
    assert len(set(catalogue.topic_names()) - catalogue.INTERNAL) == 37


def test_defaults_are_within_limits_and_survive_formatting():
    settings = [catalogue.broker(name) for name in catalogue.broker_names()]
    settings += [catalogue.topic(name) for name in catalogue.topic_names()]
    for setting in settings:
        values.check(setting, setting.default)
        if setting.default is not None:
            text = values.format_value(setting.default)
            assert values.parse(setting, text) == setting.default, setting.name


def test_every_row_describes_its_setting_in_one_short_line():
    for name in catalogue.broker_names():
        doc = catalogue.broker(name).doc
        assert doc.endswith(".") and "\n" not in doc and 10 < len(doc) < 110, (name, doc)


def test_types_modes_effects_and_importances_are_valid():
    for name in catalogue.broker_names():
        setting = catalogue.broker(name)
        assert setting.type in {"boolean", "string", "class", "password", "short", "int", "long",
                                "double", "list"}
        assert setting.dynamic in {"", "broker", "cluster"}
        assert setting.effect in {"live", "inert"}
        assert setting.importance in {"high", "medium", "low"}


def test_side_tables_name_only_settings_that_exist():
    known = set(catalogue.broker_names()) | set(catalogue.topic_names())
    assert set(catalogue.UNITS) <= known
    assert set(catalogue.KAFKA_DEFAULTS) <= known
    assert catalogue.INTERNAL <= known
    assert not set(catalogue.REMOVED) & known
    for _, synonyms in catalogue.TOPIC_DEFAULTS:
        assert set(synonyms) <= known


def test_a_unit_is_read_off_the_name_or_the_table():
    assert catalogue.broker("log.roll.ms").unit == "ms"
    assert catalogue.broker("log.cleaner.io.buffer.size").unit == "bytes"
    assert catalogue.broker("compression.type").unit == ""
