"""Levels of the broker's own loggers, read and set at run time: resources of type BROKER_LOGGER.

Owns: the levels of the loggers below `pylog`, and of the root.
Invariants: levels have Kafka's names; a change lasts until the broker stops.
Source: KIP-412, KIP-1075.
"""

import logging

from pylog.config.entries import LOGGER, UNKNOWN, Entry
from pylog.metadata.controller.configs import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    WORDS,
    Altered,
    node_number,
)
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

ROOT = "root"
LEVELS = {"TRACE": 5, "DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING,
          "ERROR": logging.ERROR, "FATAL": logging.CRITICAL}


def entries(wanted=None) -> list[Entry]:
    """Return every logger with its effective level."""
    return [Entry(name, _level(logger), False, LOGGER, False, [], UNKNOWN, "")
            for name, logger in sorted(_loggers().items()) if not wanted or name in wanted]


def alter(node_id: int, resource, validate_only: bool) -> Altered:
    """Set levels by an incremental change of settings; all of them or none."""
    try:
        _check(node_id, resource)
    except Refusal as refusal:
        return Altered(refusal.error, refusal.message)
    if not validate_only:
        known = _loggers()
        for config in resource.configs:
            level = LEVELS[config.value] if config.config_operation == SET else logging.NOTSET
            known[config.name].setLevel(level)
    return Altered()


def _check(node_id: int, resource) -> None:
    name = resource.resource_name
    number = node_number(name)
    if number is None:
        raise _bad(f"Node id must be an integer, but it is: {name}")
    if number != node_id:
        raise _bad(f"Unexpected node id. Expected {node_id}, but received {name}")
    known = _loggers()
    for config in resource.configs:
        operation = config.config_operation
        if operation in (APPEND, SUBTRACT):
            raise _bad(f"{WORDS[operation]} operation is not allowed for the BROKER_LOGGER "
                       "resource")
        if operation not in (SET, DELETE):
            raise _bad(f"operation {operation} is unknown")
        if config.name not in known:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"Logger {config.name} does not exist!")
        if operation == SET and config.value not in LEVELS:
            raise Refusal(ErrorCode.INVALID_CONFIG,
                          f"Cannot set the log level of {config.name} to {config.value} as it "
                          "is not a supported log level. Valid log levels are "
                          f"{', '.join(sorted(LEVELS))}")
        if operation == DELETE and config.name == ROOT:
            raise _bad("Removing the log level of the root logger is not allowed")


def _loggers() -> dict:
    found = {ROOT: logging.getLogger()}
    for name, logger in logging.Logger.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "pylog":
            found[name] = logger
    return found


def _level(logger) -> str:
    number = logger.getEffectiveLevel()
    return max((level, word) for word, level in LEVELS.items() if level <= max(number, 5))[1]


def _bad(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
