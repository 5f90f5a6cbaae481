"""Models of the native fetchers and of the leader's side of replica fetches.

Owns: the pending requests to leaders.
Invariants: states, notices and pauses match csrc/replica/fetch_partition.c; single request: each
  connection has at most one pending request; leader's side: responses match csrc/serve/fetch.c;
  registration: nothing is fetched on the basis of an image older than this run's registration.
Source: csrc/replica, csrc/serve/fetch.c, csrc/serve/fetch_replicas.c.
"""

import asyncio
from collections import namedtuple

from pylog._native.log.log import LogError, Shortage, StorageError
from pylog._native.server import replica_fetcher
from tests.sim.logs import STORAGE_CODE
from tests.sim.loop import OWNER

REFUSED, DIVERGED = replica_fetcher.REFUSED, replica_fetcher.DIVERGED
OUT_OF_RANGE = replica_fetcher.OUT_OF_RANGE
FAILED, LOST = replica_fetcher.FAILED, replica_fetcher.LOST
THREADS_MAX = replica_fetcher.THREADS_MAX
BACKOFF_S, STOPS_MAX, STOPS_S = 0.05, 4, 1.0
RECORDS_MAX = 20  # Per partition and response, apart from the rest of the last batch.
OFFLINE, SHORT = -102, -109  # Values of csrc/log/log.h.

Notice = namedtuple("Notice", (
    "kind", "token", "code", "epoch", "end_offset", "leader_id", "leader_epoch"),
    defaults=(0, 0, -1, -1, -1, -1))
Ask = namedtuple("Ask", ("topic_id", "index", "leader_epoch", "offset", "last_epoch"))
FetchAsk = namedtuple("FetchAsk", ("number", "replica_id", "broker_epoch", "asks", "wait_s"))
FetchAnswer = namedtuple("FetchAnswer", ("number", "rows"))
Row = namedtuple("Row", ("error", "diverging", "records", "high_watermark"),
                 defaults=(None, (), -1))


class Followed:
    """A followed partition."""

    def __init__(self, log, topic_id, partition, leader_id, leader_epoch, token):
        self.log, self.topic_id, self.partition = log, topic_id, partition
        self.leader_id, self.leader_epoch, self.token = leader_id, leader_epoch, token
        self.state = "fetching"
        self.backoff_s = 0.0
        self.refused_code = self.stop_count = 0
        self.stopped_s = -STOPS_S
        self.stopped_at = None

    def figures(self) -> tuple:
        return 0, 0, 0

    def fetch_position(self) -> tuple:
        log = self.log
        return log.end_offset, log.epoch_of(log.end_offset - 1) if log.end_offset else -1


class Link:
    """A connection to a leader and its protocol."""

    def __init__(self, fetchers, leader_id):
        self.fetchers, self.leader_id = fetchers, leader_id
        self.end = None
        self.serial = 0
        self.number = 0
        self.flushing = False
        self.asked: list | None = None

    def data_received(self, answer) -> None:
        if answer.number == self.number and self.asked is not None:
            asked, self.asked = self.asked, None
            self.fetchers.answered(self, asked, answer.rows)

    def connection_lost(self, _) -> None:
        if self.end is not None:
            self.end = self.asked = None
            self.fetchers.post(Notice(LOST, self.serial))


class Fetchers:
    """Model of pylog._native.server.replica_fetcher.Fetchers."""

    def __init__(self, *, replica_id, wait_ms_max, backoff_ms_max, flush_first, **_):
        self._replica_id, self._wait_s = replica_id, wait_ms_max / 1000
        self._backoff_s, self._flush_first = backoff_ms_max / 1000, flush_first
        self._process = OWNER.get()
        self._loop = asyncio.get_running_loop()
        self._broker_epoch = -1
        self._links: dict = {}
        self._followed: list = []
        self._notices: list = []

    def start(self) -> None:
        pass

    stop = start

    def stats(self) -> dict:
        return {}

    def fileno(self) -> int:
        return id(self)

    def thread_of(self, topic_id, partition) -> int:
        return 0

    def set_broker_epoch(self, epoch) -> None:
        self._broker_epoch = epoch

    # ---- followed partitions --------------------------------------------------------------------

    def follow(self, log, topic_id, partition, leader_id, leader_epoch, token) -> Followed:
        followed = Followed(log, topic_id, partition, leader_id, leader_epoch, token)
        self._followed.append(followed)
        self._ask_later(leader_id)
        return followed

    def unfollow(self, followed) -> None:
        followed.state = "left"
        self._followed = [kept for kept in self._followed if kept is not followed]

    def resume(self, followed) -> None:
        if followed.state != "waiting":
            return
        if followed.fetch_position() != followed.stopped_at and followed.stop_count <= STOPS_MAX:
            self._fetch(followed)
        else:
            self._back_off(followed)

    def _fetch(self, followed) -> None:
        if followed.state != "left":
            followed.state = "fetching"
            self._ask_later(followed.leader_id)

    def _back_off(self, followed) -> None:
        followed.backoff_s = min(max(2 * followed.backoff_s, BACKOFF_S), self._backoff_s)
        followed.state = "backing off"
        self._loop.call_later(followed.backoff_s, self._fetch, followed)

    # ---- connections ----------------------------------------------------------------------------

    def attach(self, thread, leader_id, fd, version, serial, tls=None) -> None:
        before = self._links.get(leader_id)
        if before is not None:
            self.detach(thread, leader_id)
        link = self._links[leader_id] = Link(self, leader_id)
        link.end, link.serial = fd, serial
        fd.protocol = link
        if not fd.open:
            link.connection_lost(None)
        self._ask_later(leader_id)

    def detach(self, thread, leader_id) -> None:
        link = self._links.pop(leader_id, None)
        if link is not None and link.end is not None:
            end, link.end = link.end, None
            end.close()

    def _ask_later(self, leader_id) -> None:
        self._loop.call_soon(self._ask, leader_id)

    def _ask(self, leader_id) -> None:
        """Send the next request. Keeps the single request."""
        link = self._links.get(leader_id)
        if link is None or link.end is None or link.asked is not None:
            return
        asked = [followed for followed in self._followed
                 if followed.leader_id == leader_id and followed.state == "fetching"]
        if not asked:
            return
        if self._flush_first and any(
                followed.log.flushed_offset < followed.log.end_offset for followed in asked):
            if not link.flushing:
                link.flushing = True
                self._loop.call_later(self._process.flush_s(), self._flush, link, asked)
            return
        in_force = self._process.metadata.tail.published.offset
        assert self._broker_epoch <= in_force, (self._broker_epoch, in_force)  # Registration.
        link.asked, link.number = asked, link.number + 1
        link.end.write(FetchAsk(link.number, self._replica_id, self._broker_epoch, [Ask(
            followed.topic_id, followed.partition, followed.leader_epoch,
            *followed.fetch_position()) for followed in asked], self._wait_s))

    def _flush(self, link, asked) -> None:
        link.flushing = False
        for followed in asked:
            if followed.log.log_dir.offline:
                self._stop(followed, Notice(FAILED, followed.token, OFFLINE))
            else:
                followed.log.flush()
        self._ask(link.leader_id)

    # ---- responses ------------------------------------------------------------------------------

    def answered(self, link, asked, rows) -> None:
        for followed, row in zip(asked, rows):
            if followed.state == "fetching":
                self._take(followed, row)
        self._ask_later(link.leader_id)

    def _take(self, followed, row) -> None:
        if row.error == 1:
            self._stop(followed, Notice(OUT_OF_RANGE, followed.token))
        elif row.error:
            self._refuse(followed, row.error)
        elif row.diverging is not None:
            self._stop(followed, Notice(DIVERGED, followed.token, 0, *row.diverging))
        else:
            log = followed.log
            if log.closed or log.is_leader:
                return
            try:
                log.append_as_follower(row.records)
            except Shortage:
                self._refuse(followed, SHORT)
            except StorageError:
                self._stop(followed, Notice(FAILED, followed.token, OFFLINE))
            else:
                log.advance_high_watermark(row.high_watermark)
                followed.backoff_s, followed.refused_code = 0.0, 0

    def _refuse(self, followed, code) -> None:
        self._back_off(followed)
        if code != followed.refused_code:
            followed.refused_code = code
            self.post(Notice(REFUSED, followed.token, code))

    def _stop(self, followed, notice) -> None:
        followed.state, followed.stopped_at = "waiting", followed.fetch_position()
        now_s = self._loop.time()
        if now_s - followed.stopped_s > STOPS_S:
            followed.stopped_s, followed.stop_count = now_s, 0
        followed.stop_count += 1
        self.post(notice)

    def post(self, notice) -> None:
        self._notices.append(notice)
        self._loop.readable(self.fileno())

    def take(self) -> list:
        taken, self._notices = self._notices, []
        return taken


# ---- the leader's side --------------------------------------------------------------------------


def check_epochs(log, ask) -> tuple:
    """Return (error, diverging) as fetch_check_epochs() does."""
    epoch = log.leader_epoch
    if ask.leader_epoch >= 0 and ask.leader_epoch != epoch:
        return (74 if ask.leader_epoch < epoch else 75), None
    if not log.is_leader:
        return 6, None
    if ask.last_epoch < 0 or ask.last_epoch == epoch and ask.offset <= log.end_offset:
        return 0, None
    found, end = log.end_for_epoch(ask.last_epoch)
    if found < 0:
        return 1, None
    return 0, (found, end) if found < ask.last_epoch or end < ask.offset else None


def enter(log, ask, request, now_ns) -> tuple:
    """Record a follower's position from its fetch and return (error, True if it may join)."""
    error, diverging = check_epochs(log, ask)
    if error or diverging is not None:
        return error, False
    try:
        return 0, log.follower_at(request.replica_id, request.broker_epoch, ask.offset, 0, now_ns)
    except LogError as refused:
        return refused.code, False


def read(log, ask) -> Row:
    """Return the leader's response for one partition. Keeps the leader's side."""
    if log.log_dir.offline:
        return Row(STORAGE_CODE)
    error, diverging = check_epochs(log, ask)
    if error:
        return Row(error)
    if diverging is not None:
        return Row(0, diverging)
    if ask.offset > log.end_offset:
        return Row(1)
    known, end = log.files.records, ask.offset + RECORDS_MAX
    if end < len(known):
        end += known[end - 1].left
    return Row(0, None, known[ask.offset:end], log.high_watermark)
