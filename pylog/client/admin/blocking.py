"""The blocking Admin client: every call of admin.Admin.

Owns: nothing; the methods are generated from the asyncio class.
Invariants: each public coroutine of admin.Admin has a method of the same name here.
Source: Kafka's Admin client.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from pylog.client.admin import admin
from pylog.client.admin.types import (
    AclBinding, AclFilter, AlterConfigOp, ConfigResource, NewTopic, OpType, QuotaAlteration,
    ResourceType, ScramDeletion, ScramUpsertion,
)
from pylog.client.background_loop import Driver
from pylog.client.config.configured import Configured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self, Unpack

    from pylog.client.options import AdminConfig, AdminOptions

__all__ = ["AclBinding", "AclFilter", "Admin", "AlterConfigOp", "ConfigResource", "NewTopic",
           "OpType", "QuotaAlteration", "ResourceType", "ScramDeletion", "ScramUpsertion"]
_OWN = {"start", "close"}


class Admin(Configured):
    """`with Admin(bootstrap_servers="…") as admin: admin.create_topics([NewTopic("t", 6)])`"""

    def __init__(self, config: AdminConfig | None = None, /, **more: Unpack[AdminOptions]):
        self._admin = admin.Admin(config, **more)
        self._driver = Driver.shared()
        self._driver.run(self._admin.start())

    def close(self) -> None:
        self._driver.close_client(self._admin.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Admin has no call {name!r}")


def _waited(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Admin, *given: Any, **more: Any) -> Any:
        return self._driver.run(method(self._admin, *given, **more))

    return call


for _name, _method in inspect.getmembers(admin.Admin, inspect.iscoroutinefunction):
    if not _name.startswith("_") and _name not in _OWN:
        setattr(Admin, _name, _waited(_method))
