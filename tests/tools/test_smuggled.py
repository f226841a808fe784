"""Text that carries other arguments, and text that only looks so."""

import pytest

from agentflow.tools.smuggled import allows_packed_text, take_apart

KNOWN = ["order_id", "type", "text"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("orderId=ORD123&type=paid", {"order_id": "ORD123", "type": "paid"}),
        ("?order_id=ORD123&type=paid", {"order_id": "ORD123", "type": "paid"}),
        ("ORD123&type=paid", {"": "ORD123", "type": "paid"}),
        ("ORD 123&type=on%20the%20way", {"": "ORD 123", "type": "on the way"}),
        ("order_id=ORD123", {"order_id": "ORD123"}),
        ("order_id = 'ORD123'", {"order_id": "ORD123"}),
        ("order_id: ORD123", {"order_id": "ORD123"}),
        ("order_id: ORD123, type: paid", {"order_id": "ORD123", "type": "paid"}),
        ("order_id: Rome, Italy, type: paid", {"order_id": "Rome, Italy", "type": "paid"}),
        ('order_id="ORD123", type="paid"', {"order_id": "ORD123", "type": "paid"}),
        ("ORD123,type=paid", {"": "ORD123", "type": "paid"}),
        ("Order-ID: ORD123\nType: paid", {"order_id": "ORD123", "type": "paid"}),
        ("order_id:ORD123;type:paid", {"order_id": "ORD123", "type": "paid"}),
        ("order_id：ORD123，type：paid", {"order_id": "ORD123", "type": "paid"}),
        ("ORD123＆type＝paid", {"": "ORD123", "type": "paid"}),
        ("order_id=abc==", {"order_id": "abc=="}),
        ("order_id=a&type=https://x/?a=b", {"order_id": "a", "type": "https://x/?a=b"}),
        ('{"order_id": "ORD123", "type": 5}', {"order_id": "ORD123", "type": "5"}),
    ],
)
def test_text_with_parameters_as_keys_is_taken_apart(text, parts):
    found = take_apart(text, "order_id", KNOWN)

    assert found is not None
    assert {part.key: part.value for part in found} == parts


@pytest.mark.parametrize(
    "text",
    [
        "a=b&c=d",
        "type=paid",
        "title=x&type=paid",
        "order_id=ORD123&foo=bar",
        "ORD123&type=paid&foo=bar",
        "x=1\ntype=paid",
        "ORD123",
        "",
        "Hello, type: regards",
        "type: paid",
        "Order_id: see below for the whole story",
        "https://example.org/?type=paid&order_id=7",
        "/search?type=paid&order_id=7",
        "if x && type=1",
        "order_id == 7",
        "order_id://host",
        '{"type": "paid"}',
        '{"order_id": "a", "other": 1}',
        '{"order_id": "a"',
        '["order_id"]',
        "two words, type=paid",
        "order_id=a&type=b" + " " * 5000,
        "&&&===",
    ],
)
def test_other_text_is_left_as_it_is(text):
    assert take_apart(text, "order_id", KNOWN) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^.*$"},
        {"type": "string", "format": "uri"},
        {"anyOf": [{"type": "string", "format": "url"}, {"type": "null"}]},
        {"type": "string", "description": "A filter such as type=paid"},
        {"type": "string", "examples": ["type=paid&x=1"]},
        {"type": "string", "default": "type=paid"},
    ],
)
def test_a_parameter_may_ask_for_such_text(schema):
    assert allows_packed_text("order_id", schema, ())


def test_an_example_of_the_tool_allows_it_for_its_own_parameter_only():
    examples = [{"text": "type=paid"}]

    assert allows_packed_text("text", {"type": "string"}, examples)
    assert not allows_packed_text("order_id", {"type": "string", "description": "The number, e.g. ORD123"}, examples)
