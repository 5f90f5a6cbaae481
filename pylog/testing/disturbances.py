"""Faults that a Node injects into its broker: connections, relayed traffic, disk.

Owns: the relay, while there is one.
Invariants: clients always see the same address. While the relay uses the broker's port, the broker
  listens on another, unadvertised port; after the next start, even after a kill, it listens on its
  original port again.
Source: KIP-226 (listeners change while the broker runs).
"""

import os
import socket

from pylog._native.log.log import DISK_FULL, DISK_NO_SYNC, DISK_SYSTEM
from pylog.eventloop.threads import in_thread
from pylog.metadata.image.image import RESOURCE_BROKER
from pylog.protocol import api, messages
from pylog.testing import refusals
from pylog.testing.errors import BrokerFailed
from pylog.testing.relay import ANSWER_ERROR, Relay, Rule

DISKS = {"system": DISK_SYSTEM, "full": DISK_FULL, "no sync": DISK_NO_SYNC}
SET, DELETE = 0, 1
# Port 0 can always be bound at the next start, even if the broker is killed in between.
HIDDEN = "PLAINTEXT://127.0.0.1:0"


class Disturbances:
    """Injects faults. broker: the pylog.broker.Broker. port: the advertised port."""

    def __init__(self, broker, port: int, can_relay: bool):
        self._broker = broker
        self._port = port
        self._own_port = port  # The broker's current port.
        self._can_relay = can_relay
        self._relay: Relay | None = None

    @property
    def port(self) -> int:
        """Return the advertised port."""
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
        """Remove the relay and move the broker back to its port."""
        if self._relay is not None:
            gone, self._relay = self._relay, None
            await in_thread(gone.close)
            await self._alter_listener(DELETE, None)
            if self._own_port != self._port:
                raise BrokerFailed(f"port {self._port} cannot be listened on")

    async def restore_after_kill(self) -> None:
        """Move the listener back to the configured port if a kill left it moved."""
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
        """Close all connections of the broker and the relay; return the number of client
        connections.
        """
        return await in_thread(_shut_down, self._port, self._own_port)

    def set_disk(self, kind: str) -> None:
        for directory in filter(None, self._broker.logs.directories):
            directory.set_disk(DISKS[kind])


def api_key(name: str) -> int:
    """Return the key of an API by Kafka's name: "Produce", "ListOffsets". Raises BrokerFailed."""
    wanted = name.replace("_", "").lower().removesuffix("request")
    for known, key in vars(api).items():
        if isinstance(key, int) and known.isupper() and known.replace("_", "").lower() == wanted:
            return key
    raise BrokerFailed(f"{name!r} is not an API of the broker")


def _shut_down(known_port: int, own_port: int) -> int:
    """Close this process's connections with one of these local ports.

    The descriptors belong to native threads, which handle this like any closed connection. So the
    broker needs no hook for tests.
    """
    ended = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            # Sockets only: closing a copy of a lock file's descriptor would release the lock.
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            # A copy, because the descriptor number may be reused for another connection.
            descriptor = os.dup(int(name))
        except OSError:
            continue
        with socket.socket(fileno=descriptor) as connection:
            ended += _shut_down_one(connection, {known_port, own_port}) == known_port
    return ended


def _shut_down_one(connection: socket.socket, ports: set) -> int | None:
    """Shut down the connection and return its local port, or None if it is not in `ports`."""
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
