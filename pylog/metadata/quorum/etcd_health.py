"""The health of one etcd member, as that member reports it.

Owns: nothing.
Invariants: a member counts as healthy only if it has a leader and reports no alarm; no response
  raises an exception.
Source: etcd's API v3, Maintenance.Status: a member's own state, without the other members.
"""

from __future__ import annotations

import http.client
import json
import re

from pylog.metadata.quorum.key_value import MemberState

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable

ACTIVE_PEERS = re.compile(
    r'^etcd_network_active_peers\{.*Remote="([0-9a-f]+)".*\} (\d+)', re.MULTILINE)

NO_LEADER = "it has no leader: it cannot reach the other members"


def state_of(address: str, connect: Callable[[], http.client.HTTPConnection],
             token: str) -> MemberState:
    """Return a member's state. connect: creates a connection, not connected yet. token: of a login,
    or "".
    """
    connection = connect()
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = token
    try:
        connection.request("POST", "/v3/maintenance/status", "{}", headers)
        response = connection.getresponse()
        document = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        return MemberState(address, False, False, "", -1, str(error) or type(error).__name__)
    finally:
        connection.close()
    return understood(address, response.status, document)


def active_peers(connect: Callable[[], http.client.HTTPConnection]) -> dict[str, bool] | None:
    """Return {member id in hexadecimal: True if this member is connected to it}, None if it does
    not answer or has no such metric.
    """
    connection = connect()
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    found = {match[1]: match[2] != "0" for match in ACTIVE_PEERS.finditer(text)}
    return found or None


def understood(address: str, status: int, response: object) -> MemberState:
    """Parse a status response. Never raises."""
    if status != http.client.OK or not isinstance(response, dict):
        return MemberState(address, False, False, "", -1, f"HTTP {status}: {response}")
    header = response.get("header")
    own = header.get("member_id") if isinstance(header, dict) else None
    leader, errors = response.get("leader"), response.get("errors")
    reasons = [str(error) for error in errors] if isinstance(errors, list) else []
    if not leader or leader == "0":
        reasons = [NO_LEADER]
    size = str(response.get("dbSize", "0"))
    return MemberState(
        address, not reasons, leader is not None and leader == own,
        str(response.get("version", "")),
        int(size) if size.isascii() and size.isdigit() else -1, "; ".join(reasons))
