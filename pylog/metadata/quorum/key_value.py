"""What a quorum is kept in: keys with values on several machines, changed only all together or not
at all.

Owns: nothing.
Invariants: (1) a transaction is whole or absent, and its conditions hold when it is made; (2) a
  change that was not answered raises Unknown and never looks like a refusal; (3) what is looked at
  together is at least as new from one look to the next, and as new as the call.
Source: etcd's transactions, ZooKeeper's multi.
"""

from abc import ABC, abstractmethod
from collections import namedtuple

# Keys are paths, folders end with /. A name of so many digits is a number, of which List and drop()
# take more than a few in a folder.
SORTED_DIGITS = 20

Is = namedtuple("Is", ("key", "value"))
Is.__doc__ = "The condition that a key has this value."
Absent = namedtuple("Absent", ("key",))
Absent.__doc__ = "The condition that there is no such key."
Put = namedtuple("Put", ("key", "value", "lease"), defaults=(0,))
Put.__doc__ = "The change that sets a key; it goes with its lease."
Delete = namedtuple("Delete", ("key",))
Delete.__doc__ = "The change that removes a key which may be there."
Get = namedtuple("Get", ("key",))
Get.__doc__ = "A look at one key: a list of one Row, or none."
List = namedtuple("List", ("folder", "first", "count_max"))
List.__doc__ = "A look at a folder: Rows of names from `first` on in order, without a gap."

Row = namedtuple("Row", ("key", "value"))
Answered = namedtuple("Answered", ("succeeded", "rows"))
Answered.__doc__ = "Of a transaction. rows: of the looks where the conditions did not hold."

MemberState = namedtuple("MemberState", (
    "address", "answers", "leads", "version", "stored_bytes", "reason", "seconds"),
    defaults=(0.0,))
MemberState.__doc__ = """One of the machines that keep the keys, as this node reaches it.

answers: whether it can be used. stored_bytes: on its disk, -1 where it does not say. reason: what
is wrong, "" when nothing is. seconds: what it took to know that.
"""


class KeysError(Exception):
    """A member answered that it cannot do this."""


class Full(KeysError):
    """There is no room for anything more until an operator makes some."""


class Unreachable(Exception):
    """No member answered; nothing was changed."""


class Unknown(Exception):
    """The answer did not come: the change was made, or will be, or not."""


class Keys(ABC):
    """Calls raise Unreachable and KeysError; those that change something Unknown as well (2)."""

    name = ""
    addresses: list
    # Of one value, with room for a transaction's other parts.
    value_bytes_max = 0

    @abstractmethod
    def close(self) -> None:
        """Hangs up; what was put with a lease may go at once."""

    @abstractmethod
    def state_of(self, address: str) -> MemberState:
        """How one member is, asked on a connection of its own. Never raises."""

    @abstractmethod
    def look(self, looks) -> list:
        """A list of Rows for each Get and List, in order. Keeps (3)."""

    def get(self, key: str) -> Row | None:
        """One key's row, None without one."""
        rows = self.look([Get(key)])[0]
        return rows[0] if rows else None

    @abstractmethod
    def transact(self, conditions, changes, looks=()) -> Answered:
        """Makes all changes if all conditions hold; looks where they do not. Keeps (1)."""

    @abstractmethod
    def drop(self, conditions, folder: str, below: str) -> bool:
        """Removes the folder's names below that one, from the lowest on; some may be gone when it
        fails. False: the conditions do not hold."""

    @abstractmethod
    def grant(self, ttl_s: int) -> int:
        """A lease for this node's puts."""

    @abstractmethod
    def keep_alive(self, lease: int) -> int:
        """The seconds that the lease has from now on; 0: it is gone."""

    @abstractmethod
    async def watch(self, folder: str, stir) -> None:
        """Calls stir() whenever keys of a folder may have changed, until cancelled."""
