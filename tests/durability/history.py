"""One log's history on a simulated disk, checked after every step and fault.

Owns: the log under test, the list of its appended batches.
Model: a timeline of batches. Flushed batches survive a power cut, appended batches survive a kill.
  Of the others a prefix may survive, in a compacted log any part. Nothing else ever appears.
"""

import random
from dataclasses import dataclass
from pathlib import Path

from pylog._native.log import compaction, damage_report, log, replica_move, restart_checkpoint
from pylog._native.records import batch
from pylog.log.replica_moves import FUTURE, Move, directory_name, finish, furthest
from tests.durability import transactions
from tests.durability.simulated import DIE, FAIL_ONCE, FULL, NOTHING, SHORT, SimulatedDisk

NOW = 1_700_000_000_000
TOPIC_ID = bytes(range(16))


@dataclass(frozen=True)
class Batch:
    base: int
    records: tuple          # (key, value, timestamp) of each
    epoch: int
    producer: int
    sequence: int
    given: bytes  # as passed to append
    attributes: int = 0     # CONTROL, TRANSACTIONAL

    @property
    def last(self) -> int:
        return self.base + len(self.records) - 1


class History:
    """The history. config: the log's settings. compacted: its cleanup policy is `compact`."""

    def __init__(self, library, folder, config: dict, compacted: bool, seed: int):
        self.chance = random.Random(seed)
        self.disk = SimulatedDisk(library, folder, "ab")
        self.memory = folder / "memory"
        self.memory.mkdir()
        self.trusted_bytes = 0
        self.compacted = compacted
        self.config = {"file.delete.delay.ms": 0, "retention.ms": -1, "retention.bytes": -1,
                       "cleanup.policy": "compact" if compacted else "delete", **config}
        self.now = NOW
        self.serial = 0
        self.batches: list[Batch] = []
        self.pending: Batch | None = None  # of a failed append
        self.cut_to: int | None = None  # of a failed truncation
        self.start = self.end = 0
        self.saved = {"recovery_point": 0, "log_start_offset": -1}
        self.clean_until = 0
        self.epoch = 0
        self.sequences: dict[int, int] = {}
        self.decided: dict[tuple, int] = {}  # (producer, first sequence) -> outcome
        self.forgotten: set[int] = set()  # producers for which the log may have an older state
        self.next_producer = 1
        self.place = 0
        self._open_disks()
        self._open({})

    # ---- opening ------------------------------------------------------------------------------

    def _open_disks(self) -> None:
        self.directories = []
        for name in "ab":
            one = log.LogDir(self.disk.root / name, 1, open_files_max=4)
            restart_checkpoint.remember(one, self.memory)
            one.set_disk(self.disk.table)
            self.directories.append(one)

    def _find(self) -> int:
        """Find the partition's directory. If a move left the only copy, it becomes the partition.

        log.manager does the same.
        """
        found = [number for number, name in enumerate("ab")
                 if (self.disk.root / name / "t-0").exists()]
        assert len(found) < 2, "the partition is in both directories"
        copies = [path for name in "ab" for path in (self.disk.root / name).iterdir()
                  if FUTURE.fullmatch(path.name)]
        place = found[0] if found else self.place
        if copies and not found:
            path = Path(furthest([str(path) for path in copies]))
            copies.remove(path)
            place = "ab".index(path.parent.name)
            self._rename(path, "t-0")
        for path in copies:
            self._rename(path, path.name.removesuffix("future") + "delete")
        return place

    def _rename(self, path: Path, name: str) -> None:
        self.disk.rename(path, path.with_name(name))
        self.disk.sync(path.parent)

    def _open(self, known: dict) -> None:
        self.place = self._find()
        self.log = log.Log.open(self.directories[self.place], "t", 0, TOPIC_ID, self.config,
                                now_ms=self.now, **known)
        self.epoch = max(self.epoch, self.log.last_epoch) + 1
        self.log.become_leader(self.epoch)

    def _let_go(self) -> None:
        self.log.release()
        self.log = None
        self.directories = []

    def restart_clean(self) -> None:
        if not self._tried(lambda: self.log.settle(self.now)):
            return
        known = {"log_start_offset": self.log.start_offset,
                 "high_watermark": self.log.high_watermark,
                 "recovery_point": self.log.recovery_point}
        if self.log.open_transaction < 0:
            known |= {"clean": True, "segments": self.log.segments(),
                      "log_end_offset": self.log.end_offset, "last_epoch": self.log.last_epoch}
        self.save()
        self._let_go()
        self.disk.arm(NOTHING)
        self._open_disks()
        self._open(known)
        self._compare_ends()

    def crash(self, power: bool, seed: int) -> None:
        """Crash now and restart from the surviving files."""
        failed = self.directories[self.place].offline
        promised = self.log.flushed_offset if power or failed else self.end
        self.disk.arm(DIE)
        told = {file: file.read_bytes() for file in self.memory.iterdir()}
        self._let_go()
        for file, data in told.items():
            # Releasing a log deletes its crash state; a killed process leaves it.
            file.unlink(missing_ok=True)
            file.write_bytes(data)
            file.chmod(0o600)
        if power or failed:
            promised = min(promised, self.end)
            self.disk.power_cut(random.Random(seed) if seed else None)
        else:
            self.disk.kill()
        if self.cut_to is not None:
            promised = min(promised, self.cut_to)
        self._open_disks()
        # At a start, only creating the partition's folder needs free space.
        there = (self.disk.root / "ab"[self._find()] / "t-0").exists()
        full = there and self.chance.random() < 0.3
        self.disk.arm(FULL if full else NOTHING)
        known = dict(self.saved)
        if self.chance.random() < 0.2:
            known["recovery_point"] = 0
        self._open(known)
        trusted = sum(damage_report.figures(one)["trusted_bytes"] for one in self.directories)
        assert not (trusted and (power or failed))
        self.trusted_bytes += trusted
        self._adopt(promised, power or failed)
        if not full:
            self._resend()

    # ---- what may be there ----------------------------------------------------------------------

    def _adopt(self, promised: int, lossy: bool) -> None:
        """Compare the log after a start with the timeline, and cut the timeline to it."""
        timeline = self.batches + ([self.pending] if self.pending is not None else [])
        start, end = self.log.start_offset, self.log.end_offset
        # In a compacted log, the gap between the new end and the flushed offset may contain no
        # batch.
        assert promised <= end or end == start or self.compacted and not any(
            end <= one.last < promised for one in timeline), (promised, start, end)
        known = self.saved["log_start_offset"]
        # Compaction removes whole segments, and an unknown start offset is that of the first
        # segment.
        assert max(0, known) <= start and (
            start <= self.start or self.compacted and known < 0), (known, start, self.start)
        found = self._read(start, end)
        by_base = {one.base: one for one in timeline}
        if self.compacted:
            self._adopt_compacted(found, timeline, promised, lossy)
        else:
            kept = [one for one in timeline if start <= one.last and one.last < end]
            assert [base for base, *_ in found] == [one.base for one in kept], (
                promised, start, end, [base for base, *_ in found], [one.base for one in timeline])
            assert end == (kept[-1].last + 1 if kept else end)
            assert kept or end in (start, *(one.base for one in timeline)), (start, end)
        for base, *found_there in found:
            self._same(by_base[base], found_there)
        if not self.compacted:
            self.batches = [one for one in timeline if one.last < end]
        self.start, self.end = start, end
        self.pending = self.cut_to = None
        self.sequences = {}
        for one in self.batches:
            if one.attributes & batch.CONTROL:
                continue
            # A batch deleted before its flush may have taken its producer's state along.
            if one.producer >= 0 and (one.last < promised or one.last >= start):
                self.sequences[one.producer] = one.sequence + len(one.records)
            elif one.producer >= 0:
                self.sequences.pop(one.producer, None)
                self.forgotten.add(one.producer)

    def _adopt_compacted(self, found, timeline, promised: int, lossy: bool) -> None:
        floor = promised if lossy else max(promised, self.end)
        there = {base for base, *_ in found}
        present = {offset for _, _, records in found for offset, *_ in records}
        kept = [one for one in timeline if one.last < floor or one.base in there]
        self._newest_of_keys(kept, present, floor)
        if lossy:
            # Above the flushed offset any batch may be missing; the others remain.
            self.batches = [one for one in timeline if one.last < max(floor, self.log.start_offset)
                            or one.base in there]
        else:
            self.batches = [one for one in timeline if one.last < self.log.end_offset]

    def _newest_of_keys(self, timeline, present: set, floor: int) -> None:
        """Check that each key has its newest flushed record or a later one.

        Below `floor`, records that no cleaning pass reached must all exist.
        """
        newest = {}
        fates = transactions.fates(timeline, self.decided)
        for one in timeline:
            counts = not one.attributes & batch.CONTROL and \
                fates.get(one.base, transactions.COMMIT) == transactions.COMMIT
            for at, (key, _, _) in enumerate(one.records):
                if one.base + at >= self.log.start_offset and (
                        one.base + at < floor or one.base + at in present):
                    if counts:
                        newest[key] = one.base + at
                    if one.base + at >= self.clean_until or fates.get(one.base, 0) is None:
                        assert one.base + at in present, (key, one.base + at, self.clean_until)
        for key, offset in newest.items():
            assert offset in present, (key, offset, self.clean_until, sorted(present)[-20:])

    def _same(self, one: Batch, found) -> None:
        header, records = found
        assert header.leader_epoch == one.epoch, (header.leader_epoch, one)
        assert (header.producer_id, header.base_sequence) == (one.producer, one.sequence)
        assert header.attributes & transactions.ENDS == one.attributes
        assert header.base_offset + header.last_offset_delta == one.last
        expected = {one.base + at: record for at, record in enumerate(one.records)}
        for offset, key, value, timestamp in records:
            assert expected[offset] == (key, value, timestamp), offset
        if not self.compacted:
            assert len(records) == len(expected)

    def _read(self, start: int, end: int) -> list:
        """Return [(base offset, header, [(offset, key, value, timestamp)])] of the whole log."""
        found, at = [], start
        while at < end:
            data = memoryview(self.log.read(at, self.chance.choice([1, 3000, 1 << 20])))
            if not data:
                assert self.compacted, (at, end)
                break
            for position, header in batch.walk(data):
                assert batch.crc_ok(data[position:]), header
                last = header.base_offset + header.last_offset_delta
                assert last >= at and (not found or header.base_offset >= at), (at, header)
                records = []
                if header.record_count:
                    records = [(offset, key, value, timestamp) for offset, timestamp, key, value, _
                               in batch.records(data[position:])]
                found.append((header.base_offset, header, records))
                at = last + 1
        return found

    def _compare_ends(self) -> None:
        ends = self.log.start_offset, self.log.end_offset
        assert ends == (self.start, self.end), (ends, self.start, self.end)
        assert self.log.high_watermark == self.end
        stable = self.log.last_stable_offset
        # A transaction that began in the deleted part may be known only from the log start on.
        left = [one for one in self.batches if one.last >= self.start]
        least, most = [transactions.stable(rows, self.start, self.end)
                       for rows in (self.batches, left)]
        if self.compacted and least < self.clean_until:
            most = self.end  # Cleaning may have removed the first aborted records.
        assert least <= stable <= most, (least, stable, most)
        assert self.log.flushed_offset <= self.end

    # ---- steps ----------------------------------------------------------------------------------

    def _tried(self, call, *arguments) -> bool:
        """Return True if a call succeeded. It may fail only if the disk did."""
        try:
            call(*arguments)
            done = True
        except log.StorageError:
            assert self.disk.happened or self.dead, "refused, and the disk did nothing"
            done = False
        return done

    @property
    def dead(self) -> bool:
        """Return True if only a restart helps: the disk or the directory is offline."""
        return self.disk.armed == DIE and self.disk.happened or \
            any(one.offline for one in self.directories)

    def append_some(self, batches: int, count: int, size: int, codec: int, producer: int,
                    skew: int, transactional: bool = False) -> None:
        producer = -1 if producer < 0 else producer + self.next_producer + 5 * transactional
        if producer in self.forgotten:
            return
        for _ in range(batches):
            if not self.dead:
                self.append(count, size, codec, producer, skew,
                            batch.TRANSACTIONAL if transactional and producer >= 0 else 0)

    def append(self, count: int, size: int, codec: int, producer: int, skew: int,
               attributes: int = 0) -> None:
        self.now += 3
        records = []
        for _ in range(count):
            self.serial += 1
            key = b"%d" % self.chance.randrange(12)
            value = b"%d " % self.serial + b"x" * size
            records.append((key, value, self.now + self.chance.randint(-skew, skew)))
        known = producer >= 0
        sequence = self.sequences.get(producer, 0) if known else -1
        given = batch.build([(*record, []) for record in records], codec=codec,
                            producer_id=producer, producer_epoch=0 if known else -1,
                            base_sequence=sequence, attributes=attributes)
        one = Batch(self.end, tuple(records), self.epoch, producer, sequence, given, attributes)
        if self._appended(one) and known:
            self.sequences[producer] = sequence + count

    def end_transaction(self, number: int, commit: bool) -> None:
        """End an open transaction, or one whose marker was lost, with the same outcome as before.
        """
        opened, _ = transactions.walk(self.batches)
        if not opened or self.dead:
            return
        producer = sorted(opened)[number % len(opened)]
        type_ = self.decided.setdefault(
            (producer, opened[producer].sequence),
            transactions.COMMIT if commit else transactions.ABORT)
        self.now += 1
        record, given = transactions.marker(producer, type_, self.now)
        self._appended(Batch(self.end, (record,), self.epoch, producer, -1, given,
                             transactions.ENDS))

    def _appended(self, one: Batch) -> bool:
        self.pending = one
        done = self._tried(self._append, one)
        if done:
            self.batches.append(one)
            self.end = one.last + 1
            self.pending = None
        elif not self.dead:
            self.pending = None  # A full disk stores none of it.
            assert self.log.end_offset == self.end
        return done

    def _append(self, one: Batch) -> None:
        found = self.log.append(one.given, self.now,
                                trusted=bool(one.attributes & batch.CONTROL))
        assert found == (one.base, one.last), (found, one)

    def _resend(self) -> None:
        """Resend an unacknowledged batch: the log must recognise a duplicate by its sequence."""
        last = {one.producer: one for one in self.batches
                if one.producer >= 0 and one.base >= self.start
                and one.producer not in self.forgotten
                and not one.attributes & batch.CONTROL}
        for one in last.values():
            if self.sequences.get(one.producer) != one.sequence + len(one.records):
                continue
            self._tried(self._append, one)
        if not self.dead:
            self._compare_ends()

    def skip_a_sequence(self, producer: int) -> None:
        producer += self.next_producer
        # If all batches of a producer are gone, the log may not know it and accepts any sequence.
        if not any(one.producer == producer and one.base >= self.start for one in self.batches):
            return
        given = batch.build([(b"k", b"v", self.now, [])], producer_id=producer, producer_epoch=0,
                            base_sequence=self.sequences[producer] + 7)
        try:
            self.log.append(given, self.now)
            raise AssertionError("a gap in a producer's sequence was taken")
        except log.SequenceError:
            return
        except log.StorageError:
            assert self.disk.happened or self.dead

    def flush(self, whole: bool) -> None:
        directory = self.directories[self.place]
        if self._tried(directory.flush if whole else self.log.flush):
            assert self.log.flushed_offset == self.end

    def save(self) -> None:
        """Save checkpoints as the store does, on another disk."""
        self.saved = {"recovery_point": self.log.recovery_point,
                      "log_start_offset": self.log.start_offset}

    def truncate(self, back: int) -> None:
        offset = max(self.start, self.end - back)
        end = next((one.base for one in self.batches if one.base <= offset <= one.last), offset)
        if offset >= self.end or end <= self.start:
            return
        # As in Kafka, truncation does not restore records that were compacted away.
        if self.compacted and end < self.clean_until:
            return
        self.cut_to = end
        self.saved["recovery_point"] = min(self.saved["recovery_point"], end)
        if not self._tried(self._truncate, offset, end):
            if not self.dead:
                # No space: the truncation may or may not have happened.
                self.crash(False, 0)
            return
        self.cut_to = None
        self._forget_from(end)
        self._new_epoch()

    def _truncate(self, offset: int, end: int) -> None:
        found = self.log.truncate(offset)
        assert found == end or self.compacted and found == offset, (offset, found, end)

    def _forget_from(self, end: int) -> None:
        self.end = self.log.end_offset
        if self.compacted:
            # A cleaning pass may have removed earlier batches and kept only the producer's last
            # one.
            self.forgotten |= {one.producer for one in self.batches if one.last >= end}
        self.batches = [one for one in self.batches if one.last < end]
        self.clean_until = min(self.clean_until, end)
        # Clients start with new producers, as after a leader change.
        self.sequences = {}
        self.next_producer += 10

    def _new_epoch(self) -> None:
        self.epoch += 1
        self._tried(self.log.become_leader, self.epoch)

    def delete_records(self, count: int) -> None:
        offset = min(self.end, self.start + count)
        if self._tried(self.log.move_start, offset, self.now) or self.log.start_offset == offset:
            self.start = self.log.start_offset
            assert self.start == offset
            self.saved["log_start_offset"] = offset

    def retain(self, age_ms: int, size: int) -> None:
        """Apply retention with the given settings."""
        if self.compacted:
            return
        before = self.start
        self.log.set_config({**self.config, "retention.ms": age_ms, "retention.bytes": size})
        self._tried(self.log.upkeep, self.now)
        self.log.set_config(self.config)
        self.start = self.log.start_offset
        gone = [one for one in self.batches if before <= one.last < self.start]
        if size < 0:
            for one in gone:
                assert max(time for *_, time in one.records) < self.now - age_ms
        elif age_ms < 0 and gone:
            assert self.log.size_bytes >= size or self.start == self.end

    def clean(self, step: int) -> None:
        if not self.compacted:
            return
        try:
            self._clean(step)
        except compaction.Interrupted:
            # The next pass continues.
            self._clean(step)

    def _clean(self, step: int) -> None:
        # Even a failed pass may have cleaned up to this offset.
        before = self.clean_until
        try:
            one_pass = compaction.CleaningPass(
                self.log, compaction.OffsetMap(1 << 16), now_ms=self.now, first_dirty=before,
                delete_retention_ms=self.chance.choice([0, 1 << 40]),
                segment_bytes=self.config["internal.segment.bytes"])
        except log.StorageError:
            assert self.disk.happened or self.dead
            return
        self.clean_until = self.end
        try:
            while one_pass.step(step):
                pass
            self.clean_until = (one_pass.figures() or {"end_offset": before})["end_offset"]
        except log.StorageError:
            assert self.disk.happened or self.dead
        finally:
            one_pass.close()

    def move(self) -> None:
        """Move the log to the other directory as log.manager and log.moves do."""
        goal = 1 - self.place
        target = None
        try:
            target = log.Log.open(
                self.directories[goal], "t", 0, TOPIC_ID, self.config, now_ms=self.now,
                log_start_offset=self.log.start_offset, directory=directory_name("t", 0, "future"))
            while replica_move.copy(self.log, target, 2000, self.now)[0]:
                pass
            target.flush()
            finish(Move("t", 0, goal, self.log, target), self.now)
            self.log, target, self.place = target, self.log, goal
            target.delete(self.now)
        except log.StorageError:
            assert self.disk.happened or self.dead
            if target is not None and target is not self.log and not self.dead:
                self._tried(target.delete, self.now)
        if target is not None:
            target.release()

    def arm(self, what: int, calls: int, code: int) -> None:
        if not self.dead:
            self.disk.arm(what, calls, code)

    def step(self, call, *arguments) -> bool:
        """Run one step and check the result.

        Return False if the step was fatal and a restart followed.
        """
        call(*arguments)
        lives = not self.dead and self._checked()
        if not lives:
            self.crash(True, self.chance.randrange(1, 1 << 30))
            self.check()
        return lives

    # ---- checks ---------------------------------------------------------------------------------

    def _checked(self) -> bool:
        """Check the log and return True if it is still online.

        The flusher keeps running and may hit the armed fault.
        """
        try:
            self.check()
            return True
        except log.StorageError:
            assert self.dead
            return False

    def check(self) -> None:
        assert self.disk.armed not in (FULL, SHORT) or not any(
            one.offline for one in self.directories), "a full disk took its directory offline"
        self._compare_ends()
        found = self._read(self.start, self.end)
        by_base = {one.base: one for one in self.batches}
        for base, *rest in found:
            self._same(by_base[base], rest)
        records = [row for _, _, rows in found for row in rows if row[0] >= self.start]
        if self.compacted:
            self._newest_of_keys(self.batches, {offset for offset, *_ in records}, self.end)
        else:
            assert [base for base, *_ in found] == [
                one.base for one in self.batches if one.last >= self.start]
        self._look_up(found, records)
        self._look_committed()

    def _look_committed(self) -> None:
        """Check two fetches of a read_committed consumer."""
        fates = transactions.fates(self.batches, {})
        _, ended = transactions.walk(self.batches)
        for _ in range(2 if fates else 0):
            stable = self.log.last_stable_offset
            low = self.chance.randint(self.start, stable)
            high = self.chance.randint(low, stable)
            aborted = self.log.aborted_between(low, high)
            for producer, first in aborted:
                # In a compacted log, a transaction's first batches may be missing from the
                # timeline.
                assert any(row.producer == producer and first < row.last
                           and (self.compacted or row.first <= first)
                           and row.type == transactions.ABORT for row in ended), (producer, first)
            if not self.compacted:
                expected = [(row.producer, row.first) for row in ended if self.start <= row.first
                            and row.last >= low and row.first < high and not row.type]
                assert [row for row in aborted if row[1] >= self.start and any(
                    row == (one.producer, one.first) for one in ended)] == sorted(
                        expected, key=lambda row: row[1]), (low, high, aborted, expected)
            found = [row for row in self._read(low, high) if row[0] < high]
            data = {base for base, header, records in found
                    if records and not header.attributes & batch.CONTROL}
            assert transactions.seen(found, aborted) & data == {
                base for base in data if fates.get(base, transactions.COMMIT)}, (low, high, aborted)

    def _look_up(self, found, records) -> None:
        for _ in range(8 if records else 0):
            offset, _, _, timestamp = self.chance.choice(records)
            header = next(batch.walk(memoryview(self.log.read(offset, 1))))[1]
            assert header.base_offset <= offset <= header.base_offset + header.last_offset_delta
            assert self.log.epoch_of(offset) == header.leader_epoch
            target = timestamp + self.chance.randint(-2, 2)
            expected = next(((row[0], row[3]) for row in records if row[3] >= target), None)
            answer = self.log.offset_for_time(target)
            assert (answer and answer[:2]) == expected, (target, answer, expected)


__all__ = ["DIE", "FAIL_ONCE", "FULL", "NOTHING", "SHORT", "History"]
