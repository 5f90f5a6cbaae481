"""An admin client with simulated brokers.

Owns: nothing.
"""

from types import SimpleNamespace

from pylog.client.admin.admin import Admin
from pylog.client.config.settings import ADMIN, Settings
from pylog.client.errors import KafkaError
from pylog.client.network.cluster_metadata import Node

TRIES_MAX = 5
CONTROLLER, COORDINATOR, LEADER, ANY = 1, 2, 3, None


class Cluster:
    """asked: (node, request, version or None), in order. answers: responses, in order; a callable
    gets the request. versions: request's name -> the brokers' version.
    """

    def __init__(self, *answers):
        self.asked, self.answers, self.versions, self.forgotten = [], list(answers), {}, []
        self.tries, self.may_create_topics, self.loop = 0, False, None
        self.placed = {}  # Group -> its coordinator.
        self.metadata = SimpleNamespace(
            nodes={id_: Node(id_, "h", 9, None) for id_ in (1, 2, 3)}, topics={}, cluster_id=None,
            controller=CONTROLLER)

    async def retry(self, attempt, timeout=None):
        """Retry without a pause, a limited number of times."""
        while True:
            self.tries += 1
            try:
                return await attempt()
            except KafkaError as error:
                if not error.retriable or self.tries == TRIES_MAX:
                    raise

    async def send(self, node, request, version=None):
        self.asked.append((node, request, version))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer

    async def send_any(self, request):
        return await self.send(ANY, request)

    async def controller(self):
        return CONTROLLER

    async def coordinator(self, kind, key):
        return COORDINATOR

    async def coordinators(self, kind, keys):
        return {key: self.placed.get(key, COORDINATOR) for key in keys}

    def forget_coordinator(self, kind, key):
        self.forgotten.append((kind, key))

    async def leader(self, topic, partition):
        return SimpleNamespace(leader=LEADER)

    async def connection(self, node, channel=None):
        async def send(request, version=None, timeout_s=None):
            return await self.send(node, request, version)

        return SimpleNamespace(send=send, version=lambda kind, most=99: min(
            most, self.versions.get(kind.__name__, most)))

    async def refresh(self):
        return self.metadata


def admin_of(*answers, **settings):
    """Return (Admin, its Cluster) whose brokers respond with `answers`."""
    made = Admin.__new__(Admin)
    made.settings = Settings(ADMIN, {"bootstrap.servers": "b:1", **settings})
    made._made = Cluster(*answers)
    return made, made._made
