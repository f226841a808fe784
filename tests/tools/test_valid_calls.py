"""Calls that fit their tool pass as they are, whatever their text looks like."""

import json
import typing

import pytest

from agentflow.tools.registry import ToolRegistry
from agentflow.tools.resolvers import resolve
from tests.tools.test_mutated_calls import CALLS, TOOLS, Address, Line

TEXTS = [
    "a=b&c=d",
    "5",
    "007",
    "12345678901234567890123456",
    "1e5",
    "true",
    "None",
    "null",
    "",
    " ",
    " padded ",
    '{"a": 1}',
    '{"a": [1, 2], "b": null}',
    '["x", "y"]',
    "[1]",
    "{'single': 'quotes'}",
    "```json\n{}\n```",
    "https://example.org/",
    "https://example.org/search?q=1&kind=paid#top",
    "https://example.org/?kind=paid&note=x",
    "mailto:ann@example.org?subject=Hello",
    "/search?kind=paid&page=2",
    "kind",
    "Kind of blue",
    "Hello, kind: regards",
    "Dear team,\nkind: regards",
    "Re: your note",
    "10:30",
    "12:00, 13:00",
    "2025/1/31",
    "31.01.2025",
    "20250131",
    "a, b; c\nd",
    "key: value",
    "x = 1; y = 2",
    "if x == 1 && kind == 2",
    "SELECT * FROM t WHERE a = 1 AND b = 'x'",
    "def f(a=1, b=2): return a",
    "C:\\path\\file",
    'it\'s "quoted"',
    "“curly”，全角：标点",
    "AT&T and R&D",
    "50% off + more",
    "<b>bold</b> &amp; more",
    "PAID",
    "Status.PAID",
    "\u0001\u2028 control",
    "emoji \U0001f600",
    "e=mc^2",
    "abc==",
    "x" * 5000,
]


def one(kind: str): ...
def with_others(note: str, kind: str = "", page: int = 1): ...
def many(notes: list[str], by_name: dict[str, str], extra: str | None = None): ...
def either(value: str | int, other: list[str] | str): ...
def nested(address: Address, lines: list[Line]): ...
def anything(value, other: typing.Any = None): ...


def calls():
    for text in TEXTS:
        yield one, {"kind": text}
        yield with_others, {"note": text}
        yield with_others, {"note": text, "kind": text, "page": 2}
        yield many, {"notes": [text, text], "by_name": {text: text}, "extra": text}
        yield many, {"notes": [], "by_name": {}, "extra": None}
        yield either, {"value": text, "other": [text]}
        yield either, {"value": 5, "other": text}
        yield nested, {"address": {"street": text, "zip_code": text}, "lines": [{"sku": text, "count": 1}]}
        yield anything, {"value": text, "other": {"kind": [text, 1, None, 2.5, True]}}
        yield anything, {"value": [text], "other": {text: text}}


def test_every_valid_call_is_unchanged_and_unremarked():
    tools = {function: next(iter(ToolRegistry([function]))) for function, _ in calls()}
    checked = [*((tools[function], arguments) for function, arguments in calls())]
    checked += [(TOOLS[function], arguments) for function, given in CALLS.items() for arguments in given]

    assert len(checked) >= 500
    for of, arguments in checked:
        for raw in (json.dumps(arguments), json.dumps(arguments, ensure_ascii=False, indent=1)):
            assert resolve(of, raw) == (arguments, ()), (of.name, raw)
            assert json.dumps(resolve(of, raw).arguments) == json.dumps(arguments)


@pytest.mark.parametrize("arguments", [{"note": "note=a&page=2"}, {"note": "note: x, page: 2"}, {"note": "x&page=2"}])
def test_text_that_names_other_parameters_is_the_exception_and_strict_refuses_it(arguments):
    (of,) = ToolRegistry([with_others])

    with pytest.raises(Exception, match="several arguments"):
        resolve(of, json.dumps(arguments), mode="strict")
