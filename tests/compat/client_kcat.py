"""kcat: `python -m tests.compat.client_kcat BOOTSTRAP SCENARIO TOPIC`.

Owns: kcat processes.
Invariants: a member runs with -E, because otherwise kcat exits when its only broker is down;
  records are hexadecimal text, because kcat's formats are line-based. kcat cannot set timestamps
  when it produces, so reads do not compare them.
"""

import re
import subprocess
import time

from bench.process import die_with_parent
from tests.compat import flows

FORMAT = "%k %s %p %o\n"


class Member(flows.Member):
    def work(self) -> None:
        process = subprocess.Popen(
            ["kcat", "-b", self.bootstrap, "-E", "-G", self.group, "-u", "-f", FORMAT,
             "-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=6000",
             "-X", "heartbeat.interval.ms=1000",
             *(("-X", f"group.instance.id={flows.INSTANCE}") if flows.INSTANCE else ()),
             self.topic],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        told = []
        readers = [flows.threading.Thread(target=self._records, args=(process.stdout,)),
                   flows.threading.Thread(target=self._shares, args=(process.stderr, told))]
        for reader in readers:
            reader.start()
        while not self.ending.wait(0.1):
            assert process.poll() is None, f"kcat ended: {told[-1:]}"
        process.terminate()
        assert process.wait(20) == 0, told[-1:]

    def text(self, key) -> str:
        return key.hex()

    def _records(self, stream) -> None:
        for line in stream:
            self.keys.append(bytes.fromhex(line.split()[0]))

    def _shares(self, stream, told) -> None:
        for line in stream:
            told.append(line)
            named = {int(one) for one in re.findall(r"\[(\d+)\]", line)}
            if "assigned:" in line:
                self.share = named
            elif "revoked:" in line:
                self.share = set()


def security() -> list[str]:
    """Return the security options that the driver requests."""
    given = flows.SECURITY
    names = {"trusted": "ssl.ca.location", "certificate": "ssl.certificate.location",
             "key": "ssl.key.location", "mechanism": "sasl.mechanism", "user": "sasl.username",
             "password": "sasl.password"}
    settings = {name: given[key] for key, name in names.items() if key in given}
    if given:
        settings["security.protocol"] = "sasl_ssl" if "mechanism" in given else "ssl"
    return [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]


class Client:
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str):
        self.bootstrap = bootstrap
        self.sent: dict[int, int] = {}

    def _run(self, *arguments, text=""):
        done = subprocess.run(["kcat", "-b", self.bootstrap, *security(), *map(str, arguments)],
                              input=text, capture_output=True, text=True, timeout=40)
        assert done.returncode == 0, done.stderr[-300:]
        return done.stdout

    def produce(self, topic, rows, codec, partition=0):
        lines = "".join(f"{key.hex()} {value.hex() or '-'}\n" for key, value, _ in rows)
        self._run("-P", "-t", topic, "-p", partition, "-K", " ", "-z", codec, text=lines)

    def read(self, topic, start, count):
        lines = self._run("-C", "-q", "-t", topic, "-p", 0, "-o", start, "-c", count, "-f", FORMAT)
        got = [line.split() for line in lines.splitlines()]
        assert [int(row[3]) for row in got] == list(range(start, start + count)), got
        return [(bytes.fromhex(key), b"" if value == "-" else bytes.fromhex(value),
                 flows.BASE_MS + 1000 * number)
                for number, (key, value, _, _) in enumerate(got)]

    def member(self, topic, group):
        return Member(self.bootstrap, topic, group)

    def take(self, topic, group, count):
        lines = self._run("-G", group, "-q", "-c", count, "-f", FORMAT,
                          "-X", "auto.offset.reset=earliest", topic)
        return [bytes.fromhex(line.split()[0]) for line in lines.splitlines()]

    def first(self, topic, group, policy, nudge=None):
        process = subprocess.Popen(
            ["kcat", "-b", self.bootstrap, "-G", group, "-q", "-c", "1", "-f", "%o",
             "-X", f"auto.offset.reset={policy}", topic], stdout=subprocess.PIPE, text=True)

        def poll():
            try:
                return int(process.communicate(timeout=0.5)[0])
            except subprocess.TimeoutExpired:
                return None

        try:
            return flows.first(poll, nudge)
        finally:
            process.kill()
            process.wait()

    def lost(self, topic, start):
        return int(self._run("-C", "-q", "-t", topic, "-p", 0, "-o", start, "-c", 1, "-f", "%o",
                             "-X", "auto.offset.reset=earliest"))


def seek(client, topic: str) -> str:
    """Test seeking by time. kcat sets timestamps itself, so this needs two runs with a pause
    between.
    """
    early, late = flows.rows("early", 7), flows.rows("late", 7)
    client.produce(topic, early, "none")
    time.sleep(0.2)
    between_ms = int(time.time() * 1000)
    time.sleep(0.2)
    client.produce(topic, late, "none")
    told = client._run("-Q", "-t", f"{topic}:0:{between_ms}")
    assert told.split()[-1] == "7", told
    assert client.read(topic, 7, 7) == late
    lines = client._run("-C", "-q", "-e", "-t", topic, "-p", 0, "-o", f"s@{between_ms}",
                        "-f", FORMAT)
    assert len(lines.splitlines()) == 7, lines
    return ""


if __name__ == "__main__":
    flows.FLOWS["seek"] = seek
    flows.main(Client)
