"""Which failed calls are tried again, and when."""

import itertools

import pytest

from agentflow.tools.execution import ToolOutcome
from agentflow.tools.registry import ToolRegistry, tool
from agentflow.tools.retries import BASE, CAP, MAX_RETRY_AFTER, wait_before_retry


def made(**options):
    (found,) = ToolRegistry([tool(name="pay", **options)(lambda order_id="A": order_id)])
    return found


PLAIN = made()
IDEMPOTENT = made(idempotent=True)
NAMED = made(idempotency_key=["order_id"])
KEYED = made(idempotency_key=lambda arguments: "k")
BOTH = made(idempotent=True, idempotency_key=["order_id"])


def failed(cause="rate_limit", **fields):
    return ToolOutcome(ok=False, result="", status="error", cause=cause, **fields)


# Which tools are tried again after this cause, with output given, with a body that goes on, and with both.
TABLE = [
    ("rate_limit", False, False, [PLAIN, IDEMPOTENT, NAMED, KEYED, BOTH]),
    ("rate_limit", True, False, [IDEMPOTENT, BOTH]),
    *((cause, emitted, False, [IDEMPOTENT, BOTH])
      for cause in ("timeout", "upstream", "transient") for emitted in (False, True)),
    *((cause, emitted, True, [IDEMPOTENT, BOTH])
      for cause in ("rate_limit", "timeout", "upstream", "transient") for emitted in (False, True)),
    *(("", emitted, abandoned, []) for emitted in (False, True) for abandoned in (False, True)),
]  # fmt: skip


def test_the_table_is_whole():
    cases = itertools.product(("", "rate_limit", "timeout", "upstream", "transient"), (False, True), (False, True))
    assert sorted(row[:3] for row in TABLE) == sorted(cases)


@pytest.mark.parametrize(("cause", "emitted", "abandoned", "repeated"), TABLE)
def test_a_call_is_tried_again_only_where_that_does_no_harm(cause, emitted, abandoned, repeated):
    outcome = failed(cause, emitted=emitted, abandoned=abandoned)
    tools = [PLAIN, IDEMPOTENT, NAMED, KEYED, BOTH]
    assert [tool for tool in tools if wait_before_retry(tool, outcome, 1) is not None] == repeated


def test_a_call_that_succeeded_is_not_tried_again():
    assert wait_before_retry(BOTH, ToolOutcome(ok=True, result=""), 1) is None


@pytest.mark.parametrize("retries", [0, 1, 2, 10])
def test_there_are_as_many_further_attempts_as_the_tool_declares(retries):
    found = made(retries=retries)
    attempts = [wait_before_retry(found, failed(), attempt) is not None for attempt in range(1, 13)]
    assert attempts == [True] * retries + [False] * (12 - retries)


def test_by_default_there_are_two_further_attempts():
    assert [wait_before_retry(PLAIN, failed(), attempt) is None for attempt in (1, 2, 3)] == [False, False, True]


def test_a_wait_is_random_up_to_a_bound_that_doubles_to_its_cap():
    found = made(retries=10)

    def waits(chance):
        return [wait_before_retry(found, failed(), attempt, chance=lambda: chance) for attempt in range(1, 8)]

    assert (BASE, CAP) == (0.5, 8.0)
    assert waits(1.0) == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert waits(0.5) == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert waits(0.0) == [0.0] * 7


def test_by_default_the_chance_is_chance():
    assert len({wait_before_retry(PLAIN, failed(), 1) for _ in range(20)}) > 1


@pytest.mark.parametrize("tool", [PLAIN, IDEMPOTENT])
@pytest.mark.parametrize("cause", ["rate_limit", "upstream"])
def test_what_the_service_asks_for_is_waited_for_in_full_and_chance_comes_on_top(tool, cause):
    def wait(seconds, attempt=1, chance=0.5):
        outcome = failed(cause, retry_after=seconds)
        return wait_before_retry(tool, outcome, attempt, chance=lambda: chance)

    if tool is PLAIN and cause == "upstream":
        assert wait(7.0) is None
        return
    assert wait(7.0, chance=0.0) == 7.0
    assert wait(7.0) == 7.25
    assert wait(7.0, attempt=2) == 7.5
    assert wait(0.0) == 0.25
    assert wait(MAX_RETRY_AFTER) == 30.25
    assert wait(30.001) is None
    assert wait(3600.0) is None
