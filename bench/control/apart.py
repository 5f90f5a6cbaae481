"""Run some members of a group in a separate process, so that the broker causes their waits, not a
thousand neighbours on the same event loop.

Owns: the process while a load runs.
Invariants: the process ends when its pipe closes.
"""

import asyncio
import multiprocessing
from types import SimpleNamespace

from bench.control.wire import Connection

POLL_S = 0.01
END_WAIT_S = 10


class Apart:
    """make: (connection, number) -> a member, a function of a module; arguments: passed before
    those. members: the partitions they own, as reported by the process.
    """

    def __init__(self, port: int, make, arguments: tuple, numbers: range):
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_live, args=(theirs, port, make, arguments, numbers), daemon=True)
        self._process.start()
        theirs.close()
        self.members = [SimpleNamespace(owned=[]) for _ in numbers]
        assert self._pipe.recv() == "ready"

    def begin(self) -> None:
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._told)
        self._pipe.send("go")

    def _told(self) -> None:
        while self._pipe.poll():
            try:
                what = self._pipe.recv()
            except EOFError:  # The group then does not become stable.
                asyncio.get_running_loop().remove_reader(self._pipe.fileno())
                return
            for member, owned in zip(self.members, what, strict=True):
                member.owned = owned

    def end(self) -> list:
        """Return (seconds without work at the start, [waits of heartbeats]) of each member."""
        asyncio.get_running_loop().remove_reader(self._pipe.fileno())
        self._pipe.send("end")
        while not isinstance(found := self._pipe.recv(), tuple):
            pass  # An earlier report of the owned partitions.
        self._process.join(END_WAIT_S)
        return list(found)


def _live(pipe, port: int, make, arguments: tuple, numbers: range) -> None:
    asyncio.run(_play(pipe, port, make, arguments, numbers))


async def _play(pipe, port: int, make, arguments: tuple, numbers: range) -> None:
    members = [make(*arguments, await Connection.open(port), number) for number in numbers]
    pipe.send("ready")
    pipe.recv()
    tasks = [asyncio.create_task(member.run()) for member in members]
    told = None
    while not pipe.poll():  # Exit with the pipe: at its end poll() is true, and recv() raises.
        owned = [list(member.owned) for member in members]
        if owned != told:
            pipe.send(owned)
            told = owned
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(POLL_S)
    pipe.recv()
    for task in tasks:
        task.cancel()
    pipe.send(tuple((member.working_s - member.began_s, member.waits_s) for member in members))
