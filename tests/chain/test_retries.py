"""Failed calls that are made again: which, when and how often, how each attempt is told, and what ends the wait."""

import asyncio
import threading
from datetime import datetime

import pytest

from agentflow import Agent, ToolContext, tool
from agentflow.events import EventType
from agentflow.testing import ScriptedModel, assert_laws, call
from agentflow.tools.retries import BASE
from tests.builders import log_of, of, run, turns

pytestmark = pytest.mark.virtual_time

RATE_LIMIT = {"error": "TOO_MANY_REQUESTS", "message": "slow down"}
ENDS = (EventType.TOOL_COMPLETE, EventType.TOOL_ERROR)


class ServiceError(Exception):
    """An error as HTTP clients raise it."""

    def __init__(self, status, headers=None):
        super().__init__(f"the service answered {status}")
        self.status = status
        self.headers = headers or {}


def flaky(*ends, **options):
    """A tool whose attempts end in these ways, in order: an exception is raised, all else is returned."""
    left = list(ends)
    seen = []

    @tool(**options)
    async def order(order_id: str, context: ToolContext) -> object:
        """Look up an order."""
        seen.append(context.attempt)
        end = left.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    return order, seen


async def play(made, *more, calls=("order",), **options):
    """The log of one run that calls `made`."""
    return await run(
        [call(name, order_id="A") for name in calls], "It is not available now.", tools=[made, *more], **options
    )


def waits(log):
    """The seconds between the end of each attempt and the start of the next."""
    times = [datetime.fromisoformat(event.ts) for event in of(log, EventType.TOOL_START, *ENDS)]
    return [(start - end).total_seconds() for end, start in zip(times[1::2], times[2::2], strict=False)]


def told(log):
    """Each attempt's end: its number, how it ended, and whether there is another."""
    return [
        (event.attempt, getattr(event, "status", "success"), getattr(event, "will_retry", False))
        for event in of(log, *ENDS)
    ]


async def test_a_rate_limit_is_tried_twice_more_with_growing_random_waits_and_then_told():
    made, seen = flaky(RATE_LIMIT, RATE_LIMIT, RATE_LIMIT)
    log = await play(made)
    assert seen == [1, 2, 3]
    assert told(log) == [(1, "rate_limited", True), (2, "rate_limited", True), (3, "rate_limited", False)]
    first, second = waits(log)
    assert 0 <= first < BASE
    assert 0 <= second < 2 * BASE
    (record,) = log[-1].tools
    assert record.status == "rate_limited"
    assert record.result.startswith("[error: rate_limited]\n")
    assert "TOO_MANY_REQUESTS" in record.result


async def test_waits_differ_so_that_calls_which_failed_together_do_not_come_back_together():
    failures = [RATE_LIMIT] * 8
    made, _ = flaky(*failures, *["done"] * 8)
    log = await play(made, calls=["order"] * 8)
    ended = {event.call_id: event.ts for event in of(log, EventType.TOOL_COMPLETE)}
    assert len(set(ended.values())) > 1


async def test_what_the_service_asks_for_is_waited_for_in_full():
    answer = RATE_LIMIT | {"headers": {"Retry-After": "7"}}
    made, seen = flaky(answer, ServiceError(429, {"retry-after": "3"}), "there")
    log = await play(made)
    first, second = waits(log)
    assert 7 <= first < 7 + BASE
    assert 3 <= second < 3 + 2 * BASE
    assert (seen, told(log)[-1], log[-1].tools[0].result) == ([1, 2, 3], (3, "success", False), "[success]\nthere")


async def test_a_service_that_wants_to_be_left_alone_for_long_is():
    made, seen = flaky(RATE_LIMIT | {"headers": {"Retry-After": "3600"}})
    log = await play(made)
    assert (seen, told(log)) == ([1], [(1, "rate_limited", False)])


@pytest.mark.parametrize("options", [{}, {"idempotency_key": ["order_id"]}], ids=str)
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ServiceError(503), "degraded"),
        (TimeoutError("the service is silent"), "error"),
        (ConnectionResetError("gone"), "error"),
        (ServiceError(429), "rate_limited"),
    ],
    ids=str,
)
async def test_what_may_pass_is_tried_again_where_that_does_no_harm(error, status, options):
    made, seen = flaky(error, error, "there", idempotent=True, **options)
    log = await play(made)
    assert told(log) == [(1, status, True), (2, status, True), (3, "success", False)]
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("options", [{}, {"idempotency_key": ["order_id"]}], ids=str)
@pytest.mark.parametrize("error", [ServiceError(503), TimeoutError(), ConnectionResetError(), ServiceError(400)])
async def test_a_tool_that_promises_nothing_is_not_tried_again_once_it_may_have_had_its_effect(error, options):
    made, seen = flaky(error, **options)
    log = await play(made)
    assert (seen, told(log)[0][2]) == ([1], False)


@pytest.mark.parametrize("error", [ServiceError(404), ValueError("no such order"), {"ok": False}])
async def test_what_will_not_pass_is_not_tried_again_even_by_an_idempotent_tool(error):
    made, seen = flaky(error, idempotent=True)
    log = await play(made)
    assert (seen, told(log)) == ([1], [(1, "error", False)])


async def test_a_service_that_stays_down_gives_the_degraded_text_at_last():
    made, seen = flaky(*[ServiceError(503)] * 3, idempotent=True, degraded="Orders are closed for tonight.")
    log = await play(made)
    (record,) = log[-1].tools
    assert (seen, record.status, record.result) == ([1, 2, 3], "degraded", "[degraded]\nOrders are closed for tonight.")


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (1, 2), (4, 5)])
async def test_each_tool_is_tried_as_often_as_it_declares(retries, attempts):
    made, seen = flaky(*[RATE_LIMIT] * attempts, retries=retries)
    other, others_seen = flaky(*[ServiceError(503)] * 3, idempotent=True, name="other")
    log = await play(made, other, calls=("order", "other"))
    assert (len(seen), len(others_seen)) == (attempts, 3)
    assert [record.status for record in log[-1].tools] == ["rate_limited", "degraded"]


@pytest.mark.parametrize("idempotent", [False, True])
async def test_output_that_went_out_cannot_be_taken_back_so_only_an_idempotent_tool_is_tried_again(idempotent):
    attempts = []

    @tool(idempotent=idempotent)
    async def stream():
        """Stream something."""
        attempts.append(1)
        yield f"piece {len(attempts)}"
        if len(attempts) == 1:
            raise ServiceError(429)

    log = await run([call("stream")], "It is not available now.", tools=[stream])
    deltas = [(event.attempt, event.data) for event in of(log, EventType.TOOL_DELTA)]
    assert deltas == [(1, "piece 1"), (2, "piece 2")][: 1 + idempotent]
    assert told(log) == [(1, "rate_limited", idempotent), (2, "success", False)][: 1 + idempotent]
    assert not idempotent or log[-1].tools[0].result == "[success]\npiece 2"


async def test_the_time_limit_holds_for_each_attempt_and_the_times_add_up():
    seen = []

    @tool(idempotent=True, timeout=5)
    async def slow() -> str:
        """Take long at first."""
        seen.append(1)
        await asyncio.sleep(60 if len(seen) < 3 else 2)
        return "there"

    log = await run([call("slow")], "done", tools=[slow])
    assert told(log) == [(1, "timeout", True), (2, "timeout", True), (3, "success", False)]
    assert log[-1].tools[0].duration_ms == pytest.approx(12_000, abs=10)


async def test_the_other_calls_of_the_round_go_on_while_one_waits_and_the_model_is_asked_once():
    made, _ = flaky(RATE_LIMIT | {"headers": {"Retry-After": "20"}}, "there")
    ended = []

    @tool
    async def quick(order_id: str) -> str:
        """Be quick."""
        ended.append(asyncio.get_running_loop().time())
        return "ok"

    log = await play(made, quick, calls=("order", "quick"))
    assert ended[0] < 1
    assert [record.status for record in log[-1].tools] == ["success", "success"]
    assert len(of(log, EventType.MODEL_START)) == 2


@pytest.mark.parametrize("moment", [0.0, 0.01, 5.0])
async def test_a_cancel_during_the_wait_ends_the_run_at_once_and_nothing_runs_again(moment):
    made, seen = flaky(RATE_LIMIT | {"headers": {"Retry-After": "10"}}, "never")
    async with Agent(model=ScriptedModel([call("order", order_id="A")], "The order is not there."), tools=[made]) as a:
        chain = a.start("hello", session_id="s")
        async for event in chain:
            if event.type is EventType.TOOL_ERROR:
                break
        await asyncio.sleep(moment)
        chain.cancel()
        end = await chain
        assert asyncio.get_running_loop().time() < moment + 0.5
        await asyncio.sleep(60)
        assert (seen, end.type, end.reason) == ([1], EventType.CANCELLED, "user")
        log = await log_of(a, chain.run_id)
        assert_laws(log)
        assert told(log) == [(1, "rate_limited", True), (2, "cancelled", False)]
        assert "was not run" in of(log, EventType.TOOL_ERROR)[-1].result
        assert (await a.chat("again", session_id="s")).text == "The order is not there."


async def test_the_runs_time_limit_holds_during_the_waits_too():
    made, seen = flaky(*[RATE_LIMIT | {"headers": {"Retry-After": "25"}}] * 3)
    log = await play(made, timeout=30)
    assert (log[-1].type, log[-1].reason, seen) == (EventType.CANCELLED, "timeout", [1, 2])


@pytest.mark.abandons_threads
async def test_the_late_result_of_an_attempt_that_was_abandoned_is_dropped_and_counted():
    release, seen = threading.Event(), []

    @tool(idempotent=True, timeout=5)
    def hang(order_id: str) -> str:
        """Hang at first."""
        seen.append(1)
        if len(seen) == 1:
            release.wait(30)
            return "late"
        return "there"

    async with Agent(model=ScriptedModel([call("hang", order_id="A")], "done"), tools=[hang]) as agent:
        chain = agent.start("hello")
        while not seen:
            await asyncio.to_thread(lambda: None)
        await asyncio.get_running_loop().advance(5)
        end = await chain
        log = await log_of(agent, chain.run_id)
        assert_laws(log)
        assert told(log) == [(1, "timeout", True), (2, "success", False)]
        assert (end.tools[0].result, agent.abandoned) == ("[success]\nthere", 1)
        release.set()
        (pool, _) = agent._ready().pools.stats()
        while pool.late == 0:
            await asyncio.to_thread(lambda: None)
            await turns()
            (pool, _) = agent._ready().pools.stats()
        assert (pool.left, pool.late) == (1, 1)
        assert [event.seq for event in await log_of(agent, chain.run_id)][-1] == end.seq


@pytest.mark.abandons_threads
async def test_a_thread_that_could_not_be_stopped_is_not_started_a_second_time():
    release, seen = threading.Event(), []

    @tool(idempotency_key=["order_id"], timeout=5)
    def hang(order_id: str) -> str:
        """Hang."""
        seen.append(1)
        release.wait(30)
        return "late"

    async with Agent(model=ScriptedModel([call("hang", order_id="A")], "It timed out."), tools=[hang]) as agent:
        chain = agent.start("hello")
        while not seen:
            await asyncio.to_thread(lambda: None)
        await asyncio.get_running_loop().advance(5)
        await chain
        release.set()
        log = await log_of(agent, chain.run_id)
        assert (told(log), len(seen)) == ([(1, "timeout", False)], 1)
        assert "may still have its effect" in log[-1].tools[0].result


async def test_a_call_that_was_approved_is_tried_again_without_asking_again():
    made, seen = flaky(RATE_LIMIT, RATE_LIMIT, "there", approval=True)
    async with Agent(model=ScriptedModel([call("order", order_id="A")], "done"), tools=[made]) as agent:
        chain = agent.start("hello")
        reply = await chain.reply()
        chain.approve(reply.pending[0].call_id)
        await chain
        log = await log_of(agent, chain.run_id)
    assert_laws(log)
    assert (seen, len(of(log, EventType.APPROVAL))) == ([1, 2, 3], 1)
    assert told(log)[-1] == (3, "success", False)
