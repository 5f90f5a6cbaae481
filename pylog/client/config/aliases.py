"""Translate other clients' setting names, and list those without effect here.

Owns: the tables of names.
Invariants: a name is in only one table; a translated setting has the same meaning, in our setting's
  unit; settings accepted without effect could not change a result.
Source: Kafka 4.3's clients (their .properties), librdkafka's CONFIGURATION.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pylog.client.errors import ConfigError

_RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
# librdkafka's names, and older Java names.
ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "compression.codec": "compression.type",
    "request.required.acks": "acks",
    "queue.buffering.max.ms": "linger.ms",
    "message.max.bytes": "max.request.size",
    "message.timeout.ms": "delivery.timeout.ms",
    "message.send.max.retries": "retries",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "partitioner": "partitioner.class",
    "socket.timeout.ms": "request.timeout.ms",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "oauth.cb": "oauth_cb",
    "stats.cb": "stats_cb",
    "sasl.oauthbearer.client.id": "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.assertion.jwt.template.file": "sasl.oauthbearer.assertion.template.file",
    "sasl.oauthbearer.grant.type": _RETRIEVER,
}
# Names with a different unit: (our name, factor to our unit).
UNITS = {"queue.buffering.max.kbytes": ("buffer.memory", 1024)}
# Java classes, by the last part of their names without "Serializer" or "Deserializer".
FORMATS = {"ByteArray": None, "Bytes": None, "ByteBuffer": None, "Void": None, "String": "Text",
           "Short": "Int16", "Integer": "Int32", "Long": "Int64", "Float": "Float32",
           "Double": "Float64", "UUID": "Uuid"}
# librdkafka's grant names for the token retrievers of Java's clients.
GRANTS = {"client_credentials": "ClientCredentialsJwtRetriever",
          "urn:ietf:params:oauth:grant-type:jwt-bearer": "JwtBearerJwtRetriever"}
ASSIGNORS = {"RangeAssignor": "range", "RoundRobinAssignor": "roundrobin",
             "StickyAssignor": "sticky", "CooperativeStickyAssignor": "cooperative-sticky"}
# Metrics, buffers and threads that are implemented differently here.
WITHOUT_EFFECT = frozenset("""
    auto.include.jmx.reporter batch.num.messages broker.address.family broker.address.ttl
    client.dns.lookup debug delivery.report.only.error
    enable.metrics.push enable.sparse.connections internal.termination.signal log.connection.close
    log.queue log.thread.name log_level metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level
    metrics.sample.window.ms offset.store.method queue.buffering.backpressure.threshold
    queue.buffering.max.messages queued.min.messages reconnect.backoff.jitter.ms
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
    sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
    sasl.oauthbearer.method security.providers socket.blocking.max.ms
    socket.connection.setup.timeout.max.ms
    socket.keepalive.enable socket.max.fails socket.nagle.disable ssl.engine.factory.class
    ssl.keymanager.algorithm ssl.provider ssl.secure.random.implementation
    ssl.trustmanager.algorithm sticky.partitioning.linger.ms topic.metadata.propagation.max.ms
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.sparse
""".split())
# Keywords of other Python clients with the same meaning but a different spelling.
MEANT = {
    "ssl_cafile": "ssl.ca.location", "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location", "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password", "max_batch_size": "batch.size",
    "consumer_timeout_ms": "default.api.timeout.ms", "compression": "compression.type",
    "brokers": "bootstrap.servers", "hosts": "bootstrap.servers", "username": "sasl.username",
    "password": "sasl.password", "offset_reset": "auto.offset.reset",
}
_JAAS = "sasl.jaas.config"
# Java's clients require this class for tokens from an endpoint; here the endpoint is sufficient.
_HANDLER = "sasl.login.callback.handler.class"
_ENDPOINTS_HANDLER = ".OAuthBearerLoginCallbackHandler"
_PROVIDERS = "config.providers"
_TICKETS = {"keyTab": "sasl.kerberos.keytab", "principal": "sasl.kerberos.principal",
            "serviceName": "sasl.kerberos.service.name"}
_TRUSTED = "ssl.truststore.location"
_BEARER = {"clientId": "sasl.oauthbearer.client.credentials.client.id",
           "clientSecret": "sasl.oauthbearer.client.credentials.client.secret",
           "scope": "sasl.oauthbearer.scope"}


def translated(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return (settings by our names, names without effect). Raises ConfigError."""
    if _PROVIDERS in given:
        from pylog.client.config import value_providers

        given = value_providers.resolved(given)
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == _JAAS or name == _HANDLER and str(value).endswith(_ENDPOINTS_HANDLER):
            continue
        if name in UNITS:
            name, factor = UNITS[name]
            value = _whole(name, value) * factor
        name = ALIASES.get(name, name)
        if name in found:
            raise ConfigError(f"{name} is given twice")
        found[name] = value
    idle = [name for name in found if name in WITHOUT_EFFECT]
    for name in idle:
        del found[name]
    if given.get(_JAAS):
        for name, value in jaas(str(given[_JAAS])).items():
            found.setdefault(name, value)
    return found, idle


def _whole(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}={value!r} is not a whole number") from None


def jaas(text: str) -> dict[str, Any]:
    """Return our settings for the options of a Java login module. Raises ConfigError."""
    from pylog.config import errors as config_errors
    from pylog.security.sasl.jaas import options

    try:
        given = options(text)
    except config_errors.ConfigError as failure:
        raise ConfigError(str(failure)) from None
    module = text.split(None, 1)[0].rpartition(".")[2]
    if module == "OAuthBearerLoginModule":
        return _bearer(given)
    if module == "Krb5LoginModule":
        return {ours: given[theirs] for theirs, ours in _TICKETS.items() if theirs in given}
    if module not in ("PlainLoginModule", "ScramLoginModule"):
        raise ConfigError(f"{_JAAS}: {module} is not served, only PlainLoginModule, "
                          "ScramLoginModule, OAuthBearerLoginModule and Krb5LoginModule")
    found: dict[str, Any] = {f"sasl.{name}": given[name] for name in ("username", "password")
                             if name in given}
    if given.get("tokenauth", "").lower() == "true":
        found["pylog.sasl.tokenauth"] = True
    return found


def _bearer(given: Mapping[str, str]) -> dict[str, Any]:
    """Translate OAuthBearerLoginModule options, which in Java include the issuer's trust store."""
    found = {ours: given[theirs] for theirs, ours in _BEARER.items() if theirs in given}
    stores = {name: value for name, value in given.items() if name.startswith("ssl.")}
    if stores:
        if stores.pop("ssl.truststore.type", None) != "PEM" or [*stores] != [_TRUSTED]:
            raise ConfigError(f"{_JAAS}: the token endpoint is trusted by {_TRUSTED} with "
                              "ssl.truststore.type=PEM alone; https.ca.location does the same")
        found["https.ca.location"] = stores[_TRUSTED]
    return found


def nearest(name: str, known: Mapping[str, Any]) -> str | None:
    """Return the setting that was probably meant."""
    meant = MEANT.get(name.replace(".", "_"))
    if meant in known:
        return meant
    spelt = difflib.get_close_matches(name, [*known, *ALIASES], 1, 0.5)
    found = [ALIASES.get(one, one) for one in spelt]
    return found[0] if found and found[0] in known else next(
        iter(difflib.get_close_matches(name, known, 1, 0.5)), None)


def plain_value(name: str, value: Any) -> Any:
    """Translate a Java class name to a serializer or assignor. Returns other values unchanged."""
    if not isinstance(value, str):
        return value
    if name.endswith("serializer"):
        return _format(name, value)
    if name == _RETRIEVER:
        return GRANTS.get(value.lower(), value.rpartition(".")[2])
    if name == "partition.assignment.strategy":
        return ",".join(ASSIGNORS.get(part.strip().rpartition(".")[2], part.strip())
                        for part in value.split(","))
    return value


def _format(name: str, value: str) -> Any:
    kind = value.rpartition(".")[2]
    for end in ("Serializer", "Deserializer"):
        kind = kind.removesuffix(end)
    if kind not in FORMATS:
        raise ConfigError(f"{name}={value!r}: an object, a function, or one of Kafka's own classes"
                          f" ({', '.join(FORMATS)})")
    chosen = FORMATS[kind]
    if chosen is None:
        return None
    from pylog.client.serialization import plain

    return getattr(plain, chosen)()
