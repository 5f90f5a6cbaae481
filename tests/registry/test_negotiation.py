"""Media types of answers and bodies."""

import pytest

from pylog.registry import negotiation

V1, V0, JSON = negotiation.TYPES


@pytest.mark.parametrize("accept, expected", [
    ("", V1), ("*/*", V1), ("*", V1), ("application/*", V1), (JSON, JSON), ("*/anything", V1),
    ("application/json; q=0.5, application/vnd.schemaregistry+json", V0),
    ("application/vnd.schemaregistry.v2+json; q=0.1, application/vnd.schemaregistry+json;q=0.9",
     V0), ("text/html, *; q=.2", V1), (f"{JSON}, {V0}, {V1}", V1), ("text/*", None),
    ("application/octet-stream", None), ("application/json;q=0", None),
    ("application/json;q=nonsense", None)])
def test_the_best_accepted_type_is_chosen(accept, expected):
    assert negotiation.answer_type(accept) == expected


@pytest.mark.parametrize("given, accepted", [
    ("", True), (JSON, True), (f"{V1}; charset=utf-8", True), ("application/octet-stream", True),
    ("text/html", False)])
def test_bodies_of_known_types_are_accepted(given, accepted):
    assert negotiation.is_body_type(given) is accepted
