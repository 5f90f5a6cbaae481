"""Conditions that affect results: the machine, the commit, memory that was never touched."""

import mmap
import os
import platform
import subprocess
from pathlib import Path

FREE_SHARE_TOUCHED = 0.8


def machine_line() -> str:
    """Describe processor, cores, memory, kernel and load average."""
    model = next((line.partition(":")[2].strip()
                  for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return (f"{os.cpu_count()} × {model}, {memory:.0f} GiB, Linux {platform.release()}, "
            f"load {os.getloadavg()[0]:.1f} at the start")


def commit_line() -> str:
    """Return the abbreviated commit of the checkout, with a + if tracked files differ from it."""
    def git(*args: str) -> str:
        done = subprocess.run(["git", "-C", str(Path(__file__).parent), *args],
                              capture_output=True, text=True)
        return done.stdout.strip()
    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "-s", "-uno") else "")


def touch_free_memory(bytes_max: int) -> None:
    """Write once to most free pages.

    A virtual machine gets its memory from the host at first touch, and the time is charged to
    whichever broker fills the page cache first.
    """
    size = os.sysconf("SC_PAGE_SIZE")
    pages = min(int(os.sysconf("SC_AVPHYS_PAGES") * FREE_SHARE_TOUCHED), bytes_max // size)
    with mmap.mmap(-1, pages * size) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for position in range(0, pages * size, size):
            memory[position] = 1
