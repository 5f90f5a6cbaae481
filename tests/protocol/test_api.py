"""Served APIs, and their description."""

from pylog.protocol import api, tables


def test_served_versions_exist_and_are_stable():
    for key, (low, high) in api.SERVED.items():
        for kind in ("request", "response"):
            table = tables.message(tables.name_of(kind, key))
            assert table.versions[0] <= low <= high <= table.versions[1] - table.unstable
        assert "broker" in tables.message(tables.name_of("request", key)).listeners


def test_old_produce_versions_are_advertised_and_rejected():
    assert api.advertised()[api.PRODUCE] == (0, 13)
    assert not api.is_served(api.PRODUCE, 2)
    assert api.is_served(api.PRODUCE, 3)


def test_unserved_apis_are_not_advertised():
    assert sorted(api.advertised()) == sorted(api.SERVED)
    assert not api.is_served(4, 0)
