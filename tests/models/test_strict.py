import json

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from agentflow.models.strict import strict_schema, without_absent


class Address(BaseModel):
    street: str
    note: str = "none"


class Order(BaseModel):
    """A schema with references, defaults, optional and nullable properties, at depth."""

    id: str
    count: int = 1
    comment: str | None = None
    to: Address
    others: list[Address] = []


def objects(node):
    if isinstance(node, dict):
        if "properties" in node:
            yield node
        for item in node.values():
            yield from objects(item)
    elif isinstance(node, list):
        for item in node:
            yield from objects(item)


def test_in_the_strict_form_every_object_is_closed_and_everything_required():
    strict = strict_schema(Order.model_json_schema())
    assert strict is not None
    assert '"default"' not in json.dumps(strict)
    assert len(list(objects(strict))) == 2
    for node in objects(strict):
        assert node["additionalProperties"] is False
        assert node["required"] == list(node["properties"])
    assert strict["properties"]["id"] == {"title": "Id", "type": "string"}
    assert strict["properties"]["count"]["anyOf"][1] == {"type": "null"}
    assert len(strict["properties"]["comment"]["anyOf"]) == 2, "what may be null already gets no second null"


def test_the_original_is_not_touched():
    schema = Order.model_json_schema()
    before = json.dumps(schema)
    strict_schema(schema)
    assert json.dumps(schema) == before


def test_a_reference_keeps_its_description():
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A", "description": "the a"}},
        "required": ["a"],
        "$defs": {"A": {"type": "string"}},
    }
    strict = strict_schema(schema)
    assert strict is not None
    assert strict["properties"]["a"] == {"anyOf": [{"$ref": "#/$defs/A"}], "description": "the a"}


def prop(node):
    return {"type": "object", "properties": {"a": node}, "required": ["a"]}


def deep(levels):
    node = {"type": "string"}
    for _ in range(levels):
        node = prop(node)
    return node


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"anyOf": [prop({"type": "string"})], "type": "object"},
        prop({}),
        prop(True),
        prop({"type": "object"}),
        prop({"type": "object", "additionalProperties": {"type": "string"}}),
        prop({"type": "array"}),
        prop({"type": "string", "minLength": 1}),
        prop({"type": "string", "format": "uri"}),
        prop({"allOf": [{"type": "string"}]}),
        prop({"oneOf": [{"type": "string"}]}),
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "properties": {str(n): {"type": "string"} for n in range(5001)}},
        deep(12),
    ],
)
def test_one_node_that_does_not_fit_leaves_no_strict_form(schema):
    assert strict_schema(schema) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        prop({"enum": ["x", "y"]}),
        prop({"const": 1}),
        prop({"type": ["string", "null"], "format": "date"}),
        prop({"type": "array", "items": prop({"type": "integer", "minimum": 0})}),
        deep(10),
    ],
)
def test_what_fits_has_one(schema):
    strict = strict_schema(schema)
    assert strict is not None
    Draft202012Validator.check_schema(strict)
    assert strict_schema(strict) == strict


def test_nulls_that_stand_for_absent_are_dropped_at_any_depth():
    said = {
        "id": "1",
        "count": None,
        "comment": None,
        "to": {"street": "s", "note": None},
        "others": [{"street": "t", "note": None}, {"street": "u", "note": "n"}],
    }
    dropped = json.loads(without_absent(json.dumps(said), Order.model_json_schema()))
    assert dropped == {
        "id": "1",
        "comment": None,
        "to": {"street": "s"},
        "others": [{"street": "t"}, {"street": "u", "note": "n"}],
    }
    Order.model_validate(dropped)


def test_a_null_where_a_value_is_required_stays_and_is_told_by_the_validation():
    said = '{"id": null, "to": null}'
    assert without_absent(said, Order.model_json_schema()) is said


def test_a_null_within_a_choice_is_dropped_by_the_branch_that_has_its_keys():
    a, b = ({"type": "object", "properties": {key: {"type": "string"}, "n": {"type": "integer"}}} for key in "ab")
    schema = prop({"anyOf": [a, b, {"type": "null"}]})
    assert without_absent('{"a":{"b":"x","n":null}}', schema) == '{"a":{"b":"x"}}'
    assert without_absent('{"a":null}', schema) == '{"a":null}'


@pytest.mark.parametrize("text", ["", "null", "{cut null", '{"a": "null"}', "[" * 5000 + "null", '{"unknown": null}'])
def test_all_other_text_stays_exactly_as_it_is(text):
    assert without_absent(text, Order.model_json_schema()) is text


def test_references_that_lead_nowhere_end():
    loop = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/nowhere"}},
        "$defs": {"A": {"$ref": "#/$defs/A"}},
    }
    assert without_absent('{"a":null,"b":null}', loop) == "{}"
    assert strict_schema(loop) is not None


def test_without_anyone_to_drop_nulls_an_optional_property_does_not_fit():
    assert strict_schema(Order.model_json_schema(), absent_as_null=False) is None
    assert strict_schema(prop({"type": "string"}), absent_as_null=False) is not None
