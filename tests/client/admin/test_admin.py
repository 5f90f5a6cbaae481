"""Requests of the admin client, without a broker."""

import asyncio
from types import SimpleNamespace

from pylog.client.admin import groups as admin_groups
from pylog.client.admin.admin import Admin
from pylog.client.admin.groups import Groups


def test_request_timeout_is_the_calls_remaining_time_and_at_least_one_ms():
    admin = Admin.__new__(Admin)
    admin.settings = {"request.timeout.ms": 30_000}
    assert [admin._timeout_ms(timeout) for timeout in (None, 2.5, 0.001, 0, 1e9)] == [
        30_000, 2500, 1, 1, 30_000]


def test_members_are_removed_by_instance_or_member_id(monkeypatch):
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
