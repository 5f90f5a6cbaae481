"""Fixtures for disks that are damaged, filled or cut off."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.durability.disk import shim

RAM = Path("/dev/shm")


@pytest.fixture
def ram(tmp_path):
    """An in-memory folder if available, for tests in which a real flush proves nothing."""
    if not (RAM.is_dir() and os.access(RAM, os.W_OK)):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="pylog-test-", dir=RAM))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def preload(tmp_path_factory):
    """The compiled shim."""
    return shim(tmp_path_factory.mktemp("shim"))
