"""A member of a classic group, with a simulated coordinator.

Owns: nothing.
Invariants: requests to the coordinator are recorded in `requests`, in order; there is no broker and
  only a virtual clock.
"""

from types import SimpleNamespace

from pylog.client.config.settings import CONSUMER, Settings
from pylog.client.consumer import classic_membership
from pylog.client.consumer.classic_membership import ClassicMembership, pack
from pylog.client.consumer.subscription_state import Subscription
from pylog.client.network.cluster import Cluster
from pylog.protocol import messages
from tests.client.played_consumer import ONE, picture

JOINED, SYNCED, BEATEN = (messages.JoinGroupResponse, messages.SyncGroupResponse,
                          messages.HeartbeatResponse)
REQUESTS = {messages.JoinGroupRequest: "join", messages.SyncGroupRequest: "sync",
            messages.HeartbeatRequest: "beat", messages.LeaveGroupRequest: "leave"}


def joined(generation=1, leader="other", code=0, member_id="m", **more):
    return JOINED(error_code=int(code), generation_id=generation, member_id=member_id,
                  leader=leader, protocol_name="range", **more)


def synced(*partitions, code=0):
    return SYNCED(error_code=int(code), assignment=pack(partitions))


class World:
    """The host and the coordinator. script: responses by the request's kind, in turn."""

    def __init__(self, clock, monkeypatch, topics=("t",), **settings):
        self.clock, self.polling, self.notices, self.calls = clock, False, 0, []
        self.settings = Settings(CONSUMER, **{
            "bootstrap_servers": "x:1", "group_id": "g", "retry_backoff_ms": 100,
            "retry_backoff_max_ms": 100, **settings})
        self.cluster = Cluster(self.settings)
        self.cluster.metadata = picture()
        self.forgotten, self.refreshes, self.version = 0, 0, 5
        self.cluster.forget_coordinator = self._forgot
        self.cluster.refresh = self._refreshed
        self.subscription = Subscription(True)
        self.subscription.subscribe(list(topics), None, None)
        self.script = {"join": [joined()], "sync": [synced(ONE)], "beat": [BEATEN()],
                       "leave": [messages.LeaveGroupResponse()]}
        self.requests = []
        self.replace = lambda ask: monkeypatch.setattr(classic_membership, "ask_coordinator", ask)
        self.replace(self.ask)
        self.one = ClassicMembership(self, "g")

    async def ask(self, cluster, group, build, channel="coordinator", timeout_s=None):
        assert (cluster, group) == (self.cluster, "g")
        request, _ = build(SimpleNamespace(version=lambda _: self.version))
        kind = REQUESTS[type(request)]
        self.requests.append((kind, request, channel, timeout_s))
        script = self.script[kind]
        found = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(found, Exception):
            raise found
        return found

    # The parts of its host that the member uses.

    def _forgot(self, *_):
        self.forgotten += 1

    async def _refreshed(self):
        self.refreshes += 1

    def notify(self):
        self.notices += 1

    async def call_listener(self, what, partitions):
        self.calls.append((what, partitions))

    async def commit_stored_by_listener(self):
        self.calls.append(("commit stored", None))

    async def commit_before_revoke(self):
        self.calls.append(("commit", [tp for tp, state in self.subscription.states.items()
                                      if state.revoking]))

    # Used by tests.

    def asked(self, kind):
        return [request for name, request, _, _ in self.requests if name == kind]

    def kinds(self):
        return [kind for kind, _, _, _ in self.requests]


def member_player(virtual_time, monkeypatch):
    """play_member(steps, **settings) runs steps(world, member) on a virtual clock."""
    clock = virtual_time(classic_membership)

    def play(steps, **settings):
        async def main():
            world = World(clock, monkeypatch, **settings)
            try:
                await steps(world, world.one)
            finally:
                await world.one.stop()

        clock.run(main())

    return play
