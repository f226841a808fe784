"""Logs that today's machine would have decided alike, and logs with one decision that is another."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentflow import Agent, tool
from agentflow.events import EventType, State, decode
from agentflow.state import Limits
from agentflow.state.replay import Replay, replay
from agentflow.testing import ScriptedModel, call
from agentflow.tools import ask_user
from tests import builders as b

DATA = Path(__file__).resolve().parent.parent / "data"
GOLDEN = sorted(path.stem for path in DATA.glob("*.ndjson"))
LIMITS = {"tools": Limits(max_iterations=3), "degraded": Limits(max_iterations=2, degraded="Not now.")}
# What was decided otherwise when these were recorded: later a model is asked once more where its answer hides that its
# calls have failed; the last was written by hand, with a kind of error that no machine gives.
SINCE = {
    "cut_calls": (18, "warning with code='unsupported_success'", "final"),
    "retried": (22, "warning with code='unsupported_success'", "final"),
    "suspended": (22, "tool_error with call_id='c1', status='rejected', error.kind='rejected'", "tool_error"),
}
SAME = [name for name in GOLDEN if name not in SINCE]
FROM_OUTSIDE = {
    EventType.DELTA,
    EventType.TOOL_DELTA,
    EventType.WARNING,
    EventType.SUMMARY,
    EventType.FAILED,
    EventType.CANCELLED,
}


def golden(name):
    return [decode(line) for line in (DATA / f"{name}.ndjson").read_bytes().splitlines()]


def limits(name):
    return LIMITS.get(name, Limits(max_iterations=2))


def renumbered(log):
    return [replace(event, seq=seq) for seq, event in enumerate(log, 1)]


def changed(log, kind, position=0, **fields):
    """The log with some event of that type changed, and its `seq`."""
    found = [event for event in log if event.type is kind][position]
    return [replace(event, **fields) if event is found else event for event in log], found.seq


def differs_at(log, seq, *words, limits=None):
    difference = replay(log, limits)
    assert difference is not None
    told = f"expected {difference.expected}, found {difference.found}"
    assert (difference.seq, [word for word in words if word not in told]) == (seq, []), told


async def log_of(*script, **options):
    """The log of a run, which is the same today."""
    async with Agent(model=ScriptedModel(*script), tools=options.pop("tools", b.TOOLS), **options) as agent:
        log = [event async for event in agent.stream("hello")]
    assert replay(log) is None
    return log


async def decided(script, decide, tools):
    """The log of a run that waits once, and for which `decide(chain, waiting)` is called then."""
    async with Agent(model=ScriptedModel(*script), tools=tools) as agent:
        chain = agent.start("hello")
        (waiting,) = (await chain.reply()).pending
        decide(chain, waiting)
        await chain
        log = await b.log_of(agent, chain.run_id)
    assert replay(log) is None
    return log


def by_hand(*events, **given):
    return b.Fold(**given).all(b.begin(), b.model_start(), *events).log


# -- the golden logs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAME)
def test_the_decisions_in_a_golden_log_are_todays(name):
    assert replay(golden(name), limits(name)) is None


@pytest.mark.parametrize("name", SINCE)
def test_where_the_machine_decides_otherwise_by_now_it_is_told(name):
    seq, expected, found = SINCE[name]
    difference = replay(golden(name), limits(name))
    assert (difference.seq, difference.expected) == (seq, expected)
    assert difference.found.startswith(found)


@pytest.mark.parametrize("name", SAME)
def test_a_log_may_stop_anywhere(name):
    log = golden(name)
    cuts = [at for at, event in enumerate(log) if replay(log[:at], limits(name)) is not None]
    # Only between the start of a call that is closed for its run's end, and its close.
    assert [log[at].status for at in cuts if log[at].type is EventType.TOOL_ERROR] == ["cancelled"] * len(cuts)


@pytest.mark.parametrize("name", SAME)
def test_a_decision_that_is_missing_is_missed(name):
    log = golden(name)
    for at, event in enumerate(log[:-1]):
        if event.type not in FROM_OUTSIDE:
            difference = replay(renumbered(log[:at] + log[at + 1 :]), limits(name))
            assert difference is not None, f"without {event.type} at {event.seq}"
            assert difference.seq >= event.seq or event.type is EventType.STATE


@pytest.mark.parametrize("name", SAME)
def test_a_decision_that_is_taken_twice_is_one_too_many(name):
    log = golden(name)
    for at, event in enumerate(log):
        if event.type not in FROM_OUTSIDE:
            difference = replay(renumbered(log[: at + 1] + log[at:]), limits(name))
            assert difference is not None, f"twice {event.type} at {event.seq}"
            assert difference.seq > event.seq or event.type is EventType.STATE


# -- one decision changed ------------------------------------------------------------------------------------


async def test_another_end_is_found():
    log, seq = changed(await log_of("Hi."), EventType.FINAL, finish_reason="length")
    differs_at(log, seq, "final with finish_reason='stop'", "found final with finish_reason='length'")


async def test_another_answer_is_found():
    log, seq = changed(await log_of("Hi."), EventType.FINAL, text="Ho.")
    differs_at(log, seq, "text='Hi.'", "text='Ho.'")


@pytest.mark.parametrize("position", [0, 2])
async def test_another_state_is_found(position):
    log, seq = changed(await log_of("Hi."), EventType.STATE, position, current=State.SUSPENDED)
    differs_at(log, seq, "expected state of chain", "found state of chain", "to suspended")


async def test_another_end_state_is_found():
    log, seq = changed(await log_of("Hi."), EventType.STATE, -1, current=State.FAILED)
    differs_at(log, seq, "to completed", "to failed before final")


async def test_another_limit_is_found():
    calls = [[call("look", key=str(number))] for number in range(3)]
    log = await log_of(*calls, "That is all.")
    second = [event.seq for event in log if event.type is EventType.TOOL_COMPLETE][1]
    assert replay(log, Limits(max_iterations=4)) is None
    differs_at(log, second, "tool_error", "status='limit'", "tool_complete", limits=Limits(max_iterations=2))


async def test_a_call_that_was_run_and_would_be_refused_is_found():
    log = await log_of([call("look", key="a"), call("look", key="b")], "Two values.")
    second = [event.seq for event in log if event.type is EventType.TOOL_COMPLETE][1]
    differs_at(log, second - 1, "tool_error", "status='limit'", limits=Limits(max_round_calls=1))


def test_another_refusal_is_found():
    other, seq = changed(golden("max_iterations"), EventType.TOOL_ERROR, status="loop")
    differs_at(other, seq, "status='limit'", "status='loop'", limits=limits("max_iterations"))


def test_calls_that_were_started_in_another_order_are_found():
    log = by_hand(b.model_complete("c1", "c2"), b.tool_start("c2"), b.tool_start("c1"))
    differs_at(log, 7, "call_id='c1'", "call_id='c2'")


def test_a_call_that_nobody_waited_for_is_found():
    differs_at(by_hand(b.model_complete("c1", "c2"), b.tool_start("c2")), 7, "call_id='c1'", limits=Limits())
    sequential = Limits(sequential=frozenset({"look"}))
    log = by_hand(b.model_complete("c1", "c2"), b.tool_start("c1"), b.tool_start("c2"))
    assert replay(log) is None
    differs_at(log, 9, "expected nothing that the machine decides", limits=sequential)


def test_a_second_attempt_that_nobody_was_told_of_is_found():
    log = by_hand(b.delta("x"), b.rollback(), b.model_start(attempt=2), b.delta("y", attempt=2))
    other = renumbered([event for event in log if event.type is not EventType.ROLLBACK])
    differs_at(other, 6, "nothing that the machine decides", "model_start")


async def test_other_arguments_than_those_that_were_approved_are_found():
    @tool(approval=True)
    def refund(amount: int) -> str:
        """Pay back."""
        return f"{amount} paid"

    log = await decided(
        ([call("refund", amount=5)], "Paid."), lambda chain, asked: chain.approve(asked.call_id), [refund]
    )
    other, seq = changed(log, EventType.TOOL_START, arguments={"amount": 500})
    differs_at(other, seq, "arguments={'amount': 5}", "arguments={'amount': 500}")
    asked_again = [event for event in log if event.type is EventType.APPROVAL]
    start = next(at for at, event in enumerate(log) if event.type is EventType.TOOL_START)
    differs_at(renumbered([*log[:start], *asked_again]), start + 1, "tool_start", "approval")


async def test_what_a_person_answers_is_from_outside_and_what_follows_is_not():
    script = ([call(ask_user.name, question="Which?")], "That one.")
    log = await decided(script, lambda chain, asked: chain.answer("the red one"), [ask_user])
    resolved = next(at for at, event in enumerate(log) if event.type is EventType.RESOLVED)
    assert log[resolved + 2].type is EventType.TOOL_COMPLETE
    without = renumbered([*log[: resolved + 2], *log[resolved + 3 :]])
    differs_at(without, resolved + 3, "tool_complete with call_id=")


async def test_a_question_in_a_reply_that_is_another_is_found():
    reply = '{"question": "Which?", "options": ["a", "b"]}'
    log = await decided((reply, "That one."), lambda chain, asked: chain.answer("a"), b.TOOLS)
    other, seq = changed(log, EventType.QUESTION, text="What?")
    differs_at(other, seq, "question with text='Which?'", "text='What?'")


def test_a_correction_that_was_not_due_is_found():
    log = by_hand(b.delta("Hi."), b.model_complete())
    warning = replace(b.warning(), seq=len(log) + 1)
    assert replay([*log, replace(warning, code="output_invalid")]) is None  # which form was asked for is in no log
    differs_at([*log, replace(warning, code="unsupported_success")], len(log) + 1, "final", "warning")


async def test_a_warning_that_is_due_is_found():
    log = await log_of([call("missing")], "All of it is done.", "It failed, sorry.")
    codes = [event.code for event in log if event.type is EventType.WARNING]
    assert codes == ["unsupported_success"]
    other, seq = changed(log, EventType.WARNING, code="another")
    differs_at(other, seq + 1, "warning with code='unsupported_success'", "model_start")


def test_a_budget_of_tokens_is_in_no_log():
    fold = b.Fold().all(b.begin(), b.delta("I stopped here."))
    fold.add(b.final(fold.state, "budget"))
    assert replay(fold.log, Limits(token_budget=5)) is None
    differs_at(fold.log, 3, "model_start", "delta")
    other, seq = changed(fold.log, EventType.FINAL, finish_reason="stop")
    differs_at(other, seq, "finish_reason='budget'", limits=Limits(token_budget=5))


# -- chains below the root -----------------------------------------------------------------------------------


async def nested(*script):
    child = Agent(name="child", model=ScriptedModel(*script), tools=b.TOOLS)
    return await log_of([call("child", input="find it")], "Here it is.", tools=[child.as_tool()])


async def test_chains_of_a_run_are_replayed_together():
    log = await nested([call("look", key="x")], "Found.")
    assert {len(event.path) for event in log} == {1, 2}


async def test_a_childs_end_that_its_chain_did_not_decide_is_found():
    log = await nested([call("look", key="x")], "Found.")
    second = [at for at, event in enumerate(log) if event.type is EventType.MODEL_START and len(event.path) == 2][1]
    closes = next(event for event in log if event.type is EventType.TOOL_COMPLETE and len(event.path) == 1)
    early = replace(closes, seq=second + 1)
    differs_at([*log[:second], early], second + 1, "model_start with iteration=2", "tool_complete")


async def test_a_child_without_its_task_is_found():
    log = await nested("Found.")
    without = [event for event in log if not (event.type is EventType.INPUT and len(event.path) == 2)]
    start = next(event.seq for event in log if event.type is EventType.TOOL_START)
    assert replay(renumbered(without)).seq > start


async def test_a_child_that_is_amended_begins_anew():
    release = asyncio.Event()

    async def hold(key: str) -> str:
        """Hold until it is stopped."""
        await release.wait()
        return key

    child = Agent(name="child", model=ScriptedModel([call("hold", key="x")], "Found."), tools=[hold])
    model = ScriptedModel([call("child", input="find it", id="c")], "Here it is.")
    async with Agent(model=model, tools=[child.as_tool()]) as agent:
        chain = agent.start("hello")
        async for event in agent.attach(chain.run_id):
            if event.type is EventType.TOOL_START and event.tool == "hold":
                chain.amend("c", {"input": "find another"})
            if event.type is EventType.TOOL_ERROR and event.call_id == "c":
                release.set()
        log = await b.log_of(agent, chain.run_id)
    assert replay(log) is None
    other, seq = changed(log, EventType.TOOL_ERROR, 1, status="error")
    differs_at(other, seq, "status='amended'", "status='error'")


async def test_a_child_that_fails_is_no_decision():
    log = await nested([call("look", key="x")])
    assert [event.status for event in log if event.type is EventType.TOOL_ERROR] == ["error"]


# -- what is no log ------------------------------------------------------------------------------------------


def test_a_gap_is_told():
    log = by_hand(b.model_complete())
    differs_at(log[2:], 3, "seq=1", "seq=3")
    differs_at([*log[:2], *log[3:]], 4, "seq=3", "seq=4")


def test_an_event_of_another_run_is_told():
    log = by_hand(b.model_complete())
    differs_at([*log, replace(log[-1], run_id="other", seq=len(log) + 1)], len(log) + 1, "run_id='other'")


def test_an_event_that_cannot_be_is_told():
    log = by_hand(b.model_complete("c1"), b.tool_start("c1"))
    stray = replace(b.tool_complete("c9"), seq=len(log) + 1)
    differs_at([*log, stray], len(log) + 1, "an event that can be", "call 'c9' is unknown")


def test_nothing_is_no_difference():
    assert replay([]) is None


def test_it_can_be_fed_in_pages():
    log = golden("tools")
    fold = Replay(log[0].run_id, limits("tools"))
    assert [fold.take(event) for event in log] == [None] * len(log)
    assert (fold.end(), fold.seq, fold.state.ended) == (None, len(log), True)
