"""The quorum's store: keys with values on several machines, changed in transactions.

Owns: nothing.
Invariants: a transaction is complete or absent, and its conditions hold when it is made; a change
  without a response raises Unknown and never looks like a rejection; the reads of one read_keys()
  see a state that is at least as new as the call, and later reads never see an older state than
  earlier ones.
Source: etcd's transactions, ZooKeeper's multi.
"""

from abc import ABC, abstractmethod
from collections import namedtuple

# Keys are paths; folders end with /. A name with this many digits is a number. Only folders of
# numbers may hold many names, for List and drop().
SORTED_DIGITS = 20

Is = namedtuple("Is", ("key", "value"))
Is.__doc__ = "The condition that a key has this value."
Absent = namedtuple("Absent", ("key",))
Absent.__doc__ = "The condition that the key does not exist."
Put = namedtuple("Put", ("key", "value", "lease"), defaults=(0,))
Put.__doc__ = "The change that sets a key; it is deleted with its lease."
Delete = namedtuple("Delete", ("key",))
Delete.__doc__ = "The change that removes a key, if it exists."
Get = namedtuple("Get", ("key",))
Get.__doc__ = "A read of one key: a list of one Row, or an empty one."
List = namedtuple("List", ("folder", "first", "count_max"))
List.__doc__ = "A read of a folder: Rows of names from `first` on in order, without a gap."

Row = namedtuple("Row", ("key", "value"))
TransactionResult = namedtuple("TransactionResult", ("succeeded", "rows"))
TransactionResult.__doc__ = \
    "The result of a transaction. rows: of the reads, if a condition did not hold."

MemberState = namedtuple("MemberState", (
    "address", "answers", "leads", "version", "stored_bytes", "reason", "seconds"),
    defaults=(0.0,))
MemberState.__doc__ = """The status of a machine that stores the keys, as seen by this node.

answers: True if it responds. stored_bytes: on its disk, -1 if unknown. reason: the error, "" if
there is none. seconds: duration of the check.
"""


class KeysError(Exception):
    """A member rejected the call."""


class Full(KeysError):
    """The store is full until an operator frees space."""


class Unreachable(Exception):
    """No member answered; nothing was changed."""


class Unknown(Exception):
    """No response arrived: the change may have been made, or may still be made."""


class Keys(ABC):
    """Calls raise Unreachable and KeysError; changes also raise Unknown."""

    name = ""
    addresses: list
    # Maximum of one value, with room for a transaction's other parts.
    value_bytes_max = 0

    @abstractmethod
    def close(self) -> None:
        """Disconnect; keys put with a lease may be removed immediately."""

    @abstractmethod
    def state_of(self, address: str) -> MemberState:
        """Return the state of one member, on a separate connection. Never raises."""

    @abstractmethod
    def read_keys(self, reads) -> list:
        """Return a list of Rows for each Get and List, in order. Reads are monotonic."""

    def get(self, key: str) -> Row | None:
        """Return one key's row, None without one."""
        rows = self.read_keys([Get(key)])[0]
        return rows[0] if rows else None

    @abstractmethod
    def transact(self, conditions, changes, reads=()) -> TransactionResult:
        """Make all changes if all conditions hold, else none, and return the looks."""

    @abstractmethod
    def drop(self, conditions, folder: str, below: str) -> bool:
        """Delete the folder's names below `below`, lowest first; a failure may leave some. Returns
        False if the conditions do not hold.
        """

    @abstractmethod
    def grant(self, ttl_s: int) -> int:
        """Return a new lease for this node's puts."""

    @abstractmethod
    def keep_alive(self, lease: int) -> int:
        """Renew a lease; return its remaining seconds, 0 if it expired."""

    @abstractmethod
    async def watch(self, folder: str, wake) -> None:
        """Call wake() whenever keys of a folder may have changed, until cancelled."""
