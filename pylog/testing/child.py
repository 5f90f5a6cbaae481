"""A broker as a child process, with the same features as on a thread.

Owns: the child process and the connection to it.
Invariants: a child ends when the process that started it ends; one call runs at a time.
"""

import multiprocessing.connection
import os
import signal
import socket
import subprocess
import sys
import threading

from pylog.testing.errors import BrokerFailed

START_WAIT_S = 60.0
CALL_WAIT_S = 60.0
STOP_WAIT_S = 30.0


def pause(process: subprocess.Popen) -> None:
    """Pause a child process. Returns once all of its threads have stopped: until then they can
    still answer a request.
    """
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


class ChildHost:
    """Runs a broker in a child process.

    texts: the broker's settings. directory: for the output file `broker.out`.
    """

    def __init__(self, texts: dict, directory: str):
        self.port = 0
        self.output = os.path.join(directory, "broker.out")
        self._texts = texts
        self._lock = threading.Lock()
        # Set by start().
        self._process: subprocess.Popen
        self._connection: multiprocessing.connection.Connection

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Start the child and wait until the broker answers requests. Raises BrokerFailed."""
        ours, theirs = socket.socketpair()
        with theirs, open(self.output, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pylog.testing.child", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        self._connection = multiprocessing.connection.Connection(ours.detach())
        try:
            self._send(self._texts)
            self.port = self._received(START_WAIT_S)
        except BaseException:
            self.kill()
            raise

    def call(self, name: str, *arguments):
        """Call a method of the Node in the child. Raises its exceptions, BrokerFailed if it is
        gone.
        """
        with self._lock:
            self._send((name, arguments))
            return self._received(CALL_WAIT_S)

    def _send(self, message) -> None:
        try:
            self._connection.send(message)
        except (OSError, ValueError) as error:
            raise self._gone() from error

    def _received(self, wait_s: float):
        try:
            if not self._connection.poll(wait_s):
                raise BrokerFailed(f"the broker did not answer within {wait_s} s")
            done, result = self._connection.recv()
        except (OSError, EOFError) as error:
            raise self._gone() from error
        if not done:
            raise result
        return result

    def _gone(self) -> BrokerFailed:
        with open(self.output, errors="replace") as output:
            tail = output.read()[-2000:]
        return BrokerFailed(f"the broker's process {self._process.pid} has exited\n{tail}")

    def stop(self) -> None:
        """Stop the broker cleanly."""
        if self._process.poll() is None:
            self._connection.close()
            try:
                self._process.wait(STOP_WAIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise BrokerFailed(f"the broker did not stop within {STOP_WAIT_S} s") from None

    def pause(self) -> None:
        pause(self._process)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the child with SIGKILL. Unacknowledged data may be lost."""
        self._process.kill()
        self._process.wait()
        self._connection.close()


def main(descriptor: int) -> None:
    """Run in the child: serve calls until the parent closes the connection or ends."""
    from pylog.testing.thread import ThreadHost

    # Ctrl-C signals the whole foreground process group, but the parent decides when the child
    # stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = multiprocessing.connection.Connection(descriptor)
    host = ThreadHost(connection.recv())
    try:
        host.start()
    except Exception as error:
        _answer(connection, False, error)
        return
    _answer(connection, True, host.port)
    while True:
        try:
            name, arguments = connection.recv()
        except (EOFError, OSError):
            break
        try:
            result = host.call(name, *arguments)
        except Exception as error:
            _answer(connection, False, error)
        else:
            _answer(connection, True, result)
    host.stop()


def _answer(connection, done: bool, result) -> None:
    """Send a result. Exceptions that the parent may not be able to import are sent as text."""
    if not done and type(result).__module__ not in ("pylog.testing.errors", "builtins"):
        result = BrokerFailed(f"{type(result).__name__}: {result}")
    connection.send((done, result))


if __name__ == "__main__":
    main(int(sys.argv[1]))
