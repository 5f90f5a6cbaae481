"""Null in each nullable field of each request: brokerd responds and keeps the connection open.

The requests come from the message tables, so new APIs and versions are covered automatically.
"""

import pytest

from pylog.protocol import api, messages, tables
from pylog.testing import Broker
from pylog.testing.ports import free_port
from tests.security.caller import Caller
from tests.wire import raw

# The connection is already authenticated.
SASL = {api.SASL_HANDSHAKE, api.SASL_AUTHENTICATE}
JAAS = ('org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice";')
SAMPLES = {"string": "some-name", "bytes": b"some bytes", "records": b""}


def requests():
    """Yield (api key, version, path of a nullable field)."""
    for key in tables.ids("request"):
        described = tables.message(tables.name_of("request", key))
        for version in range(described.versions[0], described.versions[1] + 1):
            if api.is_served(key, version) and key not in SASL:
                for path in nullable_paths(described, described.fields, version):
                    yield key, version, path


def nullable_paths(described, fields, version, above=()):
    """Yield the path, a tuple of field names, of each field that may be null in a version."""
    for field in fields:
        if not tables.contains(field.versions, version):
            continue
        path = (*above, field.name)
        if tables.contains(field.nullable, version):
            yield path
        if field.is_struct:
            yield from nullable_paths(described, described.structs[field.type], version, path)


def filled(described, cls, fields, version, path):
    """Return a message in which only the field at `path` is null and each array has an element."""
    values = {}
    for field in fields:
        if not tables.contains(field.versions, version):
            continue
        below = path[1:] if path and path[0] == field.name else None
        if below == ():
            values[field.name] = None
            continue
        if field.is_struct:
            root = getattr(messages, described.name)
            value = filled(described, getattr(root, field.type),
                           described.structs[field.type], version, below or ())
        elif field.type in SAMPLES:
            value = SAMPLES[field.type]
        else:
            value = None
        if field.array:
            values[field.name] = [] if value is None else [value]
        elif value is not None:
            values[field.name] = value
    if cls is messages.ProduceRequest:
        values["acks"] = 1  # With acks=0 the broker never responds.
    return cls(**values)


@pytest.fixture(scope="module")
def ports():
    ports = free_port(), free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{ports[0]},SASL_PLAINTEXT://127.0.0.1:{ports[1]}"
    with Broker(settings={
            "listeners": listeners, "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
            "delegation.token.secret.key": "secret"}):
        yield ports


def connect(ports) -> Caller:
    caller = Caller(ports[1])
    assert caller.plain("alice", "alice").error_code == 0
    return caller


def test_null_in_a_nullable_field_is_answered(ports):
    closed, caller, asked = [], connect(ports), 0
    for key, version, path in requests():
        described = tables.message(tables.name_of("request", key))
        request = filled(described, getattr(messages, described.name), described.fields, version,
                         path)
        try:
            caller.ask(key, version, request)
            asked += 1
        except (raw.Closed, OSError) as failure:
            closed.append(f"{tables.api_name(key)} v{version} {'.'.join(path)}: {failure!r}")
            caller.close()
            caller = connect(ports)
    caller.close()
    assert not closed, "\n".join(closed)
    assert asked > 100
