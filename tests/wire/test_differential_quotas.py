"""The same client quotas to Apache Kafka and to brokerd: responses, messages, effective quotas."""

import time

import pytest

from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.sides import Side, compare
from tests.wire.talk import unique

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]
DESCRIBE, ALTER, CREATE, DELETE, PARTITIONS = 48, 49, 19, 20, 37
EXACT, DEFAULT, SPECIFIED = range(3)
USER, CLIENT, IP = "user", "client-id", "ip"


def _entity(**parts) -> list:
    return [{"entity_type": kind.replace("_", "-"), "entity_name": name}
            for kind, name in parts.items()]


def _sorted(rows) -> list:
    """Return rows in an order that both sides share: Java's maps have none."""
    for row in rows or ():
        row["entity"].sort(key=lambda part: part["entity_type"])
        if "values" in row:
            row["values"].sort(key=lambda value: value["key"])
    return sorted(rows, key=str) if rows is not None else None


def _note(side: Side, label: str, answer: dict) -> dict:
    """Store the response with its messages, which must be equal here."""
    answer["entries"] = _sorted(answer["entries"])
    texts = [answer.pop("error_message", None)]
    texts += [row.pop("error_message", None) for row in answer["entries"] or ()]
    side.note(label, answer)
    side.note(f"{label}: told", {"texts": [side.comparable(text) for text in texts]})
    return answer


def _alter(side: Side, label: str, *rows, version: int = 1, validate_only: bool = False) -> dict:
    """rows: (entity, {key: value or None})."""
    answer = ask(side.connection, ALTER, version, validate_only=validate_only, entries=[
        {"entity": entity, "ops": [
            {"key": key, "value": 0.0 if value is None else float(value), "remove": value is None}
            for key, value in (ops.items() if isinstance(ops, dict) else ops)]}
        for entity, ops in rows])
    side.settle()
    return _note(side, label, answer)


def _describe(side: Side, label: str, *components, strict: bool = False, version: int = 1) -> dict:
    return _note(side, label, ask(side.connection, DESCRIBE, version, strict=strict, components=[
        {"entity_type": kind, "match_type": how, "match": match}
        for kind, how, match in components]))


def _clear(side: Side) -> None:
    answer = ask(side.connection, DESCRIBE, 1, components=[], strict=False)
    ask(side.connection, ALTER, 1, validate_only=False, entries=[
        {"entity": row["entity"], "ops": [{"key": value["key"], "value": 0.0, "remove": True}
                                          for value in row["values"]]}
        for row in answer["entries"]])
    side.settle()


WRONG = (
    ("no entity", [], {"producer_byte_rate": 1}),
    ("unknown type", [{"entity_type": "topic", "entity_name": "x"}], {"producer_byte_rate": 1}),
    ("empty name", _entity(user=""), {"producer_byte_rate": 1}),
    ("empty client", _entity(client_id=""), {"producer_byte_rate": 1}),
    ("empty type", [{"entity_type": "", "entity_name": "x"}], {"producer_byte_rate": 1}),
    ("user and ip", _entity(user="u", ip="127.0.0.1"), {"connection_creation_rate": 1}),
    ("client and ip", _entity(client_id="u", ip="127.0.0.1"), {"producer_byte_rate": 1}),
    ("all three", _entity(user="u", client_id="c", ip="127.0.0.1"), {"producer_byte_rate": 1}),
    ("no address", _entity(ip="no.such.host.invalid"), {"connection_creation_rate": 1}),
    ("a user's connections", _entity(user="u"), {"connection_creation_rate": 1}),
    ("an address's bytes", _entity(ip="127.0.0.1"), {"producer_byte_rate": 1}),
    ("unknown key", _entity(user="u"), {"no_such_rate": 1}),
    ("unknown key goes", _entity(user="u"), {"no_such_rate": None}),
    ("zero", _entity(user="u"), {"producer_byte_rate": 0}),
    ("negative", _entity(user="u"), {"request_percentage": -1}),
    ("a fraction of a byte", _entity(user="u"), {"producer_byte_rate": 1.5}),
    ("nearly whole", _entity(user="u"), {"consumer_byte_rate": 2.0000001}),
    ("too many bytes", _entity(user="u"), {"producer_byte_rate": 1e19}),
    ("the most bytes", _entity(user="u"), {"producer_byte_rate": 2.0 ** 63}),
    ("too many connections", _entity(ip=None), {"connection_creation_rate": 3e9}),
    ("a fraction of a connection", _entity(ip=None), {"connection_creation_rate": 0.5}),
    ("good and bad", _entity(user="u"), {"request_percentage": 10, "no_such_rate": 1}),
    ("infinite", _entity(client_id="c"), {"request_percentage": float("inf")}),
    ("infinite bytes", _entity(client_id="c"), {"producer_byte_rate": float("inf")}),
    ("a key twice", _entity(user="twice"), [("producer_byte_rate", 1), ("producer_byte_rate", 2)]),
    ("nothing", _entity(user="none"), {}),
)


def _alter_all(side: Side, version: int) -> None:
    _clear(side)
    for label, entity, ops in WRONG:
        _alter(side, label, (entity, ops), version=version)
    _describe(side, "after what is wrong", version=version)
    user = _entity(user="u")
    _alter(side, "set", (user, {"producer_byte_rate": 1000, "request_percentage": 12.5}),
           version=version)
    _alter(side, "the same", (user, {"producer_byte_rate": 1000}), version=version)
    _alter(side, "dry", (user, {"producer_byte_rate": 5}), validate_only=True, version=version)
    _alter(side, "one goes", (user, {"producer_byte_rate": None}), version=version)
    _alter(side, "a type twice", (
        [*_entity(user="first"), *_entity(user="second")], {"consumer_byte_rate": 5}),
        version=version)
    _alter(side, "an entity twice", (user, {"consumer_byte_rate": 5}),
           (user, {"consumer_byte_rate": 6}), version=version)
    both = _entity(user="u", client_id=None)
    _alter(side, "a pair twice", (both, {"consumer_byte_rate": 5}),
           (both, {"consumer_byte_rate": 6}), version=version)
    _alter(side, "good and bad entities", (_entity(user="good"), {"controller_mutation_rate": 0.5}),
           (_entity(user="bad"), {"no_such_rate": 1}), version=version)
    _alter(side, "none", version=version)
    _describe(side, "in the end", version=version)
    _clear(side)
    _describe(side, "cleared", version=version)


@pytest.mark.parametrize("version", range(2))
def test_alter_client_quotas_matches_kafka(kafka, target, version):
    compare(kafka, target, _alter_all, version)


ENTITIES = (
    _entity(user="u", client_id="c"), _entity(user="u", client_id=None), _entity(user="u"),
    _entity(user=None, client_id="c"), _entity(user=None, client_id=None), _entity(user=None),
    _entity(client_id="c"), _entity(client_id=None), _entity(user="v", client_id="c"),
    _entity(user="a b&\u00e9", client_id="<default>"), _entity(ip="127.0.0.1"), _entity(ip=None),
    _entity(ip="localhost"),
)
FILTERS = (
    (), ((USER, EXACT, "u"),), ((USER, DEFAULT, None),), ((USER, SPECIFIED, None),),
    ((CLIENT, EXACT, "c"),), ((CLIENT, DEFAULT, None),), ((CLIENT, SPECIFIED, None),),
    ((USER, EXACT, "u"), (CLIENT, EXACT, "c")), ((USER, DEFAULT, None), (CLIENT, DEFAULT, None)),
    ((USER, SPECIFIED, None), (CLIENT, SPECIFIED, None)), ((USER, EXACT, "u"),
                                                           (CLIENT, SPECIFIED, None)),
    ((USER, EXACT, "nobody"),), ((USER, EXACT, "a b&\u00e9"),), ((IP, EXACT, "127.0.0.1"),),
    ((IP, DEFAULT, None),), ((IP, SPECIFIED, None),),
    # rejected
    (("", EXACT, "u"),), (("topic", EXACT, "u"),), ((USER, EXACT, None),),
    ((USER, DEFAULT, "u"),), ((USER, SPECIFIED, "u"),), ((USER, 3, None),), ((USER, -1, "u"),),
    ((USER, EXACT, "u"), (USER, EXACT, "v")), ((IP, EXACT, "127.0.0.1"), (USER, EXACT, "u")),
    ((CLIENT, SPECIFIED, None), (IP, SPECIFIED, None)), (("topic", 7, None), (USER, 7, None)),
)


def _describe_all(side: Side, version: int) -> None:
    _clear(side)
    _alter(side, "set", *[
        (entity, {"connection_creation_rate": 1 + number} if entity[0]["entity_type"] == IP
         else {"producer_byte_rate": 100 + number, "request_percentage": number + 0.5})
        for number, entity in enumerate(ENTITIES)], version=version)
    for components in FILTERS:
        for strict in (False, True):
            _describe(side, f"{components} {strict}", *components, strict=strict, version=version)
    _clear(side)


@pytest.mark.parametrize("version", range(2))
def test_describe_client_quotas_matches_kafka(kafka, target, version):
    compare(kafka, target, _describe_all, version)


class As:
    """One client of a side, by client id."""

    def __init__(self, side: Side, client_id: str):
        self.side = side
        self.client_id = client_id.encode()
        self.connection = Connection(side.port, wait_s=20)

    def ask(self, key: int, version: int, **fields) -> dict:
        from tests.wire.messages import decode, encode
        return decode(key, version, self.connection.call(
            key, version, encode(key, version, **fields), client_id=self.client_id))

    def note(self, label: str, key: int, version: int, **fields) -> None:
        """Store the response, its messages, and whether the client is throttled."""
        answer = self.ask(key, version, **fields)
        rows = answer.get("topics", answer.get("responses", answer.get("results")))
        texts = [row.pop("error_message", None) for row in rows]
        if key == CREATE:
            for row in rows:
                row.pop("topic_id", None)
        self.side.note(label, answer)
        self.side.note(f"{label}: told", {"texts": texts})
        self.side.note(f"{label}: throttled", answer["throttle_time"] > 0)


def _mutations(side: Side, strict: bool) -> None:
    _clear(side)
    client_id = unique("changes")
    # A burst of 11 partitions, then one every second.
    _alter(side, "set", (_entity(client_id="changes"), {"controller_mutation_rate": 1}))
    _alter(side, "the client's", (_entity(client_id=client_id), {"controller_mutation_rate": 1}))
    side.answers.pop(), side.answers.pop()

    def topics(*rows):
        return [{"name": name, "num_partitions": count, "replication_factor": 1}
                for name, count in rows]

    create, delete, more = (7, 6, 3) if strict else (5, 4, 2)
    first, second, third, fourth = (side.name(stem) for stem in ("a", "b", "c", "d"))
    free = As(side, "free")
    known = side.topic("known", 2)
    client = As(side, client_id)
    client.note("two topics, the third too much", CREATE, create, timeout=5000, topics=topics(
        (first, 6), (second, 6), (third, 1)))
    time.sleep(0.2)
    client = As(side, client_id)
    client.note("nothing left", CREATE, create, timeout=5000, topics=topics((fourth, 1)))
    client = As(side, client_id)
    client.note("dry too", CREATE, create, timeout=5000, validate_only=True,
                topics=topics((side.name("e"), 1)))
    client = As(side, client_id)
    side.note("existing", client.ask(CREATE, create, timeout=5000, topics=topics((first, 1))))
    client = As(side, client_id)
    client.note("partitions", PARTITIONS, more, timeout=5000, topics=[
        {"name": known, "count": 4, "assignments": None}])
    client = As(side, client_id)
    fields = {"topics": [{"name": known, "topic_id": None}]} if delete == 6 else {
        "topic_names": [known]}
    client.note("deletion", DELETE, delete, timeout=5000, **fields)
    free.note("another client", CREATE, create, timeout=5000,
              topics=topics((side.name("f"), 30)))
    _clear(side)


@pytest.mark.parametrize("strict", [False, True])
def test_the_controller_mutation_quota_is_kafkas(kafka, target, strict):
    compare(kafka, target, _mutations, strict)


def _bandwidth(side: Side) -> None:
    """A client over its limits is throttled and gets nothing during that time; others are not
    affected.
    """
    _clear(side)
    topic = side.topic("limited")
    _alter(side, "set", (_entity(client_id=None), {
        "producer_byte_rate": 2000, "consumer_byte_rate": 2000}))
    client = As(side, unique("limited"))
    records = raw.batch([raw.record(value=bytes(5000))])
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    noted = []
    for _ in range(5):
        answer = client.ask(0, 9, acks=1, timeout=1000, transactional_id=None, topic_data=rows)
        noted.append((answer["responses"][0]["partition_responses"][0]["error_code"],
                      answer["throttle_time"] > 0))
    side.note("produced", {"rows": noted})
    reader = As(side, unique("reader"))
    fetch = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20,
             "isolation_level": 0, "session_id": 0, "forgotten_topics_data": [], "topics": [
                 {"topic": topic, "partitions": [
                     {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10200,
                      "current_leader_epoch": -1, "log_start_offset": -1,
                      "last_fetched_epoch": -1}]}]}
    noted = []
    for epoch in (-1, -1, 0, -1):
        answer = reader.ask(1, 12, session_epoch=epoch, **fetch)
        noted.append((answer["error_code"], answer["session_id"] > 0, len(answer["responses"]),
                      answer["throttle_time"] > 0))
    side.note("fetched", {"rows": noted})
    _clear(side)


def test_clients_over_their_byte_rates_are_throttled_as_by_kafka(kafka, target):
    compare(kafka, target, _bandwidth)


def _credentials(side: Side) -> None:
    """kafka-configs requests a user's credentials along with its quotas; here there are none."""
    for label, names in (("all", None), ("none named", []), ("two", ["a", "b"]),
                         ("one twice", ["a", "b", "a"]), ("empty", [""])):
        answer = ask(side.connection, 50, 0, users=None if names is None else [
            {"name": name} for name in names])
        answer["results"].sort(key=lambda row: row["user"])
        texts = [answer.pop("error_message")] + [row.pop("error_message")
                                                 for row in answer["results"]]
        side.note(label, answer)
        side.note(f"{label}: told", {"texts": texts})


def test_describe_user_scram_credentials_matches_kafka(kafka, target):
    compare(kafka, target, _credentials)
