"""A deed with an idempotency key is done once: in its run, in other runs and sessions, whatever fails on the way."""

import asyncio
import contextlib
import threading

import pytest

from agentflow import Agent, InMemoryStore, ModelChunk, Settings, ToolContext, tool
from agentflow.errors import StoreError
from agentflow.events import EventType
from agentflow.models.base import CallRequest
from agentflow.state import TERMINAL_STATES
from agentflow.testing import FailingLog, ScriptedModel, assert_laws, call
from tests.builders import log_of, of

pytestmark = pytest.mark.virtual_time


class ServiceBusyError(Exception):
    """What a client raises when it is to come back later."""

    status = 429
    retry_after = 20


class Till:
    """A tool that pays, by key, in the ways it is told to; `paid` is what really happened."""

    def __init__(self, *ways, **options):
        self.paid = []
        self.keys = []
        self._ways = list(ways)

        @tool(**{"idempotency_key": ["order_id"]} | options)
        async def pay(order_id: str, context: ToolContext, amount: int = 1) -> str:
            """Pay for an order."""
            self.keys.append(context.idempotency_key)
            await asyncio.sleep(1)
            way = self._ways.pop(0) if self._ways else None
            if isinstance(way, BaseException):
                raise way
            self.paid.append((order_id, amount))
            await asyncio.sleep(1)
            return f"receipt {len(self.paid)}"

        self.pay = pay


async def play(till, *asked, store, wait=True, **fields):
    """One run that makes these calls of `pay` at once: its log, which is lawful."""
    calls = [call("pay", **{"order_id": "A"} | arguments) for arguments in asked or [{}]]
    model = ScriptedModel(calls, "That could not be done, I am sorry.", "Sorry.")
    async with Agent(model=model, tools=[till.pay], store=store) as agent:
        chain = agent.start("pay", **{"user_id": "u"} | fields)
        await chain
        log = await log_of(agent, chain.run_id)
    assert_laws(log)
    return log


def ends(log):
    return [getattr(event, "status", "success") for event in of(log, EventType.TOOL_COMPLETE, EventType.TOOL_ERROR)]


@pytest.mark.parametrize("key", [["order_id"], lambda arguments: f"pay/{arguments['order_id']}"], ids=["names", "made"])
async def test_a_second_run_gets_the_outcome_of_the_first_and_says_so(key):
    till, store = Till(idempotency_key=key), InMemoryStore()
    first = await play(till, {"amount": 1}, store=store, user_id="u", session_id="one")
    second = await play(till, {"amount": 2}, store=store, user_id="u", session_id="two")
    assert till.paid == [("A", 1)]
    (done,), (again,) = of(first, EventType.TOOL_COMPLETE), of(second, EventType.TOOL_COMPLETE)
    assert (again.result, again.reused_from, done.reused_from) == (done.result, done.call_id, None)
    assert second[-1].tools[0].status == "success"


async def test_a_key_is_the_users_and_the_tools_own():
    till, other, store = Till(), Till(name="pay_later"), InMemoryStore()
    for user in ("u", "v", None):
        await play(till, store=store, user_id=user)
    await play(till, {"order_id": "B"}, store=store, user_id="u")
    model = ScriptedModel([call("pay_later", order_id="A")], "done")
    async with Agent(model=model, tools=[other.pay], store=store) as agent:
        await agent.chat("pay", user_id="u")
    assert (len(till.paid), len(other.paid)) == (4, 1)


async def test_the_tool_and_the_log_know_the_key_of_the_call():
    till = Till()
    log = await play(till, store=InMemoryStore())
    (start,) = of(log, EventType.TOOL_START)
    assert till.keys == [start.idempotency_key]
    assert start.idempotency_key.startswith("pay:")


async def test_calls_without_a_key_are_not_run():
    def none(arguments):
        raise LookupError("no customer")

    till = Till(idempotency_key=none)
    log = await play(till, store=InMemoryStore())
    assert (ends(log), till.paid) == (["error"], [])
    assert "no customer" in log[-1].tools[0].result


async def test_the_same_deed_twice_at_once_is_done_once_and_the_second_says_that_it_does_not_know():
    till, store = Till(), InMemoryStore()
    log = await play(till, {}, {}, store=store)
    assert (till.paid, sorted(ends(log))) == ([("A", 1)], ["success", "unknown_outcome"])
    (error,) = of(log, EventType.TOOL_ERROR)
    assert "do not claim that it was done" in error.result
    assert ends(await play(till, store=store)) == ["success"]
    assert len(till.paid) == 1


async def test_two_runs_whose_provider_numbers_its_calls_alike_are_two_all_the_same():
    till, store = Till(), InMemoryStore()
    async with Agent(model=numbering, tools=[till.pay], store=store) as agent:
        chains = [agent.start("pay", user_id="u") for _ in range(2)]
        ends = [await chain for chain in chains]
    assert [end.tools[0].call_id for end in ends] == ["call_1", "call_1"]
    assert sorted(end.tools[0].status for end in ends) == ["success", "unknown_outcome"]
    assert till.paid == [("A", 1)]


async def numbering(request):
    """A model whose provider numbers the calls of each reply from one."""
    if request.messages[-1].role == "user":
        yield ModelChunk(calls=(CallRequest(name="pay", arguments='{"order_id": "A"}', id="call_1"),))
    else:
        yield ModelChunk(text="That is not known, sorry.", finish_reason="stop")


async def test_an_idempotent_deed_is_done_twice_at_once_rather_than_not_known():
    till = Till(idempotent=True)
    log = await play(till, {}, {}, store=InMemoryStore())
    assert (len(till.paid), ends(log)) == (2, ["success", "success"])


async def test_a_plain_failure_frees_the_key():
    till, store = Till(ValueError("no money")), InMemoryStore()
    assert ends(await play(till, store=store)) == ["error"]
    assert ends(await play(till, store=store)) == ["success"]
    assert till.paid == [("A", 1)]


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize(
    "ways",
    [
        (TimeoutError("silent"),) * 3,
        (TimeoutError("silent"), ValueError("no money")),
        (TimeoutError("silent"), ConnectionResetError("gone"), ValueError("no money")),
    ],
    ids=len,
)
async def test_a_deed_that_may_have_been_done_is_not_done_by_a_later_run(ways, idempotent):
    till, store = Till(*ways, idempotent=idempotent), InMemoryStore()
    await play(till, store=store)
    assert len(till.keys) == (len(ways) if idempotent else 1)
    later = [ends(await play(till, store=store)) for _ in range(2)]
    assert later == ([["success"]] * 2 if idempotent else [["unknown_outcome"]] * 2)
    assert len(till.paid) == idempotent


@pytest.mark.parametrize("moment", [0.5, 1.5])
async def test_a_call_that_was_cancelled_while_it_ran_keeps_its_key(moment):
    till, store = Till(), InMemoryStore()
    async with Agent(model=ScriptedModel([call("pay", order_id="A")]), tools=[till.pay], store=store) as agent:
        chain = agent.start("pay", user_id="u")
        await asyncio.sleep(moment)
        chain.cancel()
        await chain
    assert ends(await play(till, store=store)) == ["unknown_outcome"]
    assert len(till.paid) == (moment > 1)


async def test_a_cancel_in_the_wait_after_a_plain_failure_leaves_the_key_free():
    till, store = Till(ServiceBusyError()), InMemoryStore()
    async with Agent(model=ScriptedModel([call("pay", order_id="A")]), tools=[till.pay], store=store) as agent:
        chain = agent.start("pay", user_id="u")
        async for event in chain:
            if event.type is EventType.TOOL_ERROR:
                break
        chain.cancel()
        await chain
    assert ends(await play(till, store=store)) == ["success"]


async def test_what_another_run_did_in_the_wait_is_not_done_again():
    limited = ServiceBusyError()
    till, other, store = Till(limited), Till(), InMemoryStore()
    async with Agent(model=ScriptedModel([call("pay", order_id="A")], "done"), tools=[till.pay], store=store) as agent:
        chain = agent.start("pay", user_id="u")
        async for event in chain:
            if event.type is EventType.TOOL_ERROR:
                break
        (done,) = of(await play(other, store=store), EventType.TOOL_COMPLETE)
        assert asyncio.get_running_loop().time() < 20
        await chain
        log = await log_of(agent, chain.run_id)
    assert_laws(log)
    (complete,) = of(log, EventType.TOOL_COMPLETE)
    assert (complete.attempt, complete.reused_from, complete.result) == (2, done.call_id, done.result)
    assert (till.paid, other.paid) == ([], [("A", 1)])


async def test_an_approved_call_has_the_key_of_its_amended_arguments():
    till, store = Till(approval=True), InMemoryStore()
    async with Agent(model=ScriptedModel([call("pay", order_id="A")], "done"), tools=[till.pay], store=store) as agent:
        chain = agent.start("pay", user_id="u")
        reply = await chain.reply()
        chain.amend(reply.pending[0].call_id, {"order_id": "B"})
        await chain
    assert till.paid == [("B", 1)]
    free = Till()
    assert ends(await play(free, {"order_id": "B"}, {"order_id": "A"}, store=store)) == ["success", "success"]
    assert free.paid == [("A", 1)]


async def test_a_call_that_was_amended_where_it_ran_leaves_its_first_deed_unknown_and_keeps_the_second():
    till, store = Till(), InMemoryStore()
    async with Agent(model=ScriptedModel([call("pay", order_id="A")], "done"), tools=[till.pay], store=store) as agent:
        chain = agent.start("pay", user_id="u")
        await asyncio.sleep(0.5)
        (start,) = of(await store.read(chain.run_id, 0, 100), EventType.TOOL_START)
        chain.amend(start.call_id, {"order_id": "B"})
        await chain
        assert_laws(await log_of(agent, chain.run_id))
    assert till.paid == [("B", 1)]
    later = Till()
    log = await play(later, {"order_id": "A"}, {"order_id": "B"}, store=store)
    assert (sorted(ends(log)), later.paid) == (["success", "unknown_outcome"], [])


@pytest.mark.abandons_threads
async def test_a_thread_that_goes_on_keeps_its_key():
    release, begun, store = threading.Event(), [], InMemoryStore()

    @tool(idempotency_key=["order_id"], timeout=5)
    def pay(order_id: str) -> str:
        """Pay, and hang."""
        begun.append(order_id)
        release.wait(30)
        return "receipt"

    pay.__qualname__ = Till().pay.__qualname__  # the same tool
    async with Agent(model=ScriptedModel([call("pay", order_id="A")], "It failed."), tools=[pay], store=store) as agent:
        chain = agent.start("pay", user_id="u")
        while not begun:
            await asyncio.to_thread(lambda: None)
        await asyncio.get_running_loop().advance(5)
        await chain
    till = Till()
    assert (ends(await play(till, store=store)), till.paid) == (["unknown_outcome"], [])
    release.set()


class SlowToEnd(InMemoryStore):
    """A store that takes its time to close a session."""

    async def close_session(self, *args, **kwargs):
        await asyncio.sleep(10)
        await super().close_session(*args, **kwargs)


async def test_what_was_done_while_the_end_is_being_written_is_known_later():
    store, paid = SlowToEnd(), []

    @tool(idempotency_key=["order_id"])
    async def pay(order_id: str):
        """Pay, and say a lot."""
        yield "x" * 60_000
        await asyncio.sleep(1)
        paid.append(order_id)
        yield "paid"

    pay.__qualname__ = Till().pay.__qualname__  # the same tool
    settings = Settings(limits={"run_log_bytes": 50_000})
    model = ScriptedModel([call("pay", order_id="A")], "done")
    async with Agent(model=model, tools=[pay], store=store, settings=settings) as agent:
        end = await agent.start("pay", user_id="u")
    assert (end.type, end.error.kind, paid) == (EventType.FAILED, "limit", ["A"])
    till = Till()
    assert (ends(await play(till, store=store)), till.paid) == (["success"], [])


# -- a store that fails --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [None, ValueError("no money")], ids=["pays", "fails"])
@pytest.mark.parametrize("applied", [False, True], ids=["not done", "done"])
async def test_whatever_call_of_the_store_fails_nothing_is_done_twice_and_what_was_not_done_can_be(applied, way):
    fail_at, failed = 0, True
    while failed:
        fail_at += 1
        inner, till = InMemoryStore(), Till(way)
        store = FailingLog(inner, fail_at=fail_at, of=None, applied=applied)
        model = ScriptedModel([call("pay", order_id="A")], "That could not be done, I am sorry.")
        async with Agent(model=model, tools=[till.pay], store=store) as agent:
            chain = agent.start("pay", user_id="u")
            with contextlib.suppress(StoreError):
                await chain
        failed = store.calls.total() >= fail_at
        log = await inner.read(chain.run_id, 0, 1000)
        assert_laws(log, ended=chain.state in TERMINAL_STATES)
        if of(log, EventType.TOOL_COMPLETE):
            assert till.paid == [("A", 1)]
        again = Till()
        (end,) = ends(await play(again, store=inner))
        assert len(till.paid) + len(again.paid) <= 1
        if not till.keys:
            assert (end, len(again.paid)) == ("success", 1)
    assert fail_at > 10


class FlakyIndex(InMemoryStore):
    """A store of which these calls of `claim_outcome` fail, after they were done."""

    def __init__(self, *failing):
        super().__init__()
        self.claims = 0
        self.failing = failing

    async def claim_outcome(self, key, call_id):
        self.claims += 1
        found = await super().claim_outcome(key, call_id)
        if self.claims in self.failing:
            raise StoreError("the reply was lost")
        return found


async def test_a_claim_that_fails_frees_the_key():
    till, store = Till(), FlakyIndex(1)
    assert ends(await play(till, store=store)) == ["error"]
    assert till.paid == []
    assert ends(await play(Till(), store=store)) == ["success"]


async def test_a_claim_that_fails_after_an_attempt_that_may_have_had_its_effect_keeps_the_key():
    till, store = Till(), FlakyIndex(2)
    model = ScriptedModel([call("pay", order_id="A")], "That is not known, sorry.")
    async with Agent(model=model, tools=[till.pay], store=store) as agent:
        chain = agent.start("pay", user_id="u")
        await asyncio.sleep(0.5)
        (start,) = of(await store.read(chain.run_id, 0, 100), EventType.TOOL_START)
        chain.amend(start.call_id, {"order_id": "A", "amount": 2})
        end = await chain
    assert ([record.status for record in end.tools], till.paid) == (["unknown_outcome"], [])
    assert ends(await play(Till(), store=store)) == ["unknown_outcome"]


async def test_the_keys_of_an_agent_below_the_root_are_kept_where_the_run_is():
    store, paid = InMemoryStore(), []

    @tool(idempotency_key=["order"])
    def pay(order: str) -> str:
        paid.append(order)
        return "paid"

    async def ask():
        clerk = Agent(name="clerk", model=ScriptedModel([call("pay", order="A")], "It is paid."), tools=[pay])
        model = ScriptedModel([call("clerk", input="pay A")], "Done.")
        async with Agent(model=model, tools=[clerk.as_tool()], store=store) as agent:
            return await agent.chat("pay", user_id="u")

    await ask()
    await ask()
    assert paid == ["A"]


async def test_a_key_without_a_user_is_its_sessions_only():
    till, store = Till(), InMemoryStore()
    for session in ("alice", "bob", "alice"):
        await play(till, store=store, user_id=None, session_id=session)
    assert len(till.paid) == 2


async def test_tools_of_one_name_have_keys_of_their_own():
    store, other = InMemoryStore(), []

    @tool(idempotency_key=["order_id"])
    def pay(order_id: str) -> str:
        """Pay elsewhere."""
        other.append(order_id)
        return "paid elsewhere"

    till = Till()
    await play(till, store=store)
    async with Agent(model=ScriptedModel([call("pay", order_id="A")], "Done."), tools=[pay], store=store) as agent:
        await agent.chat("pay", user_id="u")
    assert (len(till.paid), other) == (1, ["A"])
