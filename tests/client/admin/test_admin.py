"""Requests of the admin client, without a broker."""

import asyncio
from types import SimpleNamespace

from pylog.client.admin import groups as admin_groups
from pylog.client.admin.admin import Admin
from pylog.client.admin.groups import Groups


def test_a_request_has_the_milliseconds_of_its_call_and_at_least_one():
    admin = Admin.__new__(Admin)
    admin.settings = {"request.timeout.ms": 30_000}
    assert [admin._timeout_ms(timeout) for timeout in (None, 2.5, 0.001, 0, 1e9)] == [
        30_000, 2500, 1, 1, 30_000]


def test_members_leave_by_the_id_of_the_instance_or_their_own(monkeypatch):
    asked = []

    async def ask(cluster, group, made):
        asked.append(made(SimpleNamespace(version=lambda kind: 5))[0])
        return SimpleNamespace(error_code=0, members=[])

    async def retry(attempt, timeout):
        await attempt()

    monkeypatch.setattr(admin_groups, "ask_coordinator", ask)
    groups = Groups.__new__(Groups)
    groups.cluster = SimpleNamespace(retry=retry)
    asyncio.run(groups.remove_members("g", ["i", "j"], ["m"]))
    assert asked[0].group_id == "g"
    assert [(one.group_instance_id, one.member_id) for one in asked[0].members] == [
        ("i", ""), ("j", ""), (None, "m")]
