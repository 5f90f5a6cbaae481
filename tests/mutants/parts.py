"""Which files belong to a part of the code, and which tests cover it.

Owns: nothing.
Invariants: order: of the near tests, those that share a word with a file's name come first.
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
NEAR_MARKS = "not kafka and not memory and not spark and not slow"
WIDE_MARKS = "not memory and not spark and not slow"
KAFKA_MARKS = "kafka and " + WIDE_MARKS


class Part(NamedTuple):
    """A part. files, near, wide: globs from the root of the tree. wide tests run after near ones.
    """

    files: tuple[str, ...]
    near: tuple[str, ...]
    wide: tuple[str, ...]


_LOG_TESTS = ("tests/csrc/segment/test_*.py", "tests/csrc/log/test_*.py",
              "tests/csrc/log_manager/test_*.py", "tests/csrc/compaction/test_*.py",
              "tests/native/log/test_*.py", "tests/native/records/test_offset_index.py",
              "tests/csrc/serve/test_serve_requests.py", "tests/log/test_*.py",
              "tests/durability/test_*.py", "tests/wire/test_cold_reads.py")
# Tests that run code of several parts and are near to none.
OTHERS = ("tests/peer/test_*.py", "tests/replication/test_*.py", "tests/server/test_*.py",
          "tests/share/test_*.py", "tests/sim/test_*.py", "tests/security/**/test_*.py",
          "tests/cluster/test_*.py", "tests/broker/test_*.py", "tests/test_cli.py")
PARTS = {
    "csrc-log": Part(
        ("csrc/segment/*.c", "csrc/log/*.c", "csrc/log_manager/*.c", "csrc/compaction/*.c"),
        _LOG_TESTS, ("tests/wire/test_*.py", "tests/client/consumer/test_consumer.py")),
    "csrc-serve": Part(
        ("csrc/tables/*.c", "csrc/serve/*.c", "csrc/format/batch.c", "csrc/format/recode.c"),
        ("tests/csrc/serve/test_*.py", "tests/csrc/tables/test_*.py",
         "tests/csrc/format/test_*.py", "tests/native/records/test_batch.py",
         "tests/native/client/test_record_intake.py", "tests/native/server/test_grants.py",
         "tests/native/server/test_metrics.py", "tests/wire/test_*.py"),
        ("tests/csrc/**/test_*.py", "tests/native/**/test_*.py",
         "tests/durability/test_*.py", "tests/client/**/test_*.py")),
    "csrc-net": Part(
        ("csrc/net/*.c", "csrc/transport/*.c", "csrc/os/*.c"),
        ("tests/csrc/net/test_*.py", "tests/csrc/transport/test_*.py",
         "tests/native/server/test_reactor*.py", "tests/native/server/test_metrics.py",
         "tests/native/log/test_shortages.py", "tests/wire/test_framing.py",
         "tests/wire/test_limits.py"),
        ("tests/wire/test_*.py", "tests/broker/test_broker.py")),
    "coordinator": Part(
        ("pylog/coordinator/**/*.py",),
        ("tests/coordinator/**/test_*.py", "tests/wire/test_groups.py",
         "tests/api/groups/test_classic.py",
         "tests/api/data/test_offsets.py", "tests/monitor/test_endpoint.py",
         "tests/client/consumer/test_groups.py"),
        ("tests/clients/test_groups*.py", "tests/api/**/test_*.py",
         "tests/monitor/test_*.py", "tests/durability/test_kill*.py")),
    "metadata": Part(
        ("pylog/metadata/**/*.py",),
        ("tests/metadata/**/test_*.py", "tests/api/**/test_*.py",
         "tests/server/test_metadata_publisher.py",
         "tests/log/test_log_directories.py"),
        ("tests/wire/test_topic_faults.py", "tests/wire/test_settings_at_run_time.py",
         "tests/wire/test_differential_admin.py", "tests/wire/test_differential_topics.py",
         "tests/durability/test_kill*.py", "tests/log/test_*.py")),
    "log": Part(
        ("pylog/log/*.py",),
        ("tests/log/test_*.py", "tests/durability/test_*.py", "tests/api/cluster/test_log_dirs.py",
         "tests/api/test_effects.py", "tests/metadata/test_node.py"),
        ("tests/metadata/**/test_*.py", "tests/wire/test_*.py")),
    "client": Part(
        ("pylog/client/**/*.py", "pylog/client/serialization/*.py"),
        ("tests/client/**/test_*.py",), ("tests/tools/**/test_*.py", "tests/testing/test_*.py")),
}


def files(part: str, root: Path = ROOT) -> list[str]:
    return _found(root, PARTS[part].files)


def _found(root: Path, globs: tuple[str, ...]) -> list[str]:
    names: dict[str, None] = {}
    for one in globs:
        names.update(dict.fromkeys(str(path.relative_to(root)) for path in sorted(root.glob(one))))
    return list(names)


def _words(path: str) -> set[str]:
    """Return the words of a file's stem, singular."""
    words = re.split(r"[_\W]", Path(path).stem.removeprefix("test_"))
    return {word.rstrip("s") for word in words} - {"", "log"} or {"log"}


def near(part: str, path: str, root: Path = ROOT) -> list[str]:
    """Return the test files to run first. Keeps the order."""
    return sorted(_found(root, PARTS[part].near), key=lambda name: -shared(path, name))


def shared(path: str, test: str) -> int:
    """Return how many words the names of a file and a test file share."""
    return len(_words(path) & _words(test))


def all_tests(root: Path = ROOT) -> list[str]:
    """Return the tests of all parts, near ones first."""
    return list(dict.fromkeys(name for globs in (
        *(part.near for part in PARTS.values()), *(part.wide for part in PARTS.values()),
        OTHERS) for name in _found(root, globs)))


def wide(part: str, root: Path = ROOT) -> list[str]:
    """Return the test files for mutants that survive the near tests."""
    before = set(_found(root, PARTS[part].near))
    return [name for name in _found(root, PARTS[part].wide) if name not in before]
