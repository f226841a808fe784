"""Calls that are broken as models break them: what is corrected, what is refused, and that nothing wrong is run.

`python tests/tools/test_mutated_calls.py` prints the table that the README shows.
"""

import dataclasses
import datetime
import enum
import json
import pathlib
import random
import typing
import uuid
from collections import Counter
from decimal import Decimal

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from agentflow.errors import ToolArgumentsError
from agentflow.tools.registry import ToolRegistry, tool
from agentflow.tools.resolvers import resolve

SEED = 20250131
ROUNDS = 4  # of each mutator on each set of arguments


class Status(enum.Enum):
    PAID = "paid"
    IN_TRANSIT = "on the way"
    OPEN = "open"


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


class Address(BaseModel):
    street: str
    zip_code: str
    floor: int = 0


@dataclasses.dataclass
class Line:
    sku: str
    count: int = 1


class Point(TypedDict):
    lat: float
    lon: float


def orders(order_id: str, status: Status = Status.OPEN, max_rows: int = 10): ...
def weather_by_city(city: str, unit: Unit, days_ahead: int = 1): ...
def book(day: datetime.date, at: datetime.time, guest_count: int, note: str = ""): ...
def transfer(amount: Decimal, account_id: uuid.UUID, is_urgent: bool): ...
def search(tag_list: list[str], max_price: float | None = None, in_stock: bool = True): ...
def ship(address: Address, order_lines: list[Line]): ...
def mark(point: Point, label_text: str, size: typing.Literal["small", "large"] = "small"): ...
def write_file(target: pathlib.Path, text: str, overwrite: bool = False): ...
def meet(starts_at: datetime.datetime, attendee_ids: list[int], room_name: str | None = None): ...
def score(player_name: str, points: dict[str, int], ranks: tuple[int, int] = (0, 0)): ...
def fetch(page_number: int | typing.Literal["all"], page_size: typing.Literal[10, 20, 50]): ...
def label(issue_id: str, label_set: set[str], priority: typing.Literal["low", "high"] = "low"): ...
def cancel(order_id: str, reason_text: str, refund: bool = False): ...
def convert(**arguments): ...


SCHEMA = {
    "type": "object",
    "properties": {
        "from_currency": {"type": "string", "enum": ["EUR", "USD", "JPY"]},
        "to_currency": {"type": "string", "enum": ["EUR", "USD", "JPY"]},
        "amount_cents": {"type": "integer", "minimum": 1},
        "on_day": {"type": "string", "format": "date"},
    },
    "required": ["from_currency", "to_currency", "amount_cents"],
    "additionalProperties": False,
}

CALLS = {
    orders: [{"order_id": "12345", "status": "paid", "max_rows": 5}, {"order_id": "ORD-77", "status": "on the way"}],
    weather_by_city: [{"city": "Rome", "unit": "c"}, {"city": "New York", "unit": "f", "days_ahead": 3}],
    book: [{"day": "2025-01-31", "at": "19:30:00", "guest_count": 4, "note": "window\nor terrace"}],
    transfer: [{"amount": "10.50", "account_id": "123e4567-e89b-42d3-a456-426614174000", "is_urgent": True}],
    search: [{"tag_list": ["red"], "max_price": 12.5}, {"tag_list": ["a", "b"], "max_price": None, "in_stock": False}],
    ship: [
        {"address": {"street": "Via 1", "zip_code": "00184", "floor": 2}, "order_lines": [{"sku": "A", "count": 2}]}
    ],
    mark: [{"point": {"lat": 1.5, "lon": -2}, "label_text": "Home", "size": "large"}],
    write_file: [{"target": "notes/a.txt", "text": 'It\'s "so": {a, b}\n', "overwrite": True}],
    meet: [{"starts_at": "2025-01-31T09:00:00", "attendee_ids": [7], "room_name": "Blue"}],
    score: [{"player_name": "Ann", "points": {"x": 1, "y": 2}, "ranks": [3, 4]}],
    fetch: [{"page_number": 3, "page_size": 20}, {"page_number": "all", "page_size": 50}],
    label: [{"issue_id": "55", "label_set": ["bug", "ui"], "priority": "high"}],
    cancel: [{"order_id": "ORD123", "reason_text": "late", "refund": True}],
    convert: [{"from_currency": "EUR", "to_currency": "JPY", "amount_cents": 500, "on_day": "2025-01-31"}],
}

(CONVERT,) = ToolRegistry([tool(parameters=SCHEMA)(convert)])
TOOLS = {function: CONVERT if function is convert else next(iter(ToolRegistry([function]))) for function in CALLS}

REFUSE = object()
MUTATORS = {}


def mutator(function):
    """A mutator gives pairs of the model's text and the arguments that were meant, or REFUSE where none are clear."""
    MUTATORS[function.__name__.replace("_", " ")] = function
    return function


def text(arguments):
    return json.dumps(arguments, ensure_ascii=False)


def camel(name):
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def changed(arguments, **values):
    return text(arguments | values)


def schema_of(of, name):
    return of.parameters["properties"][name]


def of_type(of, arguments, *kinds):
    """The names of arguments whose schema is plainly of one of these types."""
    return [
        name for name in arguments if schema_of(of, name).get("type") in kinds and "enum" not in schema_of(of, name)
    ]


def members(of, name):
    schema = schema_of(of, name)
    reference = schema.get("$ref", "") or next((one.get("$ref", "") for one in schema.get("allOf", ())), "")
    return (of.parameters["$defs"][reference.rpartition("/")[2]] if reference else schema).get("enum", [])


@mutator
def cut(rng, of, arguments):
    whole = text(arguments)
    yield whole[: rng.randrange(1, len(whole))], REFUSE


@mutator
def cut_in_a_fence(rng, of, arguments):
    whole = text(arguments)
    yield f"```json\n{whole[: rng.randrange(1, len(whole))]}\n```", REFUSE


@mutator
def cut_with_single_quotes(rng, of, arguments):
    whole = repr(arguments)
    yield whole[: rng.randrange(1, len(whole))], REFUSE


@mutator
def fenced(rng, of, arguments):
    yield (
        f"```{rng.choice(['json', '', 'JSON'])}\n{json.dumps(arguments, indent=rng.choice([None, 2]))}\n```",
        arguments,
    )


@mutator
def single_quotes_and_python_words(rng, of, arguments):
    yield repr(arguments), arguments


@mutator
def python_words(rng, of, arguments):
    if any(value is None or isinstance(value, bool) for value in arguments.values()):
        pieces = (
            f"{text(key)}: {value if value in (None, True, False) else text(value)}" for key, value in arguments.items()
        )
        yield "{" + ", ".join(pieces) + "}", arguments


@mutator
def trailing_comma(rng, of, arguments):
    yield text(arguments)[:-1] + rng.choice([",}", ", }", ",\n}"]), arguments


@mutator
def keys_without_quotes(rng, of, arguments):
    yield "{" + ", ".join(f"{key}: {text(value)}" for key, value in arguments.items()) + "}", arguments


@mutator
def full_width_punctuation(rng, of, arguments):
    whole = json.dumps(arguments, ensure_ascii=False, separators=("，", "："))
    yield f"｛{whole[1:-1]}｝" if rng.random() < 0.5 else whole, arguments


@mutator
def raw_line_break(rng, of, arguments):
    if "\\n" in text(arguments):
        yield text(arguments).replace("\\n", "\n"), arguments


@mutator
def json_in_json(rng, of, arguments):
    yield text(text(arguments)), arguments


@mutator
def call_in_a_list(rng, of, arguments):
    yield text([arguments]), arguments


@mutator
def two_calls_in_a_list(rng, of, arguments):
    yield text([arguments, arguments]), REFUSE


@mutator
def duplicated_object(rng, of, arguments):
    yield text(arguments) + rng.choice(["", "\n", " "]) + text(arguments), REFUSE


@mutator
def key_given_twice(rng, of, arguments):
    key = rng.choice(list(arguments))
    yield f"{text(arguments)[:-1]}, {text(key)}: {text(arguments[key])}}}", REFUSE


@mutator
def prose_around(rng, of, arguments):
    yield f"I will call it with {text(arguments)} now.", REFUSE


@mutator
def nested_as_text(rng, of, arguments):
    for name, value in arguments.items():
        if isinstance(value, dict | list):
            yield changed(arguments, **{name: text(value)}), arguments
            yield changed(arguments, **{name: repr(value)}), arguments


@mutator
def renamed(rng, of, arguments):
    style = rng.choice(
        [camel, str.upper, lambda name: name.replace("_", "-"), lambda name: name.title().replace("_", "")]
    )
    yield text({style(name): value for name, value in arguments.items()}), arguments


@mutator
def one_letter_missing(rng, of, arguments):
    names = [name for name in of.parameters.get("required", ()) if len(name) > 6]
    for name in names[:1]:
        at = rng.randrange(1, len(name) - 1)
        yield (
            text({(key[:at] + key[at + 1 :] if key == name else key): value for key, value in arguments.items()}),
            arguments,
        )


@mutator
def another_name(rng, of, arguments):
    name = rng.choice(of.parameters["required"])
    yield text({("the_thing" if key == name else key): value for key, value in arguments.items()}), REFUSE


@mutator
def misspelt_option(rng, of, arguments):
    options = [name for name in arguments if name not in of.parameters["required"]]
    for name in options:
        yield text({(f"{key}_value" if key == name else key): value for key, value in arguments.items()}), REFUSE


@mutator
def extra_key(rng, of, arguments):
    yield changed(arguments, zzz_comment=rng.choice(["because", 7, None])), arguments


@mutator
def extra_guard(rng, of, arguments):
    yield changed(arguments, dry_run=rng.choice([True, False, "true", "yes"])), REFUSE


@mutator
def second_spelling(rng, of, arguments):
    name = rng.choice(list(arguments))
    yield changed(arguments, **{rng.choice([name.upper(), f"{name}x", camel(name) + "s"]): "other"}), REFUSE


@mutator
def number_as_text(rng, of, arguments):
    for name in of_type(of, arguments, "integer", "number", "boolean"):
        yield changed(arguments, **{name: str(arguments[name])}), arguments


@mutator
def digits_as_number(rng, of, arguments):
    for name in of_type(of, arguments, "string"):
        if arguments[name].isdigit():
            yield changed(arguments, **{name: int(arguments[name])}), arguments


@mutator
def number_in_words(rng, of, arguments):
    for name in of_type(of, arguments, "integer", "number", "boolean"):
        yield changed(arguments, **{name: rng.choice(["many", "five", "1,5", "3 or 4", "", {"value": 1}])}), REFUSE


@mutator
def object_for_text(rng, of, arguments):
    for name in of_type(of, arguments, "string"):
        yield changed(arguments, **{name: rng.choice([{"value": arguments[name]}, True, 1.5, [], ["a", "b"]])}), REFUSE


@mutator
def enum_in_other_case(rng, of, arguments):
    for name in arguments:
        if isinstance(arguments[name], str) and arguments[name] in members(of, name):
            style = rng.choice(
                [str.upper, str.title, lambda value: f" {value} ", lambda value: value.replace(" ", "_")]
            )
            yield changed(arguments, **{name: style(arguments[name])}), arguments


@mutator
def enum_by_name(rng, of, arguments):
    for name, kind in (("status", Status), ("unit", Unit)):
        if name in arguments and of in (TOOLS[orders], TOOLS[weather_by_city]):
            member = kind(arguments[name]).name
            yield (
                changed(arguments, **{name: rng.choice([member, member.lower(), f"{kind.__name__}.{member}"])}),
                arguments,
            )


@mutator
def enum_unknown(rng, of, arguments):
    for name in arguments:
        if members(of, name):
            yield changed(arguments, **{name: rng.choice(["purple", "", 99, "a or b"])}), REFUSE


@mutator
def null_for_an_option(rng, of, arguments):
    for name in arguments:
        schema = schema_of(of, name)
        if name not in of.parameters["required"] and not any(
            one.get("type") == "null" for one in schema.get("anyOf", ())
        ):
            meant = {key: value for key, value in arguments.items() if key != name}
            yield changed(arguments, **{name: None}), meant


@mutator
def null_for_what_is_needed(rng, of, arguments):
    yield changed(arguments, **{rng.choice(of.parameters["required"]): None}), REFUSE


@mutator
def list_for_one(rng, of, arguments):
    for name in of_type(of, arguments, "string", "integer", "number", "boolean"):
        yield changed(arguments, **{name: [arguments[name]]}), arguments
        yield changed(arguments, **{name: [arguments[name]] * 2}), REFUSE


@mutator
def one_for_list(rng, of, arguments):
    for name, value in arguments.items():
        if isinstance(value, list) and len(value) == 1:
            yield changed(arguments, **{name: value[0]}), arguments


@mutator
def date_in_another_form(rng, of, arguments):
    forms = ["2025/1/31", "31.01.2025", "2025年1月31日", "20250131", "Jan 31, 2025", "31 January 2025", "01/31/2025"]
    for name in arguments:
        schema, form = schema_of(of, name), rng.choice(forms)
        if schema.get("format") == "date":
            yield changed(arguments, **{name: form}), arguments
        elif schema.get("format") == "date-time":
            yield changed(arguments, **{name: f"{form} {rng.choice(['9:00', '09:00:00', '9:00 AM'])}"}), arguments
        elif schema.get("format") == "time":
            yield changed(arguments, **{name: rng.choice(["19:30", "7:30 pm", "07:30PM"])}), arguments


@mutator
def date_with_two_readings(rng, of, arguments):
    for name in arguments:
        if schema_of(of, name).get("format") in ("date", "date-time"):
            yield changed(arguments, **{name: rng.choice(["01.02.2025", "2/1/2025", "tomorrow", "2025-02-30"])}), REFUSE


def packable(of, arguments):
    """Arguments of which the first is a text that can carry the others, or nothing."""
    first = next(iter(arguments))
    plain = all(isinstance(value, str | int) and "\n" not in str(value) for value in arguments.values())
    return [first] if plain and len(arguments) > 1 and first in of_type(of, arguments, "string") else []


def as_it_is(of, arguments):
    """A text that may be a form or code as well: it is nothing but itself, where that fits."""
    return text(arguments), arguments if of.contract.validator.is_valid(arguments) else REFUSE


def pairs(arguments, sign, separator, style=camel):
    return separator.join(f"{style(key)}{sign}{value}" for key, value in arguments.items())


@mutator
def smuggled_query(rng, of, arguments):
    for first in packable(of, arguments):
        yield text({first: rng.choice(["", "?"]) + pairs(arguments, "=", "&", rng.choice([camel, str]))}), arguments


@mutator
def smuggled_after_the_value(rng, of, arguments):
    for first in packable(of, arguments):
        rest = {key: value for key, value in arguments.items() if key != first}
        yield text({first: f"{arguments[first]}&{pairs(rest, '=', '&')}"}), arguments


@mutator
def smuggled_own_name(rng, of, arguments):
    for first in packable(of, arguments):
        yield changed(arguments, **{first: f"{rng.choice([camel(first), first])}={arguments[first]}"}), arguments


@mutator
def smuggled_colons_and_commas(rng, of, arguments):
    for first in packable(of, arguments):
        yield text({first: pairs(arguments, rng.choice([": ", ":", "="]), rng.choice([", ", "; ", "\n"]))}), arguments


@mutator
def smuggled_full_width(rng, of, arguments):
    for first in packable(of, arguments):
        yield text({first: pairs(arguments, rng.choice(["：", "＝"]), rng.choice(["，", "；", "＆"]))}), arguments


@mutator
def smuggled_with_a_stranger(rng, of, arguments):
    for first in packable(of, arguments):
        yield as_it_is(of, {first: pairs(arguments, "=", "&") + "&zzz=1"})


@mutator
def smuggled_json(rng, of, arguments):
    for first in packable(of, arguments):
        yield text({first: text(arguments)}), arguments


@mutator
def smuggled_contradiction(rng, of, arguments):
    for first in packable(of, arguments):
        yield (
            changed(arguments, **{first: pairs({key: f"{value}0" for key, value in arguments.items()}, "=", "&")}),
            REFUSE,
        )


@mutator
def smuggled_without_its_own(rng, of, arguments):
    for first in packable(of, arguments):
        rest = {key: value for key, value in arguments.items() if key != first}
        yield as_it_is(of, {first: pairs(rest, "=", "&")})


def cases():
    """(mutator, tool, text, arguments that were meant or REFUSE), the same at every call; no text twice."""
    rng, seen = random.Random(SEED), set()
    for name, mutate in MUTATORS.items():
        for function, calls in CALLS.items():
            for arguments in calls:
                for _ in range(ROUNDS):
                    for raw, meant in mutate(rng, TOOLS[function], arguments):
                        if (name, function, raw) not in seen:
                            seen.add((name, function, raw))
                            yield name, TOOLS[function], raw, meant


def outcome(of, raw, meant):
    try:
        given = of.contract.convert(resolve(of, raw).arguments)
    except ToolArgumentsError:
        return "refused" if meant is REFUSE else "left to the model"
    if meant is REFUSE or given != of.contract.convert(meant):
        return "wrongly executed"
    return "repaired"


OUTCOMES = ("repaired", "refused", "left to the model", "wrongly executed")


def counted():
    counts = {name: Counter() for name in MUTATORS}
    for name, of, raw, meant in cases():
        counts[name][outcome(of, raw, meant)] += 1
    return counts


def table():
    """The counts as Markdown."""
    counts = counted()
    counts["all"] = sum(counts.values(), Counter())
    rows = [f"| {name} | {' | '.join(str(count[one]) for one in OUTCOMES)} |" for name, count in counts.items()]
    return "\n".join([f"| broken by | {' | '.join(OUTCOMES)} |", "|---" * 5 + "|", *rows])


def test_no_broken_call_is_run_with_anything_but_what_was_meant():
    wrong = [(name, of.name, raw) for name, of, raw, meant in cases() if outcome(of, raw, meant) == "wrongly executed"]

    assert wrong == []


def test_there_are_many_broken_calls_and_nearly_all_that_can_be_repaired_are():
    total = sum(counted().values(), Counter())

    assert len(TOOLS) >= 12
    assert total.total() >= 400
    assert total["left to the model"] <= 0.03 * (total["repaired"] + total["left to the model"])


@pytest.mark.parametrize("name", MUTATORS)
def test_every_mutator_breaks_something(name):
    assert any(case[0] == name for case in cases())


def test_a_corrected_call_needs_no_second_correction():
    for _, of, raw, meant in cases():
        if meant is not REFUSE and outcome(of, raw, meant) == "repaired":
            found = resolve(of, raw).arguments
            assert resolve(of, json.dumps(found)) == (found, ())


if __name__ == "__main__":
    print(table())  # noqa: T201  it is what this is run for
