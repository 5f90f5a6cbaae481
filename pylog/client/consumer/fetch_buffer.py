"""What was fetched and waits for the application: a bounded queue between two threads.

Owns: the fetched bytes until they are read; their frames go back to the pool afterwards.
Invariants: (1) items of one partition are taken in the order of their offsets; (2) what belongs to
  an earlier epoch of its partition is dropped unread; (3) `queued_bytes` counts record bytes that
  were put in and not yet read to their end, but for those of paused partitions, which would keep
  the others from being fetched.
Source: librdkafka's queued.max.messages.kbytes, for the bound and its name.
"""

from __future__ import annotations

import collections
from typing import Any

from pylog._native.columns import Fetched
from pylog.client.consumer.subscription_state import PartitionState
from pylog.client.network.connection import Frame


class CompletedFetch:
    """The fetched bytes of one partition, or the error that its fetch ended with."""

    __slots__ = ("aborted", "bytes_left", "data", "epoch", "error", "fetched", "frame", "start",
                 "state")

    def __init__(self, state: PartitionState, data: Any, aborted: list[tuple[int, int]],
                 frame: Frame | None, error: Exception | None = None):
        self.state = state
        self.epoch = state.epoch
        self.start = state.fetch_position
        self.data = data
        self.bytes_left = len(data)  # Not handed out yet.
        self.aborted = aborted
        self.frame = frame
        self.error = error
        self.fetched: Fetched | None = None


class FetchBuffer:
    """`put` on the event loop, `head` and `done` on the thread that takes."""

    def __init__(self, bytes_max: int, read_committed: bool, check_crc: bool):
        self.bytes_max = bytes_max
        self.read_committed = read_committed
        self.check_crc = check_crc
        self.items: collections.deque[CompletedFetch] = collections.deque()
        self.parked: list[CompletedFetch] = []  # Of paused partitions.
        # One writer each: no lock is needed.
        self._bytes_in = 0
        self._bytes_out = 0

    @property
    def queued_bytes(self) -> int:
        return self._bytes_in - self._bytes_out

    @property
    def room_bytes(self) -> int:
        return self.bytes_max - self.queued_bytes

    def put(self, items: list[CompletedFetch]) -> None:
        self._bytes_in += sum([len(item.data) for item in items])
        self.items.extend(items)

    def head(self) -> CompletedFetch | None:
        """The next item to read, with `fetched` set unless it is an error; None: nothing is there.

        Keeps (2). What belongs to a paused partition is put aside.
        """
        items = self.items
        while items:
            item = items[0]
            state = item.state
            if item.epoch != state.epoch or state.revoking:
                self.done(item)
                continue
            if state.paused:
                self.parked.append(items.popleft())
                self._bytes_out += len(item.data)
                continue
            if item.fetched is None and item.error is None:
                item.fetched = Fetched(
                    item.data, source=state.source, next_offset=item.start, aborted=item.aborted,
                    read_committed=self.read_committed, check_crc=self.check_crc)
            return item
        return None

    def done(self, item: CompletedFetch) -> None:
        """The head was read to its end, or is dropped."""
        popped = self.items.popleft()
        assert popped is item, "only the head is taken"
        self._bytes_out += len(item.data)
        self._let_go(item)

    def _let_go(self, item: CompletedFetch) -> None:
        item.fetched, item.data = None, b""
        frame, item.frame = item.frame, None
        if frame is not None:
            frame.users -= 1
            if not frame.users:
                frame.release()

    def sweep(self) -> None:
        """Drops what was put aside and is void by now. On the thread that takes."""
        if not self.parked:
            return
        parked = []
        for item in self.parked:
            if item.epoch == item.state.epoch and not item.state.revoking:
                parked.append(item)
            else:
                self._let_go(item)
        self.parked = parked

    def unpark(self, state: PartitionState) -> None:
        """A partition was resumed. Keeps (1). On the event loop."""
        mine = [item for item in self.parked if item.state is state]
        self.parked = [item for item in self.parked if item.state is not state]
        self._bytes_in += sum([len(item.data) for item in mine])
        self.items.extendleft(reversed(mine))

    def clear(self) -> None:
        """Lets go of everything: nothing will be read any more."""
        while self.items:
            self.done(self.items[0])
        while self.parked:
            self._let_go(self.parked.pop())
