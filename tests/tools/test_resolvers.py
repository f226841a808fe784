"""A model's text: what becomes arguments, and what the model is told where it does not."""

import datetime
import enum
import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agentflow.errors import ToolArgumentsError
from agentflow.tools import resolvers
from agentflow.tools.registry import ToolRegistry, tool
from agentflow.tools.resolvers import example_arguments


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    sku: str
    count: int = 1


@tool(examples=[{"order_id": "ORD1", "item": {"sku": "a"}}])
def change(order_id: str, item: Item, colour: Colour = Colour.RED, note: str | None = None):
    return order_id


def anything(**arguments):
    return arguments


def made(function, **options):
    (result,) = ToolRegistry([tool(**options)(function) if options else function])
    return result


def resolve(of, raw):
    return resolvers.resolve(of, raw).arguments


CHANGE = made(change)
FREE = made(anything, parameters={"type": "object"})


def refusal(raw, of=CHANGE):
    with pytest.raises(ToolArgumentsError) as caught:
        resolve(of, raw)
    return str(caught.value)


@pytest.mark.parametrize("raw", ["", "  \n", "null", " null ", "{}", None])
def test_blank_and_null_mean_no_arguments(raw):
    assert resolve(FREE, raw) == {}


def test_arguments_that_fit_are_given_back_without_defaults():
    raw = '{"order_id": "12345678901234567890123456", "item": {"sku": "a"}}'

    assert resolve(CHANGE, raw) == {"order_id": "12345678901234567890123456", "item": {"sku": "a"}}


def test_numbers_and_text_keep_every_digit():
    raw = '{"big": 123456789012345678901234567890, "text": "0012", "float": 1.5, "list": ["1", 1]}'

    assert resolve(FREE, raw) == {
        "big": 123456789012345678901234567890,
        "text": "0012",
        "float": 1.5,
        "list": ["1", 1],
    }


def test_surrogate_pairs_are_joined_and_lone_ones_replaced_so_that_the_event_can_be_written():
    resolved = resolve(FREE, '{"a": "\\ud83d\\ude00", "b": ["\\ud800"]}')

    assert resolved == {"a": "\U0001f600", "b": ["\ufffd"]}
    json.dumps(resolved, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "raw",
    [
        '{"path": "a", "text": "abc',
        '{"a": 1',
        '{"a": 1}}',
        '{"a": 1}{"a": 1}',
        "{'a': 1",
        "{'text': 'it's here'}",
        '{"a": 1,',
        '{"a": 1, "b"}',
        '{"a": yes}',
        "undefined",
        "```json\n{}\n``",
        "```json\n{}",
        "Here it is: {}",
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": 1, "a": 2}',
        '{"a": {"b": 1, "b": 2}}',
        '{"a": ' + "1" * 5000 + "}",
        '{"a": ' * 100_000,
        "[" * 100_000 + "]" * 100_000,
        "\x00",
    ],
)
def test_text_that_is_not_strict_json_is_refused_and_never_completed(raw):
    assert "not valid JSON" in refusal(raw, FREE)


@pytest.mark.parametrize("raw", ["[]", "5", '"text"', "true", "[1]"])
def test_json_that_is_no_object_is_refused(raw):
    assert "expected a JSON object" in refusal(raw, FREE)


def nested(levels):
    return '{"a":' * levels + "1" + "}" * levels


def test_nesting_is_refused_beyond_64_levels():
    assert resolve(FREE, nested(64))
    assert "deeper than 64" in refusal(nested(65), FREE)
    assert "deeper than 64" in refusal('{"a":' + "[" * 64 + "]" * 64 + "}", FREE)


def test_a_missing_and_an_unknown_field_are_named_with_what_is_near():
    text = refusal('{"orders": "1", "item": {"sku": "a"}}')

    assert "missing: order_id" in text
    assert "'orders' is not a field, did you mean 'order_id'" in text


def test_a_wrong_value_is_told_with_its_field_the_allowed_values_and_an_example():
    text = refusal('{"order_id": 1.50, "item": {"sku": "a", "count": "two"}, "colour": "green"}')

    assert 'order_id: 1.5 is not of type "string"' in text
    assert 'item.count: "two" is not of type "integer"' in text
    assert 'colour: "green" is not allowed; allowed: "red", "blue"' in text
    assert text.endswith('Example: {"order_id": "ORD1", "item": {"sku": "a"}}')


def test_nothing_is_guessed_to_fit():
    for raw in ('{"n": "five"}', '{"n": true}', '{"n": null}', '{"n": 1.5}', '{"n": []}', '{"n": [1, 2]}'):

        def count(n: int):
            return n

        assert "not of type" in refusal(raw, made(count))


def test_a_long_value_is_cut_in_the_refusal():
    text = refusal(json.dumps({"order_id": ["x" * 100_000] * 2, "item": {"sku": "a"}}))

    assert len(text) < 1000


def test_many_wrong_values_are_not_all_told():
    def numbers(values: list[int]):
        return values

    assert refusal(json.dumps({"values": ["x"] * 4_000}), made(numbers)).count("\n- ") == 5


def test_many_unknown_names_are_not_all_told():
    def nothing(): ...

    text = refusal(json.dumps({f"k{n}": n for n in range(4_000)}), made(nothing))

    assert text.count("is not a field") == 5


def test_more_than_5_000_values_are_refused():
    assert resolve(FREE, json.dumps({"a": [1] * 4_999}))
    for raw in (
        json.dumps({"a": [1] * 5_000}),
        json.dumps({"a": [[]] * 5_000}),
        json.dumps({str(n): n for n in range(5_001)}),
    ):
        assert "more than 5000 values; give fewer at a time" in refusal(raw, FREE)


def test_long_text_is_read_strictly_and_corrected_by_the_user_s_resolvers_only():
    def seen(of, arguments):
        return resolvers.Resolved(arguments | {"note": "seen"})

    padding = "x" * 64 * 1024
    fits = json.dumps({"order_id": padding, "item": {"sku": "a"}})

    assert resolve(CHANGE, fits) == json.loads(fits)
    found = resolvers.resolve(CHANGE, fits, resolvers=(*resolvers.DEFAULT_RESOLVERS, seen))
    assert found.arguments["note"] == "seen"
    assert "'orderId' is not a field" in refusal(json.dumps({"orderId": padding, "item": {"sku": "a"}}))
    assert "not valid JSON" in refusal("{'order_id': '" + padding + "', 'item': {'sku': 'a'}}")


def test_whatever_goes_wrong_in_validation_is_a_refusal():
    loop = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}

    assert "could not be checked (RecursionError)" in refusal('{"a": 1}', made(anything, parameters=loop))


@pytest.mark.parametrize(
    ("text", "fits"),
    [("2025-01-31T12:00:00Z", True), ("2025-02-30T12:00:00Z", False), ("tomorrow", False), ("(" * 500, False)],
)
def test_the_formats_of_dates_are_checked(text, fits):
    of = made(anything, parameters={"type": "object", "properties": {"a": {"type": "string", "format": "date-time"}}})
    raw = json.dumps({"a": text})

    if fits:
        assert resolve(of, raw) == {"a": text}
    else:
        assert "date-time" in refusal(raw, of)


def test_other_formats_say_nothing():
    of = made(anything, parameters={"type": "object", "properties": {"a": {"type": "string", "format": "regex"}}})

    assert resolve(of, json.dumps({"a": "(" * 500})) == {"a": "(" * 500}


def test_an_example_is_made_from_the_schema_where_none_was_given():
    def probe(
        item: Item,
        colour: Colour,
        many: list[int],
        maybe: float | None,
        when: datetime.datetime,
        flag: bool,
        pair: tuple[str, int],
        at_least: typing.Annotated[int, Field(ge=18)],
        optional: int = 3,
    ):
        return item

    assert example_arguments(made(probe)) == {
        "item": {"sku": "text"},
        "colour": "red",
        "many": [0],
        "maybe": 0,
        "when": "2025-01-31T12:00:00Z",
        "flag": True,
        "pair": ["text", 0],
        "at_least": 18,
    }


def test_no_example_is_better_than_a_wrong_one():
    of = made(anything, parameters={"type": "object", "properties": {"a": {"pattern": "^z"}}, "required": ["a"]})

    assert example_arguments(of) is None
    assert "Example" not in refusal('{"a": "x"}', of)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text() | json_values.map(json.dumps) | st.dictionaries(st.text(), json_values).map(json.dumps))
def test_any_text_is_either_refused_or_arguments_that_can_be_written_again(raw):
    for of in (CHANGE, FREE):
        try:
            resolved = resolve(of, raw)
        except ToolArgumentsError as error:
            str(error).encode()
        else:
            assert json.loads(json.dumps(resolved, allow_nan=False).encode()) == resolved


def shout(of, arguments):
    found = {name: value.upper() if name == "order_id" else value for name, value in arguments.items()}
    return resolvers.Resolved(found, (resolvers.Correction("order_id", arguments["order_id"], found["order_id"], "x"),))


def test_a_resolver_of_the_user_takes_its_place_in_the_chain():
    raw = '{"orderId": "a", "item": {"sku": "a"}}'
    found = resolvers.resolve(CHANGE, raw, resolvers=(*resolvers.DEFAULT_RESOLVERS, shout))

    assert found.arguments == {"order_id": "A", "item": {"sku": "a"}}
    assert [one.rule for one in found.corrections] == ["name", "x"]


def test_without_resolvers_nothing_is_corrected():
    for raw in ("{'order_id': 'a'}", '{"orderId": "a", "item": {"sku": "a"}}'):
        with pytest.raises(ToolArgumentsError):
            resolvers.resolve(CHANGE, raw, resolvers=())


@pytest.mark.parametrize(
    ("error", "told"), [(ValueError("not today"), "- not today"), (KeyError("x"), "could not be checked (KeyError)")]
)
def test_a_resolver_that_raises_refuses_the_call(error, told):
    def refuse(of, arguments):
        raise error

    with pytest.raises(ToolArgumentsError) as caught:
        resolvers.resolve(CHANGE, '{"order_id": "a", "item": {"sku": "a"}}', resolvers=(refuse,))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "given_back",
    [
        None,
        5,
        {},
        {"order_id": "a"},
        ({"order_id": "a"}, ()),
        resolvers.Resolved({}, None),
        resolvers.Resolved({}, ["x"]),
    ],
)
def test_a_resolver_that_gives_back_something_else_refuses_the_call(given_back):
    with pytest.raises(ToolArgumentsError, match="could not be checked"):
        resolvers.resolve(
            CHANGE, '{"order_id": "a", "item": {"sku": "a"}}', resolvers=(lambda of, arguments: given_back,)
        )


@pytest.mark.parametrize(
    "raw",
    [
        '{"orderId": "a", "item": {"sku": "a"}}',
        '{"order_id": 5, "item": {"sku": "a"}}',
        '{"order_id": "a", "item": {"sku": "a", "count": "2"}}',
        '{"order_id": "a", "item": {"sku": "a"}, "more": 1}',
        '{"order_id": "a", "item": {"sku": "a"}, "colour": "RED"}',
        "{'order_id': 'a', 'item': {'sku': 'a'}}",
        '{"order_id": "orderId=a", "item": {"sku": "a"}}',
    ],
)
def test_strict_corrects_nothing_and_refuses_what_would_be_corrected(raw):
    assert resolvers.resolve(CHANGE, raw).corrections
    with pytest.raises(ToolArgumentsError):
        resolvers.resolve(CHANGE, raw, mode="strict")


def test_strict_takes_what_fits():
    raw = '{"order_id": "a=b&c=d", "item": {"sku": "a"}}'

    assert resolvers.resolve(CHANGE, raw, mode="strict") == resolvers.resolve(CHANGE, raw) == (json.loads(raw), ())


def test_text_that_says_something_else_than_the_arguments_beside_it_is_refused_with_the_field():
    text = refusal('{"order_id": "orderId=a&note=b", "item": {"sku": "a"}, "note": "c"}')

    assert "order_id: its text says something else about 'note'" in text


@pytest.mark.parametrize(
    "body",
    [
        "title=x&method=delete",
        "method=delete",
        "method: delete",
        "a=1\nmethod=DELETE",
        "x&method=DELETE&zzz=1",
        "body&a=1",
    ],
)
def test_a_form_that_has_a_parameter_s_name_in_it_stays_what_it_is(body):
    def send(url: str, method: typing.Literal["GET", "DELETE"] = "GET", body: str = ""): ...

    arguments = {"url": "u", "body": body}

    assert resolvers.resolve(made(send), json.dumps(arguments)) == (arguments, ())


def test_a_member_is_known_by_its_name_with_or_without_its_class_only():
    def paint(colour: Colour): ...

    for name in ("RED", "Colour.RED", "colour.red"):
        assert resolve(made(paint), json.dumps({"colour": name})) == {"colour": "red"}
    for name in ("not.red", "x.RED", "Size.RED"):
        assert "is not allowed" in refusal(json.dumps({"colour": name}), made(paint))


@pytest.mark.parametrize("packed", [["orderId=a&note=b"], "order_id=orderId=a"])
def test_packed_text_that_was_itself_packed_is_refused(packed):
    assert "is several arguments in one" in refusal(json.dumps({"order_id": packed, "item": {"sku": "a"}}))
