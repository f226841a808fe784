"""The schema matrix: for each kind of parameter the schema, a call that fits and one that does not."""

import dataclasses
import datetime
import decimal
import enum
import functools
import pathlib
import typing
import uuid

import pytest
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from agentflow.errors import ConfigError, ToolArgumentsError
from agentflow.tools.registry import ToolRegistry, tool
from agentflow.tools.resolvers import resolve
from agentflow.tools.schema import ToolContext, build, read_docstring


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    sku: str
    parts: list["Item"] = []


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Address(TypedDict):
    street: str


UserId = typing.NewType("UserId", int)


def check(annotation, schema, good, value, bad, **definitions):
    """One parameter of this type: its schema, what the body gets for `good`, and that `bad` is refused."""

    def probe(a):
        return a

    probe.__annotations__["a"] = annotation
    (made,) = ToolRegistry([probe])

    assert made.parameters["properties"]["a"] == schema
    assert made.parameters["required"] == ["a"]
    assert made.parameters["additionalProperties"] is False
    assert made.parameters.get("$defs", {}) == definitions
    assert made.contract.convert({"a": good}) == {"a": value}
    assert type(made.contract.convert({"a": good})["a"]) is type(value)
    with pytest.raises(ToolArgumentsError, match="not run"):
        made.contract.convert(resolve(made, f'{{"a": {bad}}}', mode="strict").arguments)


POINT = {
    "title": "Point",
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
    "required": ["x"],
    "additionalProperties": False,
}
ITEM = {
    "title": "Item",
    "type": "object",
    "properties": {
        "sku": {"type": "string"},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/Item"}, "default": []},
    },
    "required": ["sku"],
    "additionalProperties": False,
}
ADDRESS = {
    "title": "Address",
    "type": "object",
    "properties": {"street": {"type": "string"}},
    "required": ["street"],
    "additionalProperties": False,
}
ID = "123e4567-e89b-42d3-a456-426614174000"


@pytest.mark.parametrize(
    ("annotation", "schema", "good", "value", "bad"),
    [
        (str, {"type": "string"}, "12345678901234567890123456", "12345678901234567890123456", "5"),
        (int, {"type": "integer"}, 2**70, 2**70, '"5"'),
        (float, {"type": "number"}, 1, 1.0, '"1"'),
        (bool, {"type": "boolean"}, True, True, "1"),
        (list[int], {"type": "array", "items": {"type": "integer"}}, [1], [1], '["1"]'),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}, {"a": 1}, {"a": 1.0}, "[]"),
        (set[int], {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}, [1, 2], {1, 2}, "[1, 1]"),
        (
            tuple[int, str],
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
            [1, "a"],
            (1, "a"),
            "[1]",
        ),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, None, '"x"'),
        (
            typing.Optional[list[typing.Optional[int]]],  # noqa: UP045  the old spelling is what is tested
            {
                "anyOf": [
                    {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
                    {"type": "null"},
                ]
            },
            [1, None],
            [1, None],
            '["x"]',
        ),
        (typing.Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, "a", "a", '"c"'),
        (UserId, {"type": "integer"}, 7, 7, '"7"'),
        (
            datetime.datetime,
            {"type": "string", "format": "date-time"},
            "2025-01-31T12:00:00",
            datetime.datetime(2025, 1, 31, 12),
            '"2025-02-30T12:00:00"',
        ),
        (datetime.date, {"type": "string", "format": "date"}, "2025-01-31", datetime.date(2025, 1, 31), '"2025-13-01"'),
        (datetime.time, {"type": "string", "format": "time"}, "12:00:00", datetime.time(12), '"25:00:00"'),
        (uuid.UUID, {"type": "string", "format": "uuid"}, ID, uuid.UUID(ID), '"123"'),
        (pathlib.Path, {"type": "string", "format": "path"}, "/a", pathlib.Path("/a"), "1"),
        (bytes, {"type": "string", "format": "binary"}, "é", "é".encode(), "1"),
        (
            typing.Annotated[int, Field(ge=1, description="how many")],
            {"type": "integer", "minimum": 1, "description": "how many"},
            1,
            1,
            "0",
        ),
    ],
)
def test_a_type_becomes_a_schema_and_its_values_come_back_as_that_type(annotation, schema, good, value, bad):
    check(annotation, schema, good, value, bad)


def test_an_enum_a_dataclass_a_typed_dict_and_a_recursive_model_stand_in_definitions():
    colours = {"title": "Colour", "type": "string", "enum": ["red", "blue"]}
    check(Colour, {"$ref": "#/$defs/Colour"}, "red", Colour.RED, '"green"', Colour=colours)
    check(Point, {"$ref": "#/$defs/Point"}, {"x": 1}, Point(1), '{"y": 1}', Point=POINT)
    check(Address, {"$ref": "#/$defs/Address"}, {"street": "a"}, {"street": "a"}, '{"street": 1}', Address=ADDRESS)
    tree = {"sku": "a", "parts": [{"sku": "b"}]}
    value = Item(sku="a", parts=[Item(sku="b")])
    check(Item, {"$ref": "#/$defs/Item"}, tree, value, '{"sku": "a", "parts": [{}]}', Item=ITEM)


def test_a_nested_model_refuses_fields_it_does_not_have():
    check(Point, {"$ref": "#/$defs/Point"}, {"x": 1}, Point(1), '{"x": 1, "z": 2}', Point=POINT)


def test_defaults_are_shown_but_only_python_fills_them_in():
    def search(
        limit: int = 10,
        after: datetime.date = datetime.date(2025, 1, 1),
        tags: list[str] = [],  # noqa: B006  what users write
        deep: int = None,  # noqa: RUF013  what users write
    ):
        return limit

    (made,) = ToolRegistry([search])

    properties = made.parameters["properties"]
    assert properties["limit"] == {"type": "integer", "default": 10}
    assert properties["after"] == {"type": "string", "format": "date", "default": "2025-01-01"}
    assert properties["tags"]["default"] == []
    assert properties["deep"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert "required" not in made.parameters
    assert resolve(made, "").arguments == {}
    assert made.contract.convert({"deep": None}) == {"deep": None}


def test_a_default_that_is_not_json_is_left_out_of_the_schema():
    marker = object()

    def probe(a: typing.Any = marker):
        return a

    assert build(probe, name="probe").parameters["properties"] == {"a": {}}


def test_a_pydantic_field_as_default_works_as_in_a_model():
    def probe(
        a: int = Field(ge=1, description="first"),
        b: list[int] = Field(default_factory=lambda: [7], max_length=3),  # noqa: B008  what users write
    ):
        return a

    contract = build(probe, name="probe")

    assert contract.parameters["required"] == ["a"]
    assert contract.parameters["properties"]["a"] == {"type": "integer", "minimum": 1, "description": "first"}
    assert contract.convert({"a": 1}) == {"a": 1, "b": [7]}
    assert contract.convert({"a": 1, "b": [1]}) == {"a": 1, "b": [1]}


def test_a_parameter_without_a_hint_takes_any_json_value():
    def probe(a, b=3):
        return a

    contract = build(probe, name="probe")

    assert contract.parameters["properties"] == {"a": {}, "b": {"default": 3}}
    assert contract.parameters["required"] == ["a"]
    assert contract.convert({"a": {"x": [1, "2"]}}) == {"a": {"x": [1, "2"]}}


def test_a_context_parameter_is_not_shown():
    def probe(a: int, context: ToolContext, other: ToolContext | None = None):
        return a

    contract = build(probe, name="probe")

    assert list(contract.parameters["properties"]) == ["a"]
    assert contract.contexts == ("context", "other")


def test_hints_that_are_strings_are_read_with_the_globals_and_the_closure_of_the_function():
    class Local(BaseModel):
        n: int

    def probe(point: "Point", local: "Local", items: "list[Item]") -> "Missing":  # noqa: F821  never needed
        return Local

    contract = build(probe, name="probe")

    value = contract.convert({"point": {"x": 1}, "local": {"n": 2}, "items": [{"sku": "a"}]})
    assert value == {"point": Point(1), "local": Local(n=2), "items": [Item(sku="a")]}


def test_a_function_may_close_over_what_is_assigned_after_it():
    def probe(n: "int") -> int:
        return helper(n)

    contract = build(probe, name="probe")

    def helper(n):
        return n + 1

    assert contract.parameters["properties"]["n"]["type"] == "integer"
    assert probe(1) == 2


def test_a_partial_a_callable_object_and_a_wrapped_function_show_what_is_left_of_the_signature():
    def base(a: int, b: str) -> str:
        """Join.

        Args:
            a: A number.
        """
        return f"{a}{b}"

    class Shout:
        def __call__(self, text: str) -> str:
            """Make it loud."""
            return text.upper()

    @functools.wraps(base)
    def wrapped(*args, **kwargs):
        return base(*args, **kwargs)

    registry = ToolRegistry([functools.partial(base, 1), Shout()])

    assert list(registry.get("base").parameters["properties"]) == ["b"]
    assert registry.get("Shout").description == "Make it loud."
    assert list(registry.get("Shout").parameters["properties"]) == ["text"]
    assert list(build(wrapped, name="w").parameters["properties"]) == ["a", "b"]
    assert build(wrapped, name="w").parameters["properties"]["a"]["description"] == "A number."


class Odd:
    pass


def positional(a: int, /):
    return a


def starred(*values: int):
    return values


def double_starred(**values: int):
    return values


def unknown(a: "Missing"):  # noqa: F821  what is tested
    return a


def odd(a: Odd):
    return a


def calls(a: typing.Callable[[], int]):
    return a


class Unbound:
    def method(self, a: int):
        return a


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (positional, "parameter 'a': is positional-only"),
        (starred, "parameter '\\*values: int': has no schema"),
        (double_starred, "parameter '\\*\\*values: int': has no schema"),
        (unknown, "parameter 'a': its type 'Missing' cannot be resolved"),
        (odd, "parameter 'a': its type cannot be told to a model"),
        (calls, "parameter 'a': its type cannot be told to a model"),
        (Unbound.method, "parameter 'self': is not bound"),
        (len, "parameter 'obj': is positional-only"),
        (dict.fromkeys, "has no readable signature|positional-only"),
    ],
)
def test_what_a_model_cannot_fill_in_is_refused_by_name(function, says):
    with pytest.raises(ConfigError, match=says):
        build(function, name="probe")


def anything(**arguments):
    return arguments


def takes_a(a: datetime.date):
    return a


def test_an_explicit_json_schema_stands_as_it_is_and_values_are_converted_where_there_is_a_hint():
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "date"}}, "required": ["a"]}

    assert build(anything, name="p", parameters=schema).parameters == schema
    assert build(anything, name="p", parameters=schema).convert({"a": "2025-01-01"}) == {"a": "2025-01-01"}
    assert build(takes_a, name="p", parameters=schema).convert({"a": "2025-01-01"}) == {"a": datetime.date(2025, 1, 1)}


def test_an_explicit_model_converts_and_fills_in_its_defaults():
    contract = build(anything, name="p", parameters=Item)

    assert contract.parameters["type"] == "object"
    assert contract.convert({"sku": "a"}) == {"sku": "a", "parts": []}


def test_rows_take_python_and_json_types():
    def probe(day, **more):
        return day

    rows = [("day", datetime.date, "which day"), ("n", "integer", "how many")]
    contract = build(probe, name="p", parameters=rows)

    assert contract.parameters["properties"] == {
        "day": {"type": "string", "format": "date", "description": "which day"},
        "n": {"type": "integer", "description": "how many"},
    }
    assert contract.parameters["required"] == ["day", "n"]
    assert contract.convert({"day": "2025-01-01", "n": 1}) == {"day": datetime.date(2025, 1, 1), "n": 1}


def test_a_row_whose_parameter_has_a_default_is_optional():
    def probe(a=1):
        return a

    contract = build(probe, name="p", parameters=[("a", int, "a number")])

    assert "required" not in contract.parameters
    assert contract.convert({}) == {}


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"type": "object", "properties": {"b": {}}, "required": ["b"]}, "'b': stands in parameters="),
        ({"type": "object", "properties": {}}, "'a': is needed by the function, but missing"),
        ({"type": "object", "properties": {"a": {}}}, "'a': is needed by the function, but not required"),
        ([("a", "text", "")], "no such JSON type: 'text'"),
        ([("a", int)], "must be \\(name, type, description\\)"),
        ([("b", int, "")], "'b': stands in parameters="),
        (Item, "'sku': stands in parameters="),
        (Odd, "no pydantic model"),
    ],
)
def test_an_explicit_schema_must_fit_the_signature(parameters, says):
    with pytest.raises(ConfigError, match=says):
        build(takes_a, name="p", parameters=parameters)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "http://127.0.0.1:1/schema"}}},
        {"properties": {"a": {"$ref": "other.json"}}},
        {"properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"properties": {"a": {"$dynamicRef": "https://example.invalid/x"}}},
        {"properties": {"a": {"type": "text"}}},
        {"properties": {"a": {"minimum": "1"}}},
        {"type": "array"},
    ],
)
def test_a_schema_that_is_wrong_or_does_not_stand_alone_is_refused_and_nothing_is_fetched(schema):
    with pytest.raises(ConfigError, match="'p'"):
        build(anything, name="p", parameters=schema)


def test_a_schema_that_is_too_deep_to_be_read_is_refused():
    deep: dict = {}
    for _ in range(3000):
        deep = {"properties": {"a": deep}}
    with pytest.raises((ConfigError, RecursionError)):
        build(anything, name="p", parameters=deep)


def test_a_value_that_fits_the_schema_but_not_the_type_is_an_arguments_error():
    class Even(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def even(cls, n: int) -> int:
            if n % 2:
                raise ValueError("must be even")
            return n

    def probe(a: Even, d: decimal.Decimal):
        return a

    contract = build(probe, name="p")
    with pytest.raises(ToolArgumentsError, match=r"a\.n: Value error, must be even"):
        contract.convert({"a": {"n": 1}, "d": "1.5"})
    assert contract.convert({"a": {"n": 2}, "d": "1.50"})["d"] == decimal.Decimal("1.50")


def test_what_the_body_gets_is_never_the_stored_arguments():
    stored = {"a": {"list": [1]}, "b": [1]}

    def probe(a, b: list):
        return a

    got = build(probe, name="p").convert(stored)
    got["a"]["list"].append(2)
    got["b"].append(2)

    assert stored == {"a": {"list": [1]}, "b": [1]}


GOOGLE = """Find an order.

    More about it.

    Args:
        a: The first,
            on two lines.
        b (int, optional): The second.

    Keyword Args:
        c: The third.

    Note:
        Slow.

    Returns:
        The order.

    Raises:
        ValueError: Never.
    """
NUMPY = """Find an order.

    More about it.

    Note
    ----
    Slow.

    Parameters
    ----------
    a : str
        The first,
        on two lines.
    b : int, optional
        The second.

    Other Parameters
    ----------------
    c
        The third.

    Returns
    -------
    str
        The order.
    """
SPHINX = """Find an order.

    More about it.

    :param a: The first,
        on two lines.
    :param int b: The second.
    :keyword c: The third.
    :returns: The order.
    :raises ValueError: Never.
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_a_docstring_of_each_style_describes_the_tool_and_its_parameters(docstring):
    def probe(a, b, *, c):
        return a

    probe.__doc__ = docstring
    contract = build(probe, name="p")

    described = {name: schema["description"] for name, schema in contract.parameters["properties"].items()}
    assert described == {"a": "The first, on two lines.", "b": "The second.", "c": "The third."}
    assert contract.description.startswith("Find an order.\n\nMore about it.")
    for left_out in ("The order", "The first", "ValueError"):
        assert left_out not in contract.description


@pytest.mark.parametrize(
    "docstring",
    [
        "Args:\n        a: Text.\n    ",
        "Args:\n        a: Text.\n\n    Returns:\n        It.\n    ",
        "Arguments:\n    a: Text.",
        "Keyword Args:\n        a: Text.\n    ",
        ":param a: Text.",
        "Parameters\n    ----------\n    a : int\n        Text.\n    ",
    ],
)
def test_a_docstring_without_a_summary_keeps_its_parameter_texts(docstring):
    def probe(a):
        return a

    probe.__doc__ = docstring
    contract = build(probe, name="p")

    assert contract.parameters["properties"]["a"] == {"description": "Text."}
    assert contract.description == ""


def test_a_docstring_that_describes_something_else_is_only_text():
    assert read_docstring("Just this.", ["a"]) == ("Just this.", {})
    assert read_docstring("", ["a"]) == ("", {})
    assert read_docstring("S.\n\nArgs:\n    z: other", ["a"]) == ("S.", {})


def test_the_texts_of_a_type_win_over_the_docstring():
    def probe(a: typing.Annotated[int, Field(description="from the type")]):
        """S.

        Args:
            a: from the docstring
        """
        return a

    assert build(probe, name="p").parameters["properties"]["a"]["description"] == "from the type"


def test_reading_docstrings_logs_nothing(caplog):
    def probe(a):
        """S.

        Args:
            a: x
            zz: unknown
        """
        return a

    ToolRegistry([tool(probe)])

    assert caplog.records == []


LATE = """
from __future__ import annotations
import datetime


def probe(day: datetime.date, count: int = 1) -> str:
    return f"{day:%A} {count}"


def lost(day: Missing) -> str:
    return ""
"""


def test_annotations_that_are_text_are_those_they_name_and_unknown_ones_are_told():
    module = {"__name__": "late"}
    exec(compile(LATE, "late.py", "exec"), module)
    made = build(module["probe"], name="probe", parameters=None)
    assert made.parameters["properties"]["day"]["format"] == "date"
    assert module["probe"](**made.convert({"day": "2025-01-06"})) == "Monday 1"
    with pytest.raises(ConfigError, match="Missing"):
        build(module["lost"], name="lost", parameters=None)
