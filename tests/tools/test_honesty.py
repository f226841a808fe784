"""A value that says failure is a failure, whoever returned it and how."""

import dataclasses

import pytest
from pydantic import BaseModel

from agentflow.errors import ConfigError, ToolFailedError
from agentflow.tools.execution import ToolContext, execute
from agentflow.tools.honesty import ReportedFailureError, check
from agentflow.tools.pools import Pools
from agentflow.tools.registry import ToolRegistry, tool


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"error": "no such order"}, ": no such order"),
        ({"error": {"message": "down", "trace": "x" * 9000}}, ": down"),
        ({"error": True}, ""),
        ({"error": ["a", "b"], "message": "two faults"}, ": two faults"),
        ({"ok": False}, ""),
        ({"success": False, "reason": "closed"}, ": closed"),
        ({"status": 404, "detail": "not there"}, " (status 404): not there"),
        ({"status_code": 500, "body": "<html>"}, " (status 500)"),
        ({"status": "x", "statusCode": 503}, " (status 503)"),
        ({"status": "500"}, " (status 500)"),
        ({"ok": "false"}, ""),
        ({"success": "False"}, ""),
        ({"isError": True, "message": "gone"}, ": gone"),
        ({"is_error": "true"}, ""),
    ],
)
def test_a_value_that_says_failure_is_told_in_one_sentence(data, told):
    with pytest.raises(ReportedFailureError) as caught:
        check(data, data, None)
    assert str(caught.value) == f"the tool reported a failure{told}"
    assert (caught.value.status, caught.value.kind) == ("error", "failed")


@pytest.mark.parametrize(
    "data",
    [
        {"status": 429},
        {"status": "429"},
        {"code": 429, "message": "slow down"},
        {"code": "429", "error": "slow down"},
        {"code": "TOO_MANY_REQUESTS", "message": "slow down"},
        {"error": "Too Many Requests"},
        {"error": {"type": "rate_limit_error"}},
        {"error": {"code": "429"}},
        {"ok": False, "errorCode": "RATE_LIMIT_EXCEEDED"},
        {"status": "RESOURCE_EXHAUSTED"},
        {"error": {"status": "ThrottlingException"}},
    ],
)
def test_a_rate_limit_is_told_apart(data):
    with pytest.raises(ReportedFailureError) as caught:
        check(data, data, None)
    assert (caught.value.status, caught.value.kind) == ("rate_limited", "rate_limited")


@pytest.mark.parametrize(
    "data",
    [
        "error: not really", "TOO_MANY_REQUESTS", None, 500, 0, False, [], [{"error": "x"}], {},
        {"error": None}, {"error": ""}, {"error": {}}, {"error": []}, {"error": False},
        {"ok": True, "status": 200}, {"ok": None}, {"success": 0}, {"status": "failed"}, {"status": True},
        {"error": "none"}, {"error": "null"}, {"error": " None "}, {"isError": False}, {"ok": "true"},
        {"code": 429, "name": "Turkey"}, {"code": "429"}, {"status": "4040"},
        {"code": 500}, {"errors": 3}, {"orders": [{"status": 500}]}, {"type": "rate_limit"},
    ],
)  # fmt: skip
def test_other_values_are_results(data):
    check(data, data, None)


def test_the_tool_s_own_rule_wins_and_may_leave_it_to_the_others():
    check({"error": "expected"}, {"error": "expected"}, lambda value: False)
    for verdict, told in ((True, "the tool reported a failure"), ("empty shelf", "empty shelf")):
        with pytest.raises(ReportedFailureError, match=told):
            check("text", "text", lambda value, verdict=verdict: verdict)
    with pytest.raises(ReportedFailureError):
        check({"ok": False}, {"ok": False}, lambda value: None)
    check("text", "text", lambda value: None)
    with pytest.raises(ToolFailedError, match="is_error= returned int"):
        check("text", "text", lambda value: 1)


@pytest.mark.parametrize("is_error", [True, "x", 5])
def test_a_rule_that_is_no_function_is_refused(is_error):
    with pytest.raises(ConfigError, match="is_error"):
        tool(is_error=is_error)


def test_a_rule_that_would_have_to_be_awaited_is_refused():
    async def later(value): ...

    with pytest.raises(ConfigError, match="plain function"):
        tool(is_error=later)


class Answer(BaseModel):
    ok: bool
    message: str = ""


@dataclasses.dataclass
class Found:
    error: str | None = None


@pytest.fixture
def outcome():
    pools = Pools()
    context = ToolContext(run_id="r", session_id="s", user_id=None, call_id="c", tool="t")

    async def run(function, **options):
        (of,) = ToolRegistry([tool(**options)(function)])
        return await execute(of, {}, context, on_delta=lambda data: None, pools=pools)

    yield run
    pools.close()


def in_thread():
    return {"error": "gone"}


async def on_the_loop():
    return {"error": "gone"}


def stream():
    yield 1
    yield {"error": "gone"}


async def async_stream():
    yield 1
    yield {"error": "gone"}


async def huge():
    return {"error": "gone", "payload": ["secret"] * 10_000}


def model():
    return Answer(ok=False, message="gone")


def data_class():
    return Found(error="gone")


@pytest.mark.parametrize(
    "function", [in_thread, on_the_loop, stream, async_stream, huge, model, data_class], ids=lambda f: f.__name__
)
async def test_every_kind_of_tool_is_held_to_it(outcome, function):
    ended = await outcome(function)

    assert (ended.ok, ended.status) == (False, "error")
    assert ended.result == "[error: failed]\nthe tool reported a failure: gone"
    assert (ended.error.kind, ended.error.message) == ("failed", "the tool reported a failure: gone")


async def test_the_model_is_told_a_short_text_without_keys(outcome):
    def long_story():
        return {"error": "token sk-abcdefghijklmnop " + "x" * 100_000}

    ended = await outcome(long_story)

    assert len(ended.result) < 600
    assert "sk-abc" not in ended.result


async def test_a_rate_limit_has_its_own_status(outcome):
    def busy():
        return {"status": 429, "message": "slow down"}

    ended = await outcome(busy)

    assert ended.status == "rate_limited"
    assert ended.result == "[error: rate_limited]\nthe tool reported a failure (status 429): slow down"


async def test_the_rule_gets_the_value_as_it_was_returned(outcome):
    seen = []
    ended = await outcome(model, is_error=lambda value: seen.append(value) or False)

    assert ended.ok
    assert seen == [Answer(ok=False, message="gone")]


async def test_a_rule_that_raises_is_a_failure_of_the_tool(outcome):
    ended = await outcome(model, is_error=lambda value: 1 / 0)

    assert (ended.ok, ended.status) == (False, "error")
    assert "ZeroDivisionError" in ended.result
