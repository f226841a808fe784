"""The wire contract: every class goes there and back, and what JSON cannot carry is marked."""

import dataclasses
import datetime
import decimal
import enum
import json
import typing
import uuid
from pathlib import Path

import jsonschema
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.events import (
    EVENT_CLASSES,
    TERMINAL_TYPES,
    DeltaEvent,
    Event,
    EventType,
    State,
    TerminalEvent,
    decode,
    encode,
    json_schema,
    plain,
    stamp,
)
from agentflow.messages import clean_text
from tests.builders import delta

DATA = Path(__file__).parent / "data"

text = st.text(max_size=20)
number = st.floats(0, 1e9, allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
LEAVES = {
    str: text,
    int: st.integers(0, 2**53),
    float: number,
    bool: st.booleans(),
    type(None): st.none(),
    typing.Any: json_values,
}


def values(kind):  # noqa: PLR0911  one return per kind of type
    """A strategy for a field's type, since Hypothesis does not know Structs."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in LEAVES:
        return LEAVES[kind]
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is ...:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if origin is dict:
        return st.dictionaries(text, values(arguments[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return st.builds(kind, **{field.name: values(field.type) for field in fields})
    return st.one_of(*map(values, arguments))  # a union


@pytest.mark.parametrize("cls", EVENT_CLASSES)
def test_every_class_goes_over_the_wire_and_back(cls):
    @settings(max_examples=25, deadline=None)
    @given(values(cls))
    def goes_and_comes_back(event):
        wire = encode(event)
        assert b"\n" not in wire
        assert decode(wire) == event
        assert json.loads(wire)["type"] == event.type.value

    goes_and_comes_back()


def test_the_union_and_the_types_are_the_same():
    assert {cls.type for cls in EVENT_CLASSES} == set(EventType)
    assert {cls.type for cls in typing.get_args(TerminalEvent)} == TERMINAL_TYPES
    for cls in EVENT_CLASSES:
        assert issubclass(cls, Event)
        assert cls.__name__.removesuffix("Event").lower() == cls.type.value.replace("_", "")


def test_unknown_fields_are_ignored_and_anything_else_unknown_is_refused():
    wire = json.loads(encode(delta("a"))) | {"new_field": 1}
    assert decode(json.dumps(wire)) == delta("a")
    for bad in ('{"type": "news"}', "{}", "nonsense", '{"type": "delta"}', json.dumps(wire | {"channel": "loud"})):
        with pytest.raises(msgspec.DecodeError):
            decode(bad)


def test_events_are_frozen_but_for_their_writer():
    event = delta("a")
    with pytest.raises(AttributeError):
        event.text = "b"
    stamp(event, 7, "2026-01-01T00:00:00.000000Z")
    assert (event.seq, event.ts) == (7, "2026-01-01T00:00:00.000000Z")


def test_a_type_and_a_state_are_their_names():
    assert (str(EventType.TOOL_START), f"{State.AWAITING_MODEL}") == ("tool_start", "awaiting_model")
    assert delta("a").type == EventType.DELTA == "delta"
    assert isinstance(delta("a"), DeltaEvent)


def test_the_schema_is_one_and_every_golden_event_fits_it():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    lines = [line for path in sorted(DATA.glob("*.ndjson")) for line in path.read_text("utf-8").splitlines()]
    assert len(lines) > 50
    for line in lines:
        validator.validate(json.loads(line))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(json.loads(lines[0]) | {"type": "news"})


# -- plain -----------------------------------------------------------------------------------------------


class Colour(str, enum.Enum):  # noqa: UP042  the older form that users have
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: object


class Model(pydantic.BaseModel):
    when: datetime.date


class Hostile:
    def __getattr__(self, name):
        raise RuntimeError("do not look")

    def __repr__(self):
        raise RuntimeError("do not print")


class Map(dict):
    def items(self):
        raise RuntimeError("do not open")


LOOP = []
LOOP.append(LOOP)
ID = uuid.UUID(int=5)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (10**30, 10**30),
        (1.5, 1.5),
        (float("nan"), None),
        (float("-inf"), None),
        ("a\ud800", "a\ufffd"),
        (Colour.RED, "red"),
        (State.IDLE, "idle"),
        ((1, [2]), [1, [2]]),
        ({3}, [3]),
        ({1: "a", None: "b", Colour.RED: "c"}, {"1": "a", "None": "b", "red": "c"}),
        (Point(1, Point(2, None)), {"x": 1, "y": {"x": 2, "y": None}}),
        (Model(when=datetime.date(2026, 1, 2)), {"when": "2026-01-02"}),
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "2026-01-02T00:00:00Z"),
        (decimal.Decimal("1.10"), "1.10"),
        (ID, str(ID)),
        (object(), {"$unencodable": "object"}),
        (Point, {"$unencodable": "the class Point"}),
        (LOOP, [{"$unencodable": "list that contains itself"}]),
        ({"ok": 1, "bad": object()}, {"ok": 1, "bad": {"$unencodable": "object"}}),
        (Hostile(), {"$unencodable": "Hostile"}),
        ([Map(a=1), {Hostile(): 1}, 2], [{"$unencodable": "Map"}, {"$unencodable": "dict"}, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_is_what_json_can_carry(value, expected):
    assert plain(value) == expected
    msgspec.json.encode(plain(value))


def test_plain_marks_what_is_too_deep():
    deep = []
    for _ in range(5000):
        deep = [deep]
    assert b"nested deeper than 64 levels" in msgspec.json.encode(plain(deep))


@given(json_values)
def test_plain_leaves_json_as_it_is(value):
    assert plain(value) == value


anything = st.recursive(
    st.none() | st.floats() | st.text(st.characters(exclude_categories=())) | st.binary(max_size=5) | st.builds(object)
    | st.datetimes() | st.decimals() | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text() | st.integers() | st.none(), inner, max_size=3)
    | st.tuples(inner, inner),
    max_leaves=8,
)  # fmt: skip


@given(anything)
def test_plain_never_raises_and_its_result_is_json(value):
    encoded = msgspec.json.encode(plain(value))
    assert clean_text(encoded.decode()) == encoded.decode()
    assert plain(plain(value)) == plain(value)
