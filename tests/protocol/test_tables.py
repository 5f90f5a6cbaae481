"""The tables agree with the schemas inside Kafka's jars."""

import json
import re
import zipfile

import pytest

from pylog.protocol import tables

KINDS = {
    "request": "request", "response": "response", "header": "header", "data": "data",
    "metadata": "record", "coordinator-key": "key", "coordinator-value": "value",
}


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def span(text: str | None, around: tuple[int, int]) -> tuple[int, int]:
    if text is None or text == "none":
        return tables.NONE
    low, _, high = text.removesuffix("+").partition("-")
    last = tables.OPEN if text.endswith("+") else int(high or low)
    return shrink((int(low), last), around)


def shrink(range_: tuple[int, int], around: tuple[int, int]) -> tuple[int, int]:
    low, high = max(range_[0], around[0]), min(range_[1], around[1])
    return (low, high) if low <= high else tables.NONE


@pytest.fixture(scope="module")
def schemas(kafka_jars) -> dict[str, dict]:
    found = {}
    for jar in kafka_jars:
        with zipfile.ZipFile(jar) as archive:
            for path in archive.namelist():
                if re.search(r"common/(message|metadata)/\w+\.json$", path):
                    text = re.sub(r'(?m)^\s*//.*$|//[^"\n]*$', "", archive.read(path).decode())
                    schema = json.loads(text)
                    assert schema["name"] not in found
                    if schema["name"] != "AbortedTxn":  # An entry of .txnindex: csrc/segment.
                        found[schema["name"]] = schema
    assert len(found) > 250
    return found


def default_of(field: dict) -> str | None:
    """Return the default in the table's notation, None if it is implicit."""
    if "default" not in field:
        return None
    default = str(field["default"]).strip().lower()
    if default == "none":
        default = "null"
    if default.startswith("0x"):
        default = str(int(default, 16))
    silent = {"bool": "false", "string": "", "bytes": "", "records": "null"}.get(field["type"], "0")
    return None if default == silent else default


def expected_fields(fields: list[dict], around, valid, structs: dict) -> list[tuple]:
    rows = []
    for field in fields:
        versions = field.get("versions") or field["taggedVersions"]
        present = span(versions, around)
        rows.append((
            snake(field["name"]), field["type"], present,
            span(field.get("nullableVersions"), present), field.get("tag", -1),
            span(field.get("taggedVersions"), present), field.get("flexibleVersions") == "none",
            bool(field.get("ignorable")), default_of(field),
        ))
        if field.get("fields"):
            name = field["type"].removeprefix("[]")
            structs[name] = expected_fields(field["fields"], present, valid, structs)
    return rows


def found_fields(fields: list[tables.Field], valid) -> list[tuple]:
    return [
        (field.name, ("[]" if field.array else "") + field.type, shrink(field.versions, valid),
         shrink(field.nullable, valid), field.tag, shrink(field.tagged, valid), field.plain,
         field.ignorable, field.default)
        for field in fields
    ]


def test_every_message_of_kafka_has_a_table_and_no_other_has(schemas):
    assert sorted(schemas) == sorted(tables.names())


def test_every_header_agrees_with_kafkas_schema(schemas):
    for name, schema in schemas.items():
        table = tables.message(name)
        valid = span(schema["validVersions"], (0, tables.OPEN))
        flexible = schema.get("flexibleVersions", "none")
        assert (
            table.kind, table.id, table.versions, table.flexible, list(table.listeners),
            table.unstable,
        ) == (
            KINDS[schema["type"]], schema.get("apiKey"), valid,
            span(flexible, (0, tables.OPEN)), schema.get("listeners", []),
            schema.get("latestVersionUnstable", False),
        ), name


def test_every_field_agrees_with_kafkas_schema(schemas):
    for name, schema in schemas.items():
        table = tables.message(name)
        valid = table.versions
        if valid == tables.NONE:
            assert not table.fields, name
            continue
        structs: dict[str, list[tuple]] = {}
        fields = expected_fields(schema.get("fields", []), valid, valid, structs)
        for struct in schema.get("commonStructs", []):
            around = span(struct["versions"], valid)
            structs[struct["name"]] = expected_fields(struct["fields"], around, valid, structs)
        assert found_fields(table.fields, valid) == fields, name
        assert {
            key: found_fields(inner, valid) for key, inner in table.structs.items()
        } == structs, name


def test_snake_case_names_map_back_to_kafkas(schemas):
    for name in tables.names():
        table = tables.message(name)
        for field in [*table.fields, *[f for inner in table.structs.values() for f in inner]]:
            assert snake("".join(part.title() for part in field.name.split("_"))) == field.name


def test_array_elements_have_at_least_one_byte(schemas):
    # The codec limits a declared count by the remaining bytes.
    for name in tables.names():
        table = tables.message(name)
        for version in range(table.versions[0], table.versions[1] + 1):
            for holder in [table.fields, *table.structs.values()]:
                for field in holder:
                    if field.array and field.is_struct and tables.contains(field.versions, version):
                        flexible = tables.contains(table.flexible, version)
                        inner = table.structs[field.type]
                        assert flexible or any(
                            tables.contains(f.versions, version) for f in inner
                        ), (name, version, field.name)


def test_misspelt_word_in_a_table_is_rejected():
    with pytest.raises(ValueError, match="nullable"):
        tables._parse("some", "data Some versions 0\n  name string nullable")
    with pytest.raises(ValueError, match="flexble"):
        tables._parse("some", "data Some versions 0 flexble 0+")
