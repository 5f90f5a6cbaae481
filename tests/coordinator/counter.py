"""A coordinator state machine that counts, and a snapshot of it, for tests of the runtime."""

from pylog.coordinator.runtime.timers import Timers


class Counter:
    """Counts each key. A waiter for a key is answered at its next count; a key without a count for
    lease_ms is removed.
    """

    def __init__(self, clock, lease_ms):
        self.records, self.responses, self.changed, self.cleanups = [], [], set(), 0
        self.timers = Timers()
        self.counts, self.waiting = {}, {}
        self.is_loaded = False
        self._clock = clock
        self._lease_ms = lease_ms

    def count(self, key: str) -> int:
        self.counts[key] = self.counts.get(key, 0) + 1
        self.records.append((key.encode(), b"%d" % self.counts[key]))
        self.changed.add(key)
        self.responses += [(token, self.counts[key]) for token in self.waiting.pop(key, ())]
        self._renew(key)
        return self.counts[key]

    def read(self, key: str) -> int:
        return self.counts.get(key, 0)

    def wait(self, key: str, token) -> None:
        self.waiting.setdefault(key, []).append(token)

    def count_many(self, key: str, times: int):
        for _ in range(times):
            self.count(key)
            yield
        return self.counts[key]

    def _renew(self, key: str) -> None:
        if self._lease_ms:
            self.timers.set((key,), self._clock.now_ms() + self._lease_ms)

    def replay(self, key, value) -> None:
        self.changed.add(key.decode())
        if value is None:
            self.counts.pop(key.decode(), None)
        else:
            self.counts[key.decode()] = int(value)

    def loaded(self) -> None:
        self.is_loaded = True
        for key in self.counts:
            self._renew(key)

    def tick(self) -> None:
        while (due := self.timers.take_due(self._clock.now_ms())) is not None:
            self.forget(due[0])

    def forget(self, key: str) -> None:
        del self.counts[key]
        self.records.append((key.encode(), None))
        self.changed.add(key)

    def open_tokens(self):
        return [token for tokens in self.waiting.values() for token in tokens]

    def saved(self, changed) -> None:
        pass


class Memory:
    """A snapshot that outlives its runtime."""

    def __init__(self):
        self.stored, self.last, self.restored = {}, (-1, -1), 0

    def applied(self):
        return self.last

    def clear(self):
        self.stored.clear()
        self.last = -1, -1

    def restore(self, state_machine):
        self.restored += 1
        state_machine.counts.update(self.stored)

    def rows(self, state_machine, changed):
        for key in changed:
            yield [(key, state_machine.counts.get(key))]

    def write(self, rows, applied):
        for key, value in rows:
            self.stored.pop(key, None)
            if value is not None:
                self.stored[key] = value
        self.last = applied or self.last
