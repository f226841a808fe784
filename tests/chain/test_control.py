"""What humans decide: approvals, rejections, amendments, answers; from the root, at any depth, from any thread."""

import asyncio
import itertools
import threading

import pytest

from agentflow import Agent, tool
from agentflow.errors import NotPendingError, RequestError, ToolArgumentsError
from agentflow.events import EventType, State
from agentflow.models.base import CallRequest
from agentflow.testing import ScriptedModel, call
from agentflow.tools import ask_user
from agentflow.tools.approval import arguments_hash
from tests.builders import of, turns
from tests.chain.families import checked, line, so_far, statuses

pytestmark = pytest.mark.virtual_time
ADMITS = "It failed, sorry."
DEPTHS = (0, 1, 3)


def refund_tool(ran, **options):
    @tool(**{"approval": True} | options)
    async def refund(order: str, amount: int = 1) -> str:
        """Give money back."""
        ran.append((order, amount))
        return f"refunded {order}"

    return refund


async def suspended(chain):
    """What the run waits for; its first consumer is gone when this returns."""
    reply = await chain.reply()
    assert reply.state is chain.state is State.SUSPENDED
    return reply.pending


async def settled(chain):
    """Wait until nothing happens any more but for time to pass."""
    await turns(50)
    return chain.state


DECISIONS = {
    "approve": (lambda chain, asked: chain.approve(asked.call_id, asked.arguments_hash), [("A1", 1)], "success"),
    "reject": (lambda chain, asked: chain.reject(asked.call_id, "too much"), [], "rejected"),
    "amend": (lambda chain, asked: chain.amend(asked.call_id, {"order": "B2", "amount": 5}), [("B2", 5)], "success"),
    "expire": (lambda chain, asked: None, [], "rejected"),
}


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("decision", DECISIONS)
async def test_a_call_at_any_depth_is_decided_at_the_root_by_whoever_comes_next(depth, decision):
    decide, expected, status = DECISIONS[decision]
    ran = []
    script = ([call("refund", order="A1")], ADMITS)
    async with line(*script, tools=[refund_tool(ran)], depth=depth, leaf={"approval_timeout": 60.0}) as agent:
        chain = agent.stream("hello")
        (asked,) = await suspended(chain)
        assert (asked.path[-1], len(asked.path), ran) == (f"a{depth}", depth + 1, [])
        assert asked.arguments_hash == arguments_hash(asked.call_id, "refund", {"order": "A1"})
        before = await checked(agent, chain, ended=False)
        second = agent.attach(chain.run_id)
        decide(second, asked)
        seen = [event async for event in second]
        log = await checked(agent, chain)
        assert seen == log
        assert log[: len(before)] == before
        assert ran == expected
        above = "success" if status == "success" else "error"  # an agent whose calls have all failed has failed
        assert statuses(log) == {"refund": status} | {f"a{level}": above for level in range(1, depth + 1)}
        (resolved,) = of(log, EventType.RESOLVED)
        assert (resolved.chain_id, resolved.target) == (asked.chain_id, asked.call_id)
        done = "a0 is done" if status == "success" else "a0 failed, sorry"
        assert log[-1].text == (done if depth else ADMITS)


async def test_who_decided_and_why_is_told_and_a_rejection_reaches_the_model():
    model = ScriptedModel([call("refund", order="A1")], ADMITS)
    async with line(model, tools=[refund_tool([])], depth=0) as agent:
        chain = agent.stream("hello")
        (asked,) = await suspended(chain)
        chain.reject(asked.call_id, "not this customer", by="anna")
        await chain
        log = await checked(agent, chain)
        (resolved,) = of(log, EventType.RESOLVED)
        assert (resolved.decision, resolved.text, resolved.by) == ("rejected", "not this customer", "anna")
        assert "not this customer" in model.requests[-1].messages[-1].text


async def test_an_amended_call_is_shown_with_the_arguments_that_ran_and_those_the_model_gave():
    ran = []
    async with line([call("refund", order="A1")], "done", tools=[refund_tool(ran)], depth=0) as agent:
        chain = agent.stream("hello")
        (asked,) = await suspended(chain)
        chain.amend(asked.call_id, {"order": "B2", "amount": "7"})
        await chain
        log = await checked(agent, chain)
        (start,) = of(log, EventType.TOOL_START)
        assert ran == [("B2", 7)]
        assert (start.arguments, start.raw_arguments) == ({"order": "B2", "amount": 7}, '{"order": "A1"}')
        assert log[-1].tools[0].arguments == {"order": "B2", "amount": 7}


# -- questions -----------------------------------------------------------------------------------------------

ASKED = {
    "ask_user": [call("ask_user", question="Which one?", options=["A", "B"])],
    "in the text": ['{"question": "Which one?", "options": ["A", "B"]}'],
}


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("how", ASKED)
async def test_a_question_at_any_depth_is_answered_at_the_root(depth, how):
    model = ScriptedModel(ASKED[how], "B it is.")
    async with line(model, tools=[ask_user], depth=depth) as agent:
        chain = agent.stream("hello")
        (asked,) = await suspended(chain)
        assert (asked.text, asked.options, asked.path[-1]) == ("Which one?", ("A", "B"), f"a{depth}")
        await checked(agent, chain, ended=False)
        second = agent.attach(chain.run_id)
        second.answer("B")
        assert [event async for event in second] == await checked(agent, chain)
        assert chain.state is State.COMPLETED
        told = model.requests[-1].messages[-1]
        assert (told.role, told.text) == (("tool", "[success]\nB") if how == "ask_user" else ("user", "B"))


async def test_a_question_in_the_text_beside_calls_is_asked_when_these_have_run():
    ran = []
    model = ScriptedModel([ASKED["in the text"][0], call("refund", order="A1")], "B it is.")
    async with line(model, tools=[refund_tool(ran, approval=False)], depth=0) as agent:
        chain = agent.stream("hello")
        (asked,) = await suspended(chain)
        assert (asked.type, ran) == (EventType.QUESTION, [("A1", 1)])
        chain.answer("B", asked.question_id)
        await chain
        await checked(agent, chain)
        assert [message.role for message in model.requests[-1].messages] == ["user", "assistant", "tool", "user"]


# -- several at once -----------------------------------------------------------------------------------------

SEVERAL = [call("refund", order="A1"), call("ask_user", question="Why?"), call("refund", order="A2")]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
async def test_several_that_wait_are_decided_in_any_order(order):
    ran = []
    async with line(SEVERAL, "done", tools=[refund_tool(ran), ask_user], depth=1) as agent:
        chain = agent.stream("hello")
        pending = await suspended(chain)
        first, asked, second = pending
        decide = [
            lambda: chain.approve(first.call_id),
            lambda: chain.answer("so", asked.question_id),
            lambda: chain.amend(second.call_id, {"order": "B2"}),
        ]
        for number, position in enumerate(order):
            assert await settled(chain) is State.SUSPENDED
            left = {getattr(event, "call_id", None) or event.question_id for event in (await chain.reply()).pending}
            assert len(left) == 3 - number
            decide[position]()
        await chain
        log = await checked(agent, chain)
        assert sorted(ran) == [("A1", 1), ("B2", 1)]
        assert len(of(log, EventType.RESOLVED)) == 3


async def test_several_that_wait_are_decided_at_once():
    ran = []
    async with line(SEVERAL, "done", tools=[refund_tool(ran), ask_user], depth=3) as agent:
        chain = agent.stream("hello")
        first, _, second = await suspended(chain)
        chain.approve(first.call_id)
        chain.answer("so")
        chain.approve(second.call_id)
        await chain
        await checked(agent, chain)
        assert ran == [("A1", 1), ("A2", 1)]


async def test_an_answer_that_names_no_question_is_refused_while_two_are_open():
    calls = [call("ask_user", question="Why?"), call("ask_user", question="When?")]
    async with line(calls, "done", tools=[ask_user], depth=1) as agent:
        chain = agent.stream("hello")
        why, when = await suspended(chain)
        with pytest.raises(NotPendingError, match="2 questions, and the answer names none"):
            chain.answer("so")
        chain.answer("now", when.question_id)
        await settled(chain)
        chain.answer("because")
        await chain
        log = await checked(agent, chain)
        assert [(event.target, event.text) for event in of(log, EventType.RESOLVED)] == [
            (when.question_id, "now"),
            (why.question_id, "because"),
        ]


async def test_a_run_is_suspended_only_when_nothing_else_runs():
    gate = asyncio.Event()

    async def slow(name: str) -> str:
        await gate.wait()
        return name

    ran = []
    calls = [call("slow", name="x"), call("refund", order="A1"), call("ask_user", question="Why?")]
    async with line(calls, "done", tools=[slow, refund_tool(ran), ask_user], depth=2) as agent:
        chain = agent.start("hello")
        assert await settled(chain) is State.EXECUTING_TOOLS
        (asked,) = of(await so_far(agent, chain), EventType.APPROVAL)
        chain.approve(asked.call_id)  # it need not wait for the suspension
        await settled(chain)
        assert (chain.state, ran) == (State.EXECUTING_TOOLS, [("A1", 1)])
        gate.set()
        assert await settled(chain) is State.SUSPENDED
        chain.answer("so")
        await chain
        log = await checked(agent, chain)
        moves = [(event.previous.value, event.current.value) for event in of(log, EventType.STATE)]
        assert moves.count(("executing_tools", "suspended")) == 3  # each chain, once
        assert moves.count(("suspended", "executing_tools")) == 3


# -- decisions that do not count -----------------------------------------------------------------------------


async def test_an_approval_counts_for_the_arguments_that_were_looked_at():
    ran = []
    calls = [call("refund", order="A1"), call("refund", order="A2")]
    async with line(calls, "done", tools=[refund_tool(ran)], depth=1) as agent:
        chain = agent.stream("hello")
        first, second = await suspended(chain)
        for wrong in (second.arguments_hash, "", "0" * 64, first.arguments_hash.upper()):
            with pytest.raises(NotPendingError, match="its arguments are others by now"):
                chain.approve(first.call_id, wrong)
        assert (await settled(chain), ran) == (State.SUSPENDED, [])
        chain.approve(first.call_id, first.arguments_hash)
        chain.approve(second.call_id, second.arguments_hash)
        await chain
        await checked(agent, chain)
        assert ran == [("A1", 1), ("A2", 1)]


def every_decision(chain, call_id):
    yield lambda: chain.approve(call_id)
    yield lambda: chain.reject(call_id, "no")
    yield lambda: chain.amend(call_id, {"order": "C3"})
    yield lambda: chain.answer("yes", call_id)


async def test_the_first_decision_counts_and_every_later_one_is_refused(caplog):
    ran = []
    async with line([call("refund", order="A1")], "done", tools=[refund_tool(ran)], depth=2) as agent:
        chain = agent.stream("hello")
        (asked,) = await suspended(chain)
        chain.approve(asked.call_id)
        for decide in every_decision(chain, asked.call_id):  # the log has not accepted the first yet
            with pytest.raises(NotPendingError):
                decide()
        await chain
        for decide in every_decision(chain, asked.call_id):  # the run has ended
            with pytest.raises(NotPendingError):
                decide()
        log = await checked(agent, chain)
        assert (ran, len(of(log, EventType.RESOLVED)), caplog.records) == ([("A1", 1)], 1, [])


async def test_a_decision_after_the_expiry_is_refused(caplog):
    ran = []
    leaf = {"approval_timeout": 60.0}
    async with line([call("refund", order="A1")], ADMITS, tools=[refund_tool(ran)], depth=1, leaf=leaf) as agent:
        chain = agent.stream("hello")
        (asked,) = await suspended(chain)
        await asyncio.sleep(60.0)  # its timer was set before ours: the decision to expire is on its way
        for decide in every_decision(chain, asked.call_id):
            with pytest.raises(NotPendingError):
                decide()
        await chain
        (resolved,) = of(await checked(agent, chain), EventType.RESOLVED)
        assert (resolved.decision, resolved.by, ran, caplog.records) == ("expired", None, [], [])


async def test_no_approval_expires_that_was_given(caplog):
    gate = asyncio.Event()

    @tool(approval=True, timeout=1000.0)
    async def act() -> str:
        """Do it."""
        await gate.wait()
        return "did it"

    async with line([call("act")], "done", tools=[act], depth=1, leaf={"approval_timeout": 60.0}) as agent:
        chain = agent.start("hello")
        await settled(chain)
        (asked,) = (await chain.reply()).pending
        await asyncio.sleep(59.9)
        chain.approve(asked.call_id)
        await asyncio.sleep(100.0)
        gate.set()
        await chain
        log = await checked(agent, chain)
        assert ([event.decision for event in of(log, EventType.RESOLVED)], caplog.records) == (["approved"], [])


async def test_unknown_ids_and_runs_that_have_not_begun_take_no_decision():
    async with line([call("refund", order="A1")], "done", tools=[refund_tool([])], depth=1) as agent:
        chain = agent.stream("hello")
        for decide in every_decision(chain, "nobody"):
            with pytest.raises(NotPendingError):
                decide()
        (asked,) = await suspended(chain)
        for decide in (*every_decision(chain, "nobody"), *every_decision(chain, asked.call_id.upper())):
            with pytest.raises(NotPendingError):
                decide()
        caller = of(await so_far(agent, chain), EventType.TOOL_START)[0]
        for decide in (lambda: chain.approve(caller.call_id), lambda: chain.reject(caller.call_id)):
            with pytest.raises(NotPendingError):  # the call of the agent waits only because its own call does
                decide()
        assert await settled(chain) is State.SUSPENDED
        chain.cancel()
        await chain
        await checked(agent, chain)


async def test_decisions_from_many_threads_at_once_count_once(caplog):
    ran, refused, before = [], [], threading.Barrier(4)
    async with line([call("refund", order="A1")], "done", tools=[refund_tool(ran)], depth=3) as agent:
        chain = agent.stream("hello")
        (asked,) = await suspended(chain)

        def decide():
            before.wait()
            try:
                chain.approve(asked.call_id, asked.arguments_hash)
            except NotPendingError:
                refused.append(threading.get_ident())

        await asyncio.gather(*(asyncio.to_thread(decide) for _ in range(4)))
        await chain
        log = await checked(agent, chain)
        assert (ran, len(refused), len(of(log, EventType.RESOLVED))) == ([("A1", 1)], 3, 1)
        assert caplog.records == []


@pytest.mark.parametrize(
    "arguments", [{}, {"order": None}, {"order": "B2", "amount": "many"}, {"order": "B2", "amount": []}, [], None]
)
async def test_arguments_that_do_not_fit_change_nothing(arguments):
    ran = []
    async with line([call("refund", order="A1")], "done", tools=[refund_tool(ran)], depth=2) as agent:
        chain = agent.stream("hello")
        (asked,) = await suspended(chain)
        before = await so_far(agent, chain)
        with pytest.raises(ToolArgumentsError):
            chain.amend(asked.call_id, arguments)
        await settled(chain)
        assert await so_far(agent, chain) == before
        chain.approve(asked.call_id, asked.arguments_hash)
        await chain
        await checked(agent, chain)
        assert ran == [("A1", 1)]


async def test_a_question_has_no_arguments_to_amend_and_a_text_has_a_bound():
    async with line(ASKED["ask_user"], "done", tools=[ask_user], depth=0) as agent:
        chain = agent.stream("hello")
        (asked,) = await suspended(chain)
        with pytest.raises(NotPendingError, match="whose arguments can be amended"):
            chain.amend(asked.question_id, {"question": "Why?"})
        for text in ("x" * 300_000, None, 7):
            with pytest.raises(RequestError, match="expected a text of at most 262144 characters"):
                chain.answer(text)
        chain.answer("B")
        await chain
        await checked(agent, chain)


async def test_a_call_that_is_refused_for_its_arguments_never_asks_a_human():
    ran = []
    broken = CallRequest(name="refund", arguments='{"amount": 3}')
    async with Agent(model=ScriptedModel([broken], ADMITS), tools=[refund_tool(ran)]) as agent:
        chain = agent.stream("hello")
        await chain
        log = await checked(agent, chain)
        assert (ran, of(log, EventType.APPROVAL), statuses(log)) == ([], [], {"refund": "invalid_arguments"})


async def test_a_decision_that_was_overtaken_is_dropped_and_told(caplog):
    """The call that waits is closed with its chain, whose caller is given another task at the same moment."""
    ran = []
    async with line([call("refund", order="A1")], "done", "done", tools=[refund_tool(ran)], depth=1) as agent:
        chain = agent.stream("hello")
        (asked,) = await suspended(chain)
        caller = of(await so_far(agent, chain), EventType.TOOL_START)[0]
        chain.amend(caller.call_id, {"input": "leave it"})
        chain.approve(asked.call_id)
        await chain
        log = await checked(agent, chain)
        assert [(event.code, event.data["target"]) for event in of(log, EventType.WARNING)] == [
            ("decision_too_late", asked.call_id)
        ]
        assert (ran, statuses(log)["refund"], caplog.records) == ([], "amended", [])


async def test_whoever_changes_the_events_that_are_shown_changes_nothing_that_is_run():
    paid = []

    @tool(approval=lambda arguments: arguments["amount"] > 100, timeout=1000.0)
    async def pay(amount: int) -> str:
        """Pay it."""
        paid.append(amount)
        if amount == 3:
            await asyncio.Event().wait()
        return "paid"

    def hide(event):
        if getattr(event, "arguments", None):
            event.arguments["amount"] = 999

    model = ScriptedModel(*([call("pay", id=f"c{amount}", amount=amount)] for amount in (1, 200, 300, 3)), "done")
    async with Agent(model=model, tools=[pay]) as agent:
        agent.events.subscribe(hide)
        chain = agent.start("hello")
        reply = await chain.reply()
        hide(reply.tools[-1])
        hide(reply.pending[0])
        chain.approve("c200")
        assert (await chain.reply()).pending
        chain.amend("c300", {"amount": 2})
        await asyncio.sleep(1)
        chain.amend("c3", {"amount": 4})
        reply = await chain.reply()
        assert paid == [1, 200, 2, 3, 4]
        assert [record.arguments["amount"] for record in reply.tools] == [1, 200, 2, 4]


@pytest.mark.parametrize("tool_name", ["ask_user", "refund"])
async def test_long_words_of_a_human_are_cut_for_the_model_like_every_result(tool_name):
    ran, words = [], "é" * 200_000
    asking = [call("ask_user", question="Why?"), call("refund", order="A1")]
    script = [one for one in asking if one.name == tool_name]
    async with Agent(model=ScriptedModel(script, ADMITS), tools=[ask_user, refund_tool(ran)]) as agent:
        chain = agent.stream("hello")
        (asked,) = await suspended(chain)
        if tool_name == "ask_user":
            chain.answer(words)
        else:
            chain.reject(asked.call_id, words)
        (record,) = (await chain.reply()).tools
        await checked(agent, chain)
        assert len(record.result.encode()) <= 64 * 1024
        assert "[cut: the whole result has" in record.result
        assert not ran
