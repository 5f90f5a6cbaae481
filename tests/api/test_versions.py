import asyncio

import pytest

from pylog._native.server.reactor import RequestContext
from pylog.protocol import api, messages
from tests.api.support import Broker, with_broker

NEW = messages.ApiVersionsRequest


def ask(version, **fields):
    async def scenario(broker):
        return await broker.ask(api.API_VERSIONS, version, NEW(**fields))
    return with_broker(scenario)


@pytest.mark.parametrize("version", range(6))
def test_served_apis_are_advertised_with_their_versions(version):
    answer = ask(version, client_software_name="test", client_software_version="1.0")
    ranges = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    assert answer.error_code == 0 and ranges == api.advertised()
    assert ranges[0] == (0, 13) and ranges[22] == (0, 5)


def test_handlers_and_served_apis_match():
    assert set(Broker().handlers()) | {api.PRODUCE, api.FETCH} == set(api.SERVED)


def test_features_are_returned_with_the_images_epoch():
    answer = ask(4, client_software_name="test", client_software_version="1.0")
    assert [(f.name, f.max_version_level) for f in answer.finalized_features] \
        == [("group.version", 1), ("metadata.version", 33), ("share.version", 2),
            ("streams.version", 1), ("transaction.version", 2)]
    assert answer.finalized_features_epoch >= 0
    assert [(f.name, f.min_version, f.max_version) for f in answer.supported_features] \
        == [("metadata.version", 7, 33), ("transaction.version", 0, 2), ("group.version", 0, 1),
            ("share.version", 0, 2), ("streams.version", 0, 1)]


def test_old_clients_get_no_minimum_level_of_0():
    answer = ask(3, client_software_name="test", client_software_version="1.0")
    assert [(f.name, f.min_version) for f in answer.supported_features] \
        == [("metadata.version", 7), ("transaction.version", 1), ("group.version", 1),
            ("share.version", 1), ("streams.version", 1)]


@pytest.mark.parametrize("name, version", [
    ("bad name", "1"), ("", "1"), ("x", ""), ("-x", "1"), ("x-", "1"), ("x", "1;2"), ("x\n", "1")])
def test_software_names_with_other_characters_are_rejected(name, version):
    answer = ask(3, client_software_name=name, client_software_version=version)
    assert answer.error_code == 42 and not answer.api_keys


@pytest.mark.parametrize(("cluster", "node", "error"), [
    (None, -1, 0), (True, 1, 0), (True, 2, 129), ("other", 1, 129), (None, 1, 42), (True, -1, 42)])
def test_request_for_another_node_or_cluster_is_rejected(cluster, node, error):
    async def scenario(broker):
        return await broker.ask(api.API_VERSIONS, 5, NEW(
            client_software_name="test", client_software_version="1.0", node_id=node,
            cluster_id=broker.cluster_id if cluster is True else cluster))
    answer = with_broker(scenario)
    assert answer.error_code == error and bool(answer.api_keys) == (error == 0)


def test_unknown_api_versions_version_gets_error_35_and_the_supported_range():
    context = RequestContext(token=1, api_key=api.API_VERSIONS, api_version=99)
    answer = Broker().handlers()[api.API_VERSIONS](context, None)
    assert not asyncio.iscoroutine(answer)
    assert answer.error_code == 35
    assert [(e.api_key, e.min_version, e.max_version) for e in answer.api_keys] == [(18, 0, 5)]
