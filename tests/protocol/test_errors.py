"""The error table compared with Kafka's."""

import subprocess

import pytest

from bench.kafka import KafkaMissing, java_command
from pylog.protocol.errors import TABLE, ErrorCode

SOURCE = """
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.errors.RetriableException;
public class ErrorTable {
    public static void main(String[] args) {
        for (Errors error : Errors.values())
            System.out.println(error.code() + " " + error.name() + " "
                + (error.exception() instanceof RetriableException));
    }
}
"""


def test_codes_names_and_retriability_are_kafkas(tmp_path):
    source = tmp_path / "ErrorTable.java"
    source.write_text(SOURCE)
    try:
        command = java_command(str(source))
    except KafkaMissing as missing:
        pytest.skip(str(missing))
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    theirs = [line.split() for line in done.stdout.splitlines()]
    ours = [[str(int(row)), row.name, str(row.retriable).lower()] for row in TABLE.values()]
    assert ours == theirs


def test_error_code_equals_its_number_and_has_a_name():
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == 6
    assert ErrorCode.of(6).name == "NOT_LEADER_OR_FOLLOWER"
    assert repr(ErrorCode.NONE) == "NONE(0)"


def test_an_unknown_code_has_no_row():
    with pytest.raises(KeyError):
        ErrorCode.of(999)
