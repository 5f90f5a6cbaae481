"""The published table of clients: converts results to docs/reference/compatibility.md and back.

Owns: nothing.
Invariants: every client is one row of each table, every scenario one column, every tool one row;
  failures have their reason below the tables; passes(document(results)) returns the results that
  are ok.
"""

import re

COLUMNS = {
    "codecs": "writes records of 0 to 390,000 bytes with every codec that the client has, and "
              "reads them back byte for byte with an assignment",
    "create": "the first record creates its topic",
    "group": "a group of one member; a second member joins, then leaves; every record is read",
    "dying": "one of two members is killed; the other takes over when its session ends, and not "
             "before, and continues to read; a third joins",
    "static": "a static member is killed and returns within its session: no partition moves",
    "restart": "the broker is killed (kill -9) and restarted while a member is connected; the "
               "member continues to read",
    "resume": "commit, leave, and continue from the commit with a new consumer",
    "seek": "find the offset for a time, and read from there",
    "reset": "start positions of consumers: earliest, latest, and after an offset that no longer"
             " exists; DeleteRecords if the client has it",
    "topics": "create, describe, delete; add partitions",
    "configs": "alter and describe a topic's settings, describe a broker's",
    "groups": "list, describe, read and set committed offsets, delete",
    "transactions": "copy records from one topic to another together with the group's position, "
                    "in transactions of which some are aborted; a second producer with the same "
                    "id fences the first",
    "calls": "every call of Kafka 4.3's Admin client that a single broker without security "
             "supports, with valid and invalid arguments: topics, records, settings, groups, "
             "cluster, quotas",
    "streams": "a word count of Kafka Streams, at least once, stopped and restarted with an "
               "empty state directory. Streams groups: the same programs with "
               "`group.protocol=streams` (KIP-1071)",
    "exactly-once": "the program and the broker are killed (kill -9) in turn, four times, while "
                    "records pass through in transactions: every record exists once. Streams: "
                    "every count of every word, exactly_once_v2; Connect: lines of a file, "
                    "exactly.once.source.support; Kafka's TransactionalMessageCopier, which "
                    "aborts at random",
}
SECURITY = {
    "tls": "the client verifies the server's certificate",
    "mutual": "the client presents a certificate too, and the broker takes the client's name "
              "from it",
    "plain": "SASL PLAIN over TLS",
    "scram-256": "SCRAM-SHA-256 over TLS",
    "scram-512": "SCRAM-SHA-512 over TLS",
    "oauthbearer": "a signed token over TLS, verified with the issuer's keys",
}
SECURITY_TITLE = "## Security"
# Other tests cover three brokers; this run does not include them.
CLUSTER = """## Three brokers

Slow tests on three brokers with their etcds, in addition to this table \
(`pytest --slow tests/cluster`):

| client or tool | tested |
|---|---|
| librdkafka (confluent-kafka), Java 4.4.0, franz-go | \
a producer (acks=all, idempotent) and a group continue while the leader is killed \
with `kill -9` twice, and during a rolling restart: no record is rejected, lost, duplicated \
or out of order, and the group reads all of them |
| Kafka's tools | the table in [How pylog is tested](../internals/tests.md#clusters) |"""
SECURITY_HEAD = f"| client | version | {' | '.join(SECURITY)} | |"
HEAD = f"| client | version | {' | '.join(COLUMNS)} | supported codecs |"
TOOLS_HEAD = "| tool | version | | tested |"
HEAD_ROW = re.compile(r"^\| client \| version \| (.+?) \|(?: [^|]+)? \|$", re.M)
CLIENT_ROW = re.compile(
    r"^\| ([^|]+) \| ([^|]+) \|((?: (?:pass|fail|-) \|)+)(?: [^|]*)? \|$", re.M)
TOOL_ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| (pass|fail) \|[^|]*\|$", re.M)


def document(results, known: dict[str, str]) -> str:
    """Return the Markdown page of `results` (client, scenario, ok, note, key), in their order."""
    rows: dict[tuple[str, str], dict] = {}
    tools = []
    for result in results:
        if result.scenario in COLUMNS or result.scenario in SECURITY:
            client = result.client
            rows.setdefault((client.name, client.version), {})[result.scenario] = result
        else:
            tools.append(result)
    lines = ["# Clients and tools", "",
             "This page shows which unmodified clients pass which tests against brokerd. "
             "`make compat` generates it, and fails if a row that passes here fails or "
             "disappears. \"-\" means that the client has no such call.", "", HEAD,
             "|---" * (len(COLUMNS) + 3) + "|"]
    for (name, version), cells in rows.items():
        words = [_cell(cells.get(scenario)) for scenario in COLUMNS]
        codecs = cells["codecs"].note if "codecs" in cells and cells["codecs"].ok else "-"
        lines.append(f"| {name} | {version} | {' | '.join(words)} | {codecs} |")
    lines += ["", *(f"- **{name}**: {meaning}." for name, meaning in COLUMNS.items())]
    lines += _security(rows)
    if tools:
        lines += ["", "Kafka's own tools, from its jars:", "", TOOLS_HEAD, "|---|---|---|---|"]
        lines += [f"| {one.scenario} | {one.client.version} | {_cell(one)} | "
                  f"{one.note if one.ok else ''} |" for one in tools]
    lines += ["", *CLUSTER.splitlines()]
    failed = [result for result in results if not result.ok]
    if failed:
        lines += ["", "## Known failures", ""]
        lines += [f"- {one.key}: {known.get(one.key, one.note)}".replace("\n", " ")
                  for one in failed]
    return "\n".join(lines) + "\n"


def _security(rows: dict[tuple[str, str], dict]) -> list[str]:
    """Return the lines of the table of authentication methods."""
    lines = ["", SECURITY_TITLE, "", "Each authentication method, with the client's own settings "
             "and a broker with TLS, logins and ACLs: the first record creates its topic, and the "
             "client reads it back.", "",
             SECURITY_HEAD, "|---" * (len(SECURITY) + 3) + "|"]
    for (name, version), cells in rows.items():
        if cells.keys() & SECURITY.keys():
            words = [_cell(cells.get(scenario)) for scenario in SECURITY]
            lines.append(f"| {name} | {version} | {' | '.join(words)} | |")
    return [*lines, "", *(f"- **{name}**: {meaning}." for name, meaning in SECURITY.items())]


def _cell(result) -> str:
    if result is None:
        return "-"
    return "pass" if result.ok else "fail"


def passes(text: str, clients) -> set[str]:
    """Return the keys of the passing results in a document. Rows of former clients keep their keys.
    """
    keys = {(one.name, one.version): one.key for one in clients}
    loose = {one.name: one.key for one in clients if not one.pinned}
    tools = {one.version: one.key for one in clients if not set(one.scenarios) & set(COLUMNS)}
    text, _, text_of_tools = text.partition(TOOLS_HEAD)
    found = set()
    for part in text.partition(SECURITY_TITLE)[::2]:
        head = HEAD_ROW.search(part)
        columns = head[1].split(" | ") if head else []
        for name, version, cells in CLIENT_ROW.findall(part):
            key = loose.get(name) or keys.get((name, version), f"{name} {version}")
            words = [word.strip() for word in cells.strip("|").split("|")]
            found |= {f"{key}/{scenario}" for scenario, word in zip(columns, words, strict=True)
                      if word == "pass"}
    for tool, version, word in TOOL_ROW.findall(text_of_tools):
        if word == "pass":
            found.add(f"{tools.get(version, 'Tools ' + version)}/{tool}")
    return found
