"""An event loop with a virtual clock, shared by the processes of a simulated cluster.

Owns: the clock, the scheduled callbacks, the threads for blocking calls.
Invariants: determinism: one callback or thread runs at a time, in an order that only the seed
  determines, and threads run only while the loop waits for them; dead processes: no code of a
  killed process runs again; halted processes: callbacks that become due during a halt run when it
  ends; no spinning: too many callbacks at one virtual time are an error.
Source: Python's asyncio (the subset of the loop's interface that pylog uses).
"""

import asyncio
import contextvars
import heapq
import threading
from collections import deque

PER_MOMENT_MAX = 50_000  # Keeps the loop from spinning.
OWNER: contextvars.ContextVar = contextvars.ContextVar("process", default=None)


class Wrong(Exception):
    """An invariant is violated."""


class Killed(BaseException):
    """Ends a thread of a killed process."""


class Process:
    """A unit that is killed and halted as a whole. `name` is for reports."""

    def __init__(self, name: str):
        self.name = name
        self.alive = True
        self.halted = False
        self.deferred: list = []


class Handle:
    """A scheduled callback, like asyncio's."""

    __slots__ = ("callback", "args", "context", "due", "gone")

    def __init__(self, callback, args, context, due):
        self.callback, self.args = callback, args
        self.context = contextvars.copy_context() if context is None else context
        self.due = due
        self.gone = False

    def cancel(self) -> None:
        self.gone = True

    def cancelled(self) -> bool:
        return self.gone

    def when(self) -> float:
        return self.due


class Worker(threading.Thread):
    """A thread that runs only while the loop waits for it. Keeps determinism."""

    def __init__(self, back):
        super().__init__(daemon=True)
        self.go = threading.Semaphore(0)
        self.back = back
        self.job = None
        self.process = None
        self.failure = self.result = None
        self.busy = False
        self.start()

    def run(self) -> None:
        while True:
            self.go.acquire()
            if self.job is None:
                return
            try:
                self.result = self.job()
            except BaseException as error:
                self.failure = error
            self.busy = False
            self.back.release()


class Loop(asyncio.AbstractEventLoop):
    """The loop. random: delays of threads. connect: (process, factory, host, port) -> coroutine."""

    def __init__(self, random, blocks, connect=None):
        self._random, self._blocks, self.connect = random, blocks, connect
        self._now = 1000.0
        self._number = 0
        self._ready: deque = deque()
        self._timers: list = []
        self._readers: dict = {}
        self._workers: list = []
        self._back = threading.Semaphore(0)
        self._current: Worker | None = None
        self.tasks: list = []  # Also of dead processes, to delay their finalizers.
        self.failure: BaseException | None = None
        self.steps = 0
        self.closed = False

    # ---- time -----------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(self, callback, *args, context=None):
        handle = Handle(callback, args, context, self._now)
        self._ready.append(handle)
        return handle

    def call_at(self, when, callback, *args, context=None):
        handle = Handle(callback, args, context, when)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self._now + delay, callback, *args, context=context)

    def run_for(self, seconds: float, step=None) -> None:
        """Advance virtual time. step: called after each callback. Raises Wrong."""
        end = self._now + seconds
        asyncio._set_running_loop(self)
        try:
            while self._ready or self._timers and self._timers[0][0] <= end:
                self._moment(step)
        finally:
            asyncio._set_running_loop(None)
        self._now = end

    def _moment(self, step) -> None:
        if not self._ready:
            self._now = max(self._now, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(self._timers)[2])
        count = 0
        while self._ready:
            handle = self._ready.popleft()
            if handle.gone:
                continue
            process = handle.context.get(OWNER)
            if process is not None and not process.alive:
                continue  # Keeps dead processes dead.
            if process is not None and process.halted:
                process.deferred.append(handle)  # Keeps halted processes halted.
                continue
            handle.context.run(handle.callback, *handle.args)
            if self.failure is not None:
                failure, self.failure = self.failure, None
                raise failure
            if step is not None:
                step()
            self.steps += 1
            count += 1
            if count > PER_MOMENT_MAX:
                raise Wrong(f"something spins: {handle.callback}")

    def go_on(self, process: Process) -> None:
        """Resume a halted process."""
        process.halted = False
        deferred, process.deferred = process.deferred, []
        self._ready.extend(deferred)

    # ---- the interface of asyncio's loops -------------------------------------------------------

    def create_future(self):
        return asyncio.Future(loop=self)

    def create_task(self, coroutine, *, name=None, context=None):
        task = asyncio.Task(coroutine, loop=self, name=name, context=context)
        task._log_destroy_pending = False        # type: ignore[attr-defined]
        self.tasks.append(task)
        if len(self.tasks) % 1024 == 0:
            self.tasks = [kept for kept in self.tasks if not kept.done()]
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.closed

    def call_soon_threadsafe(self, callback, *args, context=None):
        return self.call_soon(callback, *args, context=context)

    def call_exception_handler(self, context) -> None:
        error = context.get("exception")
        # About an abandoned task: the time of this message depends on the collector, not on the
        # seed.
        if "never retrieved" in context.get("message", ""):
            return
        if not self.closed and self.failure is None and isinstance(error, Exception):
            self.failure = error

    def add_reader(self, fd, callback, *args):
        context = contextvars.copy_context()
        self._readers[fd] = lambda: self.call_soon(callback, *args, context=context)

    def remove_reader(self, fd):
        return self._readers.pop(fd, None) is not None

    def readable(self, fd) -> None:
        """Call the readers of a descriptor."""
        reader = self._readers.get(fd)
        if reader is not None:
            reader()

    async def create_connection(self, factory, host, port, **_):
        return await self.connect(OWNER.get(), factory, host, port)

    # ---- threads --------------------------------------------------------------------------------

    def run_in_executor(self, executor, work, *args):
        future, process = self.create_future(), OWNER.get()
        self.call_later(self._random.uniform(0.0001, 0.002), self._work, future, process, work,
                        args)
        return future

    def _work(self, future, process, work, args) -> None:
        if self._blocks(work):
            worker = next((idle for idle in self._workers if not idle.busy), None)
            if worker is None:
                worker = Worker(self._back)
                self._workers.append(worker)
            worker.busy, worker.process = True, process
            worker.result = worker.failure = None
            worker.job = lambda: work(*args)
            self._let_run(worker, future)
            return
        try:
            result = work(*args)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)

    def _let_run(self, worker: Worker, future) -> None:
        self._current = worker
        worker.go.release()
        self._back.acquire()
        self._current = None
        if worker.busy:
            self.call_later(worker.pause_s, self._let_run, worker, future)
        elif isinstance(worker.failure, Exception):
            if not future.done():
                future.set_exception(worker.failure)
        elif worker.failure is None and not future.done():
            future.set_result(worker.result)

    def thread_process(self) -> Process:
        """Return the process of the worker thread that runs."""
        assert self._current is not None
        return self._current.process

    def block(self, seconds: float) -> None:
        """Block a worker thread while other callbacks run."""
        if self.closed:
            raise Killed  # Work that a killed thread does while it ends.
        worker = self._current
        assert worker is not None, "only what _blocks() names may block"
        worker.pause_s = seconds
        self._back.release()
        worker.go.acquire()
        if self.closed or not worker.process.alive:
            raise Killed

    def close(self) -> None:
        """End the threads and pending coroutines."""
        self.closed = True
        for worker in self._workers:
            if worker.busy:
                worker.go.release()
                self._back.acquire()
            worker.job = None
            worker.go.release()
        self._ready.clear()
        self._timers.clear()
        asyncio._set_running_loop(self)
        for task in self.tasks:
            if not task.done():
                _finish(task.get_coro())
        asyncio._set_running_loop(None)
        self._ready.clear()
        self.tasks.clear()


def _finish(coroutine) -> None:
    """End a coroutine, even if its cleanup awaits something."""
    for _ in range(20):
        try:
            coroutine.close()
        except (RuntimeError, AttributeError, ValueError):
            continue
        return
