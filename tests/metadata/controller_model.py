"""A simulated controller on a socket: observers replicate a metadata log that the test writes."""

import asyncio

from pylog._native.records import batch
from pylog.metadata.image import snapshot
from pylog.protocol import codec, messages
from pylog.protocol.errors import ErrorCode

NOW_MS = 1_700_000_000_000
FETCH, FETCH_SNAPSHOT, API_VERSIONS = 1, 59, 18


class ModelController:
    """batches: [(base offset, epoch, bytes)]. `requests`: the rows of Fetch requests, in order,
    `waits`: their maximum wait times, in ms. `leader`: (id, epoch) in responses; if the id is not
    `node_id`, they have error 6.
    """

    def __init__(self, node_id: int = 1, epoch: int = 1):
        self.node_id = node_id
        self.leader = node_id, epoch
        self.batches: list = []
        self.end = self.high_watermark = self.start = 0
        self.snapshot: tuple | None = None       # (end offset, epoch, bytes)
        self.part_bytes = 1 << 20
        self.requests: list = []
        self.waits: list = []
        self.port = 0
        self.bad: list = []  # Rows to return first.
        self._server: asyncio.Server | None = None

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    def write(self, *records, epoch: int | None = None, committed: bool = True) -> None:
        """Append one batch of metadata records."""
        data = batch.build([(None, snapshot.encoded(record), NOW_MS, ()) for record in records],
                           base_offset=self.end,
                           leader_epoch=self.leader[1] if epoch is None else epoch)
        self.batches.append((self.end, self.leader[1] if epoch is None else epoch, data))
        self.end += len(records)
        if committed:
            self.high_watermark = self.end

    def cut(self, offset: int) -> None:
        """Replace the log from `offset` on, like a new controller."""
        self.batches = [entry for entry in self.batches if entry[0] < offset]
        self.end = offset

    def become_snapshot(self, image, folder: str, epoch: int) -> None:
        """Start the log where a snapshot of `image` ends."""
        end = image.offset + 1
        snapshot.write(folder, snapshot.records_of(image), end, epoch, NOW_MS)
        path, _, _ = snapshot.newest(folder)
        with open(path, "rb") as file:
            self.snapshot = end, epoch, file.read()
        self.start = end
        self.batches = [entry for entry in self.batches if entry[0] >= end]

    async def _serve(self, reader, writer):
        try:
            while True:
                frame = await reader.readexactly(
                    int.from_bytes(await reader.readexactly(4), "big"))
                key, version, number, _, body = codec.decode_request_header(frame)
                request = codec.decode_request(key, version, frame, body)
                answer = {FETCH: self._fetch, FETCH_SNAPSHOT: self._fetch_snapshot,
                          API_VERSIONS: self._versions}[key](request)
                writer.write(codec.response_frame(key, version, number, answer))
        except asyncio.IncompleteReadError:
            writer.close()

    def _versions(self, _):
        return messages.ApiVersionsResponse(api_keys=[
            messages.ApiVersionsResponse.ApiVersion(api_key=FETCH, max_version=17)])

    def _fetch(self, request):
        new = messages.FetchResponse
        asked = request.topics[0].partitions[0]
        self.requests.append(asked)
        self.waits.append(request.max_wait_ms)
        row = self.bad.pop(0) if self.bad else self._row(asked)
        row.current_leader = new.LeaderIdAndEpoch(
            leader_id=self.leader[0], leader_epoch=self.leader[1])
        return new(responses=[new.FetchableTopicResponse(
            topic_id=request.topics[0].topic_id, partitions=[row])])

    def _row(self, asked):
        new = messages.FetchResponse
        row = new.PartitionData(high_watermark=self.high_watermark, log_start_offset=self.start,
                                records=b"")
        if self.leader[0] != self.node_id:
            row.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif asked.current_leader_epoch > self.leader[1]:
            row.error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
        elif asked.current_leader_epoch < self.leader[1]:
            row.error_code = ErrorCode.FENCED_LEADER_EPOCH
        elif asked.fetch_offset < self.start:
            row.snapshot_id = new.SnapshotId(end_offset=self.snapshot[0], epoch=self.snapshot[1])
        elif asked.fetch_offset > self.end or self._epoch_before(asked.fetch_offset) not in (
                None, asked.last_fetched_epoch):
            row.diverging_epoch = self._diverging(asked.last_fetched_epoch)
        else:
            row.records = b"".join(data for base, _, data in self.batches
                                   if base >= asked.fetch_offset)
        return row

    def _epoch_before(self, offset: int):
        found = [epoch for base, epoch, _ in self.batches if base < offset]
        return found[-1] if found else None

    def _diverging(self, epoch: int):
        known = [entry for entry in self.batches if entry[1] <= epoch]
        later = [base for base, of, _ in self.batches if of > epoch]
        return messages.FetchResponse.EpochEndOffset(
            epoch=known[-1][1] if known else 0, end_offset=later[0] if later else self.end)

    def _fetch_snapshot(self, request):
        new = messages.FetchSnapshotResponse
        position = request.topics[0].partitions[0].position
        end, epoch, data = self.snapshot
        return new(topics=[new.TopicSnapshot(name="__cluster_metadata", partitions=[
            new.PartitionSnapshot(
                snapshot_id=new.SnapshotId(end_offset=end, epoch=epoch), size=len(data),
                position=position,
                unaligned_records=data[position:position + self.part_bytes])])])
