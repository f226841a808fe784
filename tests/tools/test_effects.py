"""What makes two calls the same deed."""

import dataclasses
import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.errors import ToolFailedError
from agentflow.tools.effects import canonical, key_of
from agentflow.tools.registry import ToolRegistry, tool

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, "x"]}, '{"a":[true,null,"x"],"b":1}'),
        ({"b": {"d": 1, "c": 2}}, '{"b":{"c":2,"d":1}}'),
        ("é漢", '"é漢"'),
        (5, "5"),
        (5.0, "5"),
        (-0.0, "0"),
        (0.1, "0.1"),
        ([5.0, {"n": 1e3}], '[5,{"n":1000}]'),
        (True, "true"),
        ("5", '"5"'),
        ("lone \ud800", '"lone \ufffd"'),
        (float("nan"), "null"),
        ((1, 2), "[1,2]"),
        (datetime.date(2025, 1, 31), '"2025-01-31"'),
    ],
)
def test_a_value_has_one_text(value, text):
    assert canonical(value) == text


@given(json_values)
def test_the_order_of_keys_says_nothing_and_the_text_can_be_utf_8(value):
    def turned(item):
        if isinstance(item, dict):
            return {key: turned(item[key]) for key in reversed(item)}
        return [turned(one) for one in item] if isinstance(item, list) else item

    assert canonical(turned(value)) == canonical(value)
    canonical(value).encode()


def pay(**options):
    @tool(**options)
    def pay(order_id: str | None = None, cents: float = 0, note: str | None = None):
        raise AssertionError("never called")

    (made,) = ToolRegistry([pay])
    return made


def test_a_tool_that_declares_none_has_no_key():
    assert key_of(pay(), {"order_id": "A"}) is None


def test_names_give_a_key_that_is_of_the_tool_and_of_these_arguments_only():
    made = pay(idempotency_key=["order_id", "cents"])
    key = key_of(made, {"order_id": "A", "cents": 5})

    assert key.startswith("pay:")
    assert len(key) == len("pay:") + 64
    same = [{"cents": 5.0, "order_id": "A"}, {"order_id": "A", "cents": 5, "note": "x"}]
    other = [{"order_id": "A", "cents": 6}, {"order_id": "a", "cents": 5}, {"order_id": "A"}, {"cents": 5}]
    assert {key_of(made, arguments) for arguments in same} == {key}
    assert len({key, *(key_of(made, arguments) for arguments in other)}) == 5
    assert key_of(dataclasses.replace(made, name="refund"), {"order_id": "A", "cents": 5}) != key
    assert key_of(made, {"order_id": "A"}) == key_of(made, {"order_id": "A", "cents": 0})


def test_a_default_that_is_said_and_one_that_is_not_are_one_deed():
    made = pay(idempotency_key=["order_id", "cents"])
    assert key_of(made, {"order_id": "A"}) == key_of(made, {"order_id": "A", "cents": 0})
    assert key_of(made, {"order_id": "A"}) != key_of(made, {"order_id": "A", "cents": 1})
    with pytest.raises(ToolFailedError, match="no idempotency key"):
        key_of(made, {})

    @tool(
        idempotency_key=["order_id", "note"],
        parameters={
            "type": "object",
            "properties": {"order_id": True, "note": {"type": "string", "default": "none"}},
        },
    )
    def told(**arguments: object) -> None:
        """Tell it."""

    (made,) = ToolRegistry([told])
    assert key_of(made, {"order_id": "A"}) == key_of(made, {"order_id": "A", "note": "none"})
    assert key_of(made, {"note": "none"}) != key_of(made, {"note": "none", "order_id": "A"})


def test_values_never_run_into_each_other():
    made = pay(idempotency_key=["order_id", "note"])

    assert key_of(made, {"order_id": "A,B"}) != key_of(made, {"order_id": "A", "note": "B"})
    assert key_of(made, {"order_id": "A"}) != key_of(made, {"note": "A"})


@pytest.mark.parametrize("arguments", [{}, {"cents": 5}, {"order_id": None}, {"order_id": ""}, {"order_id": " "}])
def test_a_call_that_gives_none_of_its_key_is_no_deed_of_a_name_and_must_not_run(arguments):
    with pytest.raises(ToolFailedError, match="pay: the call has no idempotency key, give 'order_id' or 'note'"):
        key_of(pay(idempotency_key=["order_id", "note"]), arguments)


def test_a_key_of_zero_or_false_is_a_key():
    made = pay(idempotency_key=["cents"])

    assert key_of(made, {"cents": 0}) != key_of(made, {"cents": 1})


@pytest.mark.parametrize("key", ["A", "x" * 512, "é漢", " A "])
def test_a_function_gives_the_key_as_it_is(key):
    assert key_of(pay(idempotency_key=lambda arguments: key), {}) == key


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("", "a text of 0 characters, expected 1 to 512"),
        (" \n", "a text of 2 characters"),
        ("x" * 513, "a text of 513 characters"),
        ("lone \ud800", "can be UTF-8"),
        (None, "NoneType, expected a text"),
        (5, "int, expected a text"),
        (b"A", "bytes, expected a text"),
    ],
    ids=repr,
)
def test_a_function_that_gives_no_key_is_a_failure_that_names_the_tool(key, says):
    with pytest.raises(ToolFailedError, match=f"^pay: idempotency_key returned .*{says}"):
        key_of(pay(idempotency_key=lambda arguments: key), {})


@pytest.mark.parametrize("error", [KeyError("order_id"), SystemExit(1), GeneratorExit(), MemoryError()], ids=repr)
def test_a_function_that_raises_is_a_failure_that_names_the_tool(error):
    def key(arguments):
        raise error

    with pytest.raises(ToolFailedError, match=f"^pay: idempotency_key raised {type(error).__name__}") as caught:
        key_of(pay(idempotency_key=key), {})
    assert caught.value.__cause__ is error


def test_a_function_that_changes_what_it_is_given_changes_nothing_else():
    def key(arguments):
        return arguments["lines"].pop()

    arguments = {"lines": ["a", "b"]}

    assert key_of(pay(idempotency_key=key), arguments) == "b"
    assert arguments == {"lines": ["a", "b"]}
