"""What a Node does to its broker on request: connections, relayed traffic, the disk.

Owns: the relay, while there is one.
Invariants: (1) clients see the same address all the time: while the relay has the broker's
  port, the broker listens on another one that nobody learns of, and it listens on its own port
  again at its next start, after a kill too.
Source: KIP-226 (listeners change while the broker runs).
"""

import os
import socket

from pylog._native.log import DISK_FULL, DISK_NO_SYNC, DISK_SYSTEM
from pylog.eventloop.threads import in_thread
from pylog.metadata.image.image import RESOURCE_BROKER
from pylog.protocol import api, messages
from pylog.testing import refusals
from pylog.testing.errors import BrokerFailed
from pylog.testing.relay import ANSWER_ERROR, Relay, Rule

DISKS = {"system": DISK_SYSTEM, "full": DISK_FULL, "no sync": DISK_NO_SYNC}
SET, DELETE = 0, 1
# Port 0: a broker that is killed meanwhile can always bind it at its next start.
HIDDEN = "PLAINTEXT://127.0.0.1:0"


class Disturbances:
    """broker: the pylog.broker.Broker. port: that clients know."""

    def __init__(self, broker, port: int, can_relay: bool):
        self._broker = broker
        self._port = port
        self._own_port = port     # Where the broker itself listens.
        self._can_relay = can_relay
        self._relay: Relay | None = None

    @property
    def port(self) -> int:
        """The port that clients know."""
        return self._port

    async def add_rule(self, kind: str, api_name, ms: int, count,
                       error_code: int) -> int:
        key = api_name if api_name is None or isinstance(api_name, int) else api_key(api_name)
        if kind == ANSWER_ERROR:
            refusals.check(key)
        relay = self._relay or await self._put_relay()
        return relay.add(Rule(kind, key, ms, count, error_code))

    def remove_rule(self, number: int) -> None:
        if self._relay is not None:
            self._relay.remove(number)

    def hits(self, number: int) -> int:
        return 0 if self._relay is None else self._relay.hits(number)

    async def _put_relay(self) -> Relay:
        if not self._can_relay:
            raise BrokerFailed("faults of the network need the listener that the broker has by "
                               "default: leave the setting `listeners` out")
        await self._alter_listener(SET, HIDDEN)
        self._relay = relay = await in_thread(Relay, self._port, self._own_port)
        return relay

    async def take_relay_away(self) -> None:
        """The broker has its port again."""
        if self._relay is not None:
            gone, self._relay = self._relay, None
            await in_thread(gone.close)
            await self._alter_listener(DELETE, None)
            if self._own_port != self._port:
                raise BrokerFailed(f"port {self._port} cannot be listened on")

    async def restore_after_kill(self) -> None:
        """Listens on the port of the settings when a kill left the listener moved. Keeps (1)."""
        node = RESOURCE_BROKER, str(self._broker.node_id)
        if self._broker.image.configs.get(node, {}).get("listeners") == HIDDEN:
            await self._alter_listener(DELETE, None)
            self._port = self._own_port

    async def _alter_listener(self, operation: int, value: str | None) -> None:
        new = messages.IncrementalAlterConfigsRequest
        request = new(resources=[new.AlterConfigsResource(
            resource_type=RESOURCE_BROKER, resource_name=str(self._broker.node_id),
            configs=[new.AlterableConfig(name="listeners", config_operation=operation,
                                         value=value)])])
        result, = await self._broker.controller.alter_configs(request, True)
        if result.error:
            raise BrokerFailed(f"the listener cannot be moved: {result.message}")
        await self._broker.publisher.registered()
        bound = [port for _, _, port in self._broker.network.addresses]
        if len(bound) != 1:
            raise BrokerFailed(f"the broker listens on {bound} in place of one port")
        self._own_port = bound[0]

    async def drop_connections(self) -> int:
        """Ends every connection of the broker and of the relay; how many clients' there were."""
        return await in_thread(_shut_down, self._port, self._own_port)

    def set_disk(self, kind: str) -> None:
        for directory in filter(None, self._broker.logs.directories):
            directory.set_disk(DISKS[kind])


def api_key(name: str) -> int:
    """The key of an API by Kafka's name for it: "Produce", "ListOffsets". Raises BrokerFailed."""
    wanted = name.replace("_", "").lower().removesuffix("request")
    for known, key in vars(api).items():
        if isinstance(key, int) and known.isupper() and known.replace("_", "").lower() == wanted:
            return key
    raise BrokerFailed(f"{name!r} is no API that the broker serves")


def _shut_down(known_port: int, own_port: int) -> int:
    """Ends the connections of this process whose local end has one of the ports.

    The descriptors belong to native threads, which learn of it as of any connection that ends: the
    broker needs no door for tests.
    """
    ended = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            # Sockets only: to close a copy of a lock file's descriptor would free the lock.
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            # A copy: the number may be another connection's by the time it is looked at.
            descriptor = os.dup(int(name))
        except OSError:
            continue
        with socket.socket(fileno=descriptor) as connection:
            ended += _shut_down_one(connection, {known_port, own_port}) == known_port
    return ended


def _shut_down_one(connection: socket.socket, ports: set) -> int | None:
    """The local port of the connection that was ended; None when it was none of these."""
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        connection.getpeername()
        port = connection.getsockname()[1]
        if port not in ports:
            return None
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return None
    return port
