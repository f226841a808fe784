"""When a human is asked, and what they approve."""

import hashlib

import pytest

from agentflow.tools.approval import arguments_hash, reason_to_ask
from agentflow.tools.registry import ToolRegistry, tool

ARGUMENTS = {"order_id": "A", "cents": 500}


def pay(approval):
    @tool(approval=approval)
    def pay(order_id: str, cents: int):
        raise AssertionError("never called")

    (made,) = ToolRegistry([pay])
    return made


def test_the_hash_is_over_the_canonical_json_of_call_tool_and_arguments():
    text = '["c1","pay",{"cents":500,"order_id":"A"}]'

    assert arguments_hash("c1", "pay", ARGUMENTS) == hashlib.sha256(text.encode()).hexdigest()


def test_the_hash_is_of_one_call_one_tool_and_these_arguments():
    deep = []
    for _ in range(62):
        deep = [deep]
    others = [
        ("c2", "pay", ARGUMENTS),
        ("c1", "refund", ARGUMENTS),
        ("c1", "pay", ARGUMENTS | {"cents": 501}),
        ("c1", "pay", ARGUMENTS | {"cents": "500"}),
        ("c1", "pay", {"order_id": "A"}),
        ("c1", "pay", {"lines": deep}),  # as deep as arguments may be
        ("c1", "pay", {"lines": [deep]}),
        ('c1","pay', "", ARGUMENTS),
    ]
    hashes = {arguments_hash(*other) for other in others}

    assert len({arguments_hash("c1", "pay", ARGUMENTS), *hashes}) == len(others) + 1
    turned = dict(reversed(ARGUMENTS.items())) | {"cents": 500.0}
    assert arguments_hash("c1", "pay", turned) == arguments_hash("c1", "pay", ARGUMENTS)


@pytest.mark.parametrize(
    ("approval", "reason"),
    [
        (False, None),
        (True, ""),
        (lambda arguments: False, None),
        (lambda arguments: None, None),
        (lambda arguments: True, ""),
        (lambda arguments: arguments["cents"] > 499, ""),
        (lambda arguments: arguments["cents"] > 500, None),
        (lambda arguments: f"{arguments['cents']} cents\n", "500 cents"),
        (lambda arguments: "", ""),
        (lambda arguments: "lone \ud800", "lone \ufffd"),
        (lambda arguments: "x" * 5000, "x" * 500),
    ],
)
def test_a_flag_or_a_function_of_the_arguments_says_whether_to_ask(approval, reason):
    assert reason_to_ask(pay(approval), ARGUMENTS) == reason


@pytest.mark.parametrize("verdict", [0, 1, 1.0, [], object(), b"yes", (True,)], ids=lambda value: type(value).__name__)
def test_a_function_that_decides_nothing_asks_and_says_so(verdict):
    kind = type(verdict).__name__

    reason = reason_to_ask(pay(lambda arguments: verdict), ARGUMENTS)
    assert reason == f"asked because approval= returned {kind}, expected True, False, None or a text"


@pytest.mark.parametrize("error", [KeyError("limit"), SystemExit(1), GeneratorExit(), MemoryError()], ids=repr)
def test_a_function_that_raises_asks_and_says_so(error):
    def approval(arguments):
        raise error

    reason = reason_to_ask(pay(approval), ARGUMENTS)
    assert reason.startswith(f"asked because approval= raised {type(error).__name__}")


def test_what_a_function_raises_is_told_without_keys():
    def approval(arguments):
        raise ValueError("refused: sk-proj-abcdefghijkl")

    assert "abcdefghijkl" not in reason_to_ask(pay(approval), ARGUMENTS)


def test_a_function_that_changes_what_it_is_given_changes_nothing_else():
    def approval(arguments):
        arguments["order"]["lines"].clear()
        return False

    arguments = {"order": {"lines": ["a"]}}

    assert reason_to_ask(pay(approval), arguments) is None
    assert arguments == {"order": {"lines": ["a"]}}
