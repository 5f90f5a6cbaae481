"""The published table of clients: docs/compat.md from the results of one run.

Owns: nothing.
Called by: tests.compat.
Invariants: (1) every client is one row, every scenario one column; (2) what fails has its reason
  below the table.
"""

COLUMNS = {
    "codecs": "every codec the client has, written and read back byte for byte by assignment",
    "group": "a group of one, a second member joins, then leaves; every record is seen",
    "resume": "commit, leave, and go on from the commit with a new consumer",
    "seek": "the offset for a time, and reading from there",
    "admin": "create, describe and delete a topic",
    "streams": "a word count of Kafka Streams, at least once, stopped and started again",
}


def document(results, known: dict[str, str]) -> str:
    """Markdown of `results` (client, scenario, ok, note, key), in their order."""
    rows: dict[tuple[str, str], dict] = {}
    for result in results:
        rows.setdefault((result.client.name, result.client.version), {})[result.scenario] = result
    lines = ["# Clients", "",
             "Unmodified clients against brokerd, written by `make compat`; "
             "\"-\" where the client has no such call.", "",
             f"| client | version | {' | '.join(COLUMNS)} | codecs |",
             f"|---|---|{'---|' * (len(COLUMNS) + 1)}"]
    for (name, version), cells in rows.items():
        words = [_cell(cells.get(scenario)) for scenario in COLUMNS]
        codecs = cells["codecs"].note if "codecs" in cells and cells["codecs"].ok else "-"
        lines.append(f"| {name} | {version} | {' | '.join(words)} | {codecs} |")
    lines += ["", *(f"- **{name}**: {meaning}." for name, meaning in COLUMNS.items())]
    failed = [result for result in results if not result.ok]
    if failed:
        lines += ["", "## What fails", ""]
        lines += [f"- {one.key}: {known.get(one.key, one.note)}".replace("\n", " ")
                  for one in failed]
    return "\n".join(lines) + "\n"


def _cell(result) -> str:
    if result is None:
        return "-"
    return "pass" if result.ok else "fail"
