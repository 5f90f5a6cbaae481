"""A controller node loads the complete metadata log, without a quorum."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.config import ConfigError, Settings, clusters
from pylog.log.errors import StartError
from pylog.metadata import controller_service
from pylog.metadata.controller_service import FEW_RECORDS, ControllerMember
from pylog.metadata.log.metadata_log import MetadataBatch
from pylog.metadata.quorum.quorum_log import PREFIX
from pylog.protocol import messages


def test_a_snapshot_of_the_quorum_is_read_from_the_beginning():
    """The log returns it at offset 0 and nowhere else."""
    record = messages.TopicRecord(name="t", topic_id=b"t" * 16)

    async def caught_up(end: int) -> None:
        assert end == FEW_RECORDS + 1

    member = ControllerMember.__new__(ControllerMember)
    member._node_id, member.election, member._member = 1, SimpleNamespace(catch_up=caught_up), None
    member._quorum = SimpleNamespace(read_view=lambda: SimpleNamespace(
        holder=None, end=FEW_RECORDS + 1, epoch=3))
    member._log = SimpleNamespace(
        end_offset=0, compared_to=lambda end: PREFIX, load_snapshot=lambda: True,
        read_committed=lambda offset: [MetadataBatch(6, 3, [record])] if offset == 0 else [])
    asyncio.run(member._reach_the_end())
    assert (member.tail.newest.offset, list(member.tail.newest.topics)) == (6, ["t"])


@pytest.mark.parametrize(("texts", "login"), [
    ({}, None), ({"quorum.etcd.username": "me", "quorum.etcd.password": "pw"}, ("me", "pw"))])
def test_login_of_an_external_etcd_is_configured(texts, login):
    assert controller_service._login(Settings(texts)) == login


def test_user_of_an_external_etcd_needs_a_password():
    with pytest.raises(ConfigError, match="quorum.etcd.password is not"):
        controller_service._login(Settings({"quorum.etcd.username": "me"}))


VOTER = {"controller.quorum.voters": "1@h:9093", "controller.listener.names": "CONTROLLER",
         "listeners": "PLAINTEXT://h:9092,CONTROLLER://h:9093",
         "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"}


@pytest.mark.parametrize("texts", [
    {"quorum.etcd.endpoints": "h:1", "quorum.etcd.prefix": "/mine"},
    {"quorum.zookeeper.connect": "h:1", "quorum.zookeeper.prefix": "/mine"}])
def test_keys_in_an_external_quorum_have_the_configured_prefix(monkeypatch, texts):
    monkeypatch.setattr(controller_service, "_zookeeper", lambda settings: None)
    member = ControllerMember.__new__(ControllerMember)
    member._settings, member._etcd_context = Settings({**VOTER, **texts}), None
    assert member._keys()[1] == "/mine"


def test_start_without_the_configured_etcd_names_its_command(tmp_path):
    settings = Settings({**VOTER, "log.dirs": str(tmp_path),
                         "quorum.etcd.command": "/nowhere/my-etcd"})
    member = ControllerMember.__new__(ControllerMember)
    member._settings, member._etcd_context, member._node_id = settings, None, 1
    member._voters = clusters.voters(settings)
    with pytest.raises(StartError, match="there is no /nowhere/my-etcd: install etcd"):
        member._new_member()
