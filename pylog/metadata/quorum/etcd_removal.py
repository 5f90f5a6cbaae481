"""Removes the etcd member of a controller that an operator has declared lost.

Owns: nothing.
Invariants:
    quorum kept: a majority of the other members answers before and after the removal.
    one at a time: no removal while another member is being replaced.
Source: KIP-853 (RemoveRaftVoter); etcd's runtime reconfiguration.
"""

from __future__ import annotations

from pylog.metadata.quorum.etcd_bootstrap import (
    Locked, NotReady, check_majority, healthy_count, hexadecimal, member_lock, member_name,
)
from pylog.metadata.quorum.key_value import KeysError, Unknown, Unreachable
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog.metadata.quorum.etcd import Etcd


class Seats:
    """connect: function from a list of "host:port" to an Etcd. addresses: {node id: address of its
    member}. prefix: of the cluster's keys.
    """

    def __init__(self, connect: Callable[[list], Etcd], addresses: dict, prefix: str):
        self._connect = connect
        self._addresses = addresses
        self._prefix = prefix

    def remove(self, node_id: int) -> str:
        """Remove that controller's member, even if it runs; return the member's id in hexadecimal.
        Blocks. Raises Refusal.
        """
        # The removed member would end before responding.
        client = self._connect([address for other, address in self._addresses.items()
                                if other != node_id])
        try:
            return self._remove(client, node_id)
        except Locked as error:
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT, str(error)) from None
        except NotReady as error:
            raise Refusal(ErrorCode.INVALID_REQUEST, str(error)) from None
        except (KeysError, Unknown, Unreachable) as error:
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT, f"etcd: {error}") from None
        finally:
            client.close()

    def _remove(self, client: Etcd, node_id: int) -> str:
        # Read through the quorum first: a single member's list may be outdated.
        client.get(self._prefix + "cluster.id")
        members = client.read("cluster/member/list", {}).get("members", [])
        found = next((row for row in members if row.get("name") == member_name(node_id)), None)
        if found is None:
            raise Refusal(ErrorCode.VOTER_NOT_FOUND,
                          f"controller {node_id} has no etcd member that has run: start brokerd "
                          "on its machine, with empty directories, to add one")
        with member_lock(client, self._prefix, members, member_name(node_id)) as lock:
            healthy = healthy_count(members, found, self._connect)
            check_majority(len(members), healthy)
            check_majority(len(members) - 1, healthy)
            lock.change("cluster/member/remove", {"ID": found["ID"]})
        return hexadecimal(found["ID"])
