"""Fetched data that the application has not read: a bounded queue between two threads.

Owns: fetched bytes until they are read; their frames return to the pool afterwards.
Invariants: items of one partition are read in offset order; items from an earlier epoch of their
  partition are dropped unread; `queued_bytes` counts unread record bytes, except those of paused
  partitions, which would block fetches of the others.
Source: librdkafka's queued.max.messages.kbytes, for the limit and its name.
"""

from __future__ import annotations

import collections
from typing import Any

from pylog._native.client.columns import Fetched
from pylog.client.consumer.subscription_state import PartitionState
from pylog.client.network.connection import Frame


class CompletedFetch:
    """The fetched bytes of one partition, or the error of its fetch."""

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
    """Queue of fetched data. Call `put` on the event loop, `head` and `done` on the reading thread.
    """

    def __init__(self, bytes_max: int, read_committed: bool, check_crc: bool):
        self.bytes_max = bytes_max
        self.read_committed = read_committed
        self.check_crc = check_crc
        self.items: collections.deque[CompletedFetch] = collections.deque()
        self.parked: list[CompletedFetch] = []  # Items of paused partitions.
        # Each counter has a single writer, so no lock is needed.
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
        """Return the next item, with `fetched` set unless it is an error; None if there is none.

        Drops items from an earlier epoch and parks items of paused partitions.
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
        """Remove the head: it was read completely, or is dropped."""
        popped = self.items.popleft()
        assert popped is item, "only the head is taken"
        self._bytes_out += len(item.data)
        self._release(item)

    def _release(self, item: CompletedFetch) -> None:
        item.fetched, item.data = None, b""
        frame, item.frame = item.frame, None
        if frame is not None:
            frame.users -= 1
            if not frame.users:
                frame.release()

    def sweep(self) -> None:
        """Drop parked items that are outdated. Call on the reading thread."""
        if not self.parked:
            return
        parked = []
        for item in self.parked:
            if item.epoch == item.state.epoch and not item.state.revoking:
                parked.append(item)
            else:
                self._release(item)
        self.parked = parked

    def unpark(self, state: PartitionState) -> None:
        """Queue a resumed partition's items again, in offset order. Call on the event loop."""
        mine = [item for item in self.parked if item.state is state]
        self.parked = [item for item in self.parked if item.state is not state]
        self._bytes_in += sum([len(item.data) for item in mine])
        self.items.extendleft(reversed(mine))

    def clear(self) -> None:
        """Release all items; nothing will be read any more."""
        while self.items:
            self.done(self.items[0])
        while self.parked:
            self._release(self.parked.pop())
