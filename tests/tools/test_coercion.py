"""Values that do not fit their schema: which one value was meant, or none."""

import dataclasses
import datetime
import enum
import json
import typing

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from agentflow.tools.coercion import Coercion, Correction
from agentflow.tools.registry import ToolRegistry
from agentflow.tools.resolvers import fit_values


class Size(enum.Enum):
    SMALL = "s"
    EXTRA_LARGE = "xl"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Node(BaseModel):
    name: str
    children: list["Node"] = []


@dataclasses.dataclass
class Line:
    sku_code: str
    count: int = 1


def validator(schema):
    return Draft202012Validator(schema)


def fitted(annotation, value):
    def probe(a):
        return a

    probe.__annotations__["a"] = annotation
    (of,) = ToolRegistry([probe])
    found = fit_values(of, {"a": value})
    assert bool(found.corrections) == (json.dumps(found.arguments) != json.dumps({"a": value}))
    return found.arguments["a"]


@pytest.mark.parametrize(
    ("annotation", "value", "meant"),
    [
        (int, "5", 5),
        (int, " +5.0 ", 5),
        (int, "５", 5),
        (int, "123456789012345678901234567890", 123456789012345678901234567890),
        (float, "1.5e3", 1500.0),
        (float, "2", 2),
        (bool, "True", True),
        (bool, "no", False),
        (bool, 0, False),
        (str, 123456789012345678901234567890, "123456789012345678901234567890"),
        (int | None, "null", None),
        (int | None, "7", 7),
        (list[int], "1, 2, 3", [1, 2, 3]),
        (list[int], ["1", 2], [1, 2]),
        (list[int], "[1, '2',]", [1, 2]),
        (list[str], "one", ["one"]),
        (list[str], 5, ["5"]),
        (list[int] | list[float], "5", [5]),
        (set[Size], "s, xl", ["s", "xl"]),
        (tuple[int, str], ["1", 2], [1, "2"]),
        (dict[str, int], {"x": "1"}, {"x": 1}),
        (dict[str, int], '{"x": "1"}', {"x": 1}),
        (Size, "XL", "xl"),
        (Size, "Size.EXTRA_LARGE", "xl"),
        (Size, "extra large", "xl"),
        (list[Size], ["SMALL", "xl"], ["s", "xl"]),
        (Level, "high", 2),
        (Level, "2", 2),
        (typing.Literal["in stock", "sold"], "IN_STOCK", "in stock"),
        (typing.Literal["5", "6"], 5, "5"),
        (typing.Literal["only"], "ONLY", "only"),
        (datetime.date | None, "2025/1/31", "2025-01-31"),
        (datetime.datetime, 1738281600, "2025-01-31T00:00:00Z"),
        (Line, {"skuCode": "A", "count": "2"}, {"sku_code": "A", "count": 2}),
        (list[Line], {"sku_code": "A"}, [{"sku_code": "A"}]),
        (Node, {"name": 1, "children": [{"Name": "b"}]}, {"name": "1", "children": [{"name": "b"}]}),
        (Line | None, "{'sku_code': 'A'}", {"sku_code": "A"}),
        (typing.Annotated[int, "about"] | None, ["3"], 3),
    ],
)
def test_a_value_with_one_reading_is_read(annotation, value, meant):
    assert fitted(annotation, value) == meant


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "1,000"),
        (int, "5 apples"),
        (int, 5.5),
        (int, True),
        (int, ""),
        (float, "1,5"),
        (float, "1.5²"),
        (int, "10²"),
        (int, "①②"),
        (int, "5₂"),
        (list[int], "1,000"),
        (list[int], "1.000,2"),
        (list[float], "1,5"),
        (list[int], "10², 3"),
        (list[str], '["ORD1"'),
        (list[str], "['a', 'b"),
        (list[str], "["),
        (list[str], "[a]"),
        (list[str], '["a"] ["b"]'),
        (list[str], '{"a":1}'),
        (list[str], '"a"'),
        (list[str], "null"),
        (list[str], "None"),
        (list[str], ""),
        (list[str], " "),
        (Size, "not.small"),
        (float, "nan"),
        (float, "1e999"),
        (bool, "maybe"),
        (bool, 2),
        (str, 1.10),
        (str, True),
        (str, ["a", "b"]),
        (str, {"a": "b"}),
        (list[str], "red, blue"),
        (list[int], None),
        (Size, "large"),
        (Size, 5),
        (typing.Literal["-1", "0"], "1"),
        (typing.Literal["c++", "java"], "c"),
        (typing.Literal["a", "A"], "Ä"),
        (typing.Literal["on", "ON"], "On"),
        (int | bool, "1"),
        (dict[str, int] | None, "x=1"),
        (datetime.date, "02.01.2025"),
        (datetime.date, 1738281600),
        (datetime.time, 930),
        (Line, {"sku_code": "A", "count": {"n": 1}}),
    ],
)
def test_a_value_with_none_or_several_is_left_to_validation(annotation, value):
    assert fitted(annotation, value) == value


def test_each_change_is_told_with_its_place():
    def probe(lines: list[Line], note: str = ""): ...

    (of,) = ToolRegistry([probe])
    found = fit_values(of, {"lines": [{"skuCode": "A", "count": "2", "zzz": 1}], "note": None})

    assert found.arguments == {"lines": [{"sku_code": "A", "count": 2}]}
    assert found.corrections == (
        Correction("lines.0.skuCode", "skuCode", "sku_code", "name"),
        Correction("lines.0.zzz", 1, None, "unknown_dropped"),
        Correction("lines.0.count", "2", 2, "number"),
        Correction("note", None, None, "null"),
    )


def test_an_unknown_key_that_may_be_a_parameter_or_holds_a_structure_stays_and_is_refused():
    def probe(order_id: str, limit: int = 5): ...

    (of,) = ToolRegistry([probe])
    for extra in (
        {"limits": 3}, {"max_limit": 3}, {"dry_run": True}, {"confirm": False}, {"force": "no"}, {"ORDER_ID": "2"},
        {"order_idd": "2"}, {"orderId": None}, {"x" * 101: 1},
        {"limit_of_the_rows": 3}, {"kwargs": {"limit": 3}}, {"more": [1]},
    ):  # fmt: skip
        assert fit_values(of, {"order_id": "1"} | extra) == ({"order_id": "1"} | extra, ())


def test_an_object_of_many_unknown_keys_is_refused_rather_than_emptied():
    def probe(order_id: str): ...

    (of,) = ToolRegistry([probe])
    few, many = ({"order_id": "1"} | {f"zz{n}": n for n in range(count)} for count in (10, 11))

    assert fit_values(of, few).arguments == {"order_id": "1"}
    assert "zz10" in fit_values(of, many).arguments


def test_an_open_object_takes_any_key():
    schema = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
    coercion = Coercion(validator(schema), {})

    assert coercion.fit({"order_id": "1", "more": 5}, schema) == {"order_id": "1", "more": 5}
    assert coercion.fit({"orderId": "1", "more": 5}, schema) == {"order_id": "1", "more": 5}


def test_a_type_may_be_a_list_of_types():
    schema = {"type": ["integer", "null"]}

    assert Coercion(validator(schema), {}).fit("7", schema) == 7
    assert Coercion(validator(schema), {}).fit("None", schema) is None


def test_a_union_within_itself_costs_a_bounded_number_of_steps():
    branches = [{"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "required": [key]} for key in "pq"]
    schema = {"$defs": {"a": {"anyOf": branches}}, "$ref": "#/$defs/a"}
    value = {}
    for _ in range(8):
        value = {"x": value}
    coercion = Coercion(validator(schema), {})

    assert coercion.fit(value, schema) is value
    assert coercion.made == []


def test_what_is_huge_is_left_to_validation():
    def probe(tags: list[str], limit: int = 1): ...

    (of,) = ToolRegistry([probe])
    for huge in ({"tags": "a," * 100_000}, {"tags": ["a"]} | {f"k{n}": 1 for n in range(1000)}):
        assert fit_values(of, huge) == (huge, ())


class Tree(BaseModel):
    value: int | None = None
    tags: list[int | bool] | None = None
    child: "Tree | None" = None


class Counting:
    """A validator that counts the values it is asked about."""

    def __init__(self, schema):
        self.schema = schema
        self.validated = 0

    def evolve(self, schema):
        self.asked = schema
        return self

    def is_valid(self, value):
        self.validated += json.dumps(value).count(",") + 1
        return validator({"$defs": self.schema.get("$defs", {})} | self.asked).is_valid(value)


def test_the_work_on_a_deep_value_is_bounded_and_a_value_that_needs_more_is_left_as_it_is():
    schema = Tree.model_json_schema()

    def tree(tags):
        value = {"value": "1", "tags": [1] * tags}
        for _ in range(8):
            value = {"value": 0, "child": value}
        return value

    counting, huge = Counting(schema), tree(3_000)
    coercion = Coercion(counting, {})

    assert coercion.fit(huge, schema) is huge
    assert coercion.made == []
    assert counting.validated <= 6_000
    assert Coercion(Counting(schema), {}).fit({"value": "1"}, schema) == {"value": 1}


def test_a_value_that_fits_is_the_same_object():
    value = {"a": ["5", {"b": "null"}]}

    assert Coercion(validator({"type": "object"}), {}).fit(value, {"type": "object"}) is value
