"""The APIs that Python answers: one module per family, one table of handlers.

Owns: nothing.
Called by: dispatch.
Invariants: (1) an api key has one handler; (2) a handler is `handle(broker, context, request)`,
  plain or `async`, and returns the response message; faults of a request are values in it.
"""

HANDLERS: dict = {}


def _fill() -> None:
    from pylog.api import (
        cluster,
        configs,
        groups,
        logdirs,
        metadata,
        offsets,
        offsets_committed,
        partitions,
        producers,
        quorum,
        quotas,
        records,
        security,
        topics,
        versions,
    )
    for module in (versions, metadata, topics, offsets, producers, cluster, groups,
                   offsets_committed, configs, partitions, records, logdirs, quorum, quotas,
                   security):
        for key, handler in module.HANDLERS.items():
            assert key not in HANDLERS, key
            HANDLERS[key] = handler


_fill()
