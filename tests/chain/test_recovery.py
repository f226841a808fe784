"""Who recovers which runs, and what becomes of them: one kind of death at a time; `test_crashes` has them all."""

import asyncio
from datetime import datetime

import pytest

from agentflow import Agent, tool
from agentflow.chain.leases import LEASE_SECONDS
from agentflow.errors import AgentflowError
from agentflow.events import EventType, State, decode, encode, stamp
from agentflow.messages import unpaired
from agentflow.settings import Settings
from agentflow.stores.base import SessionKey
from agentflow.stores.in_memory import InMemoryStore
from agentflow.streams import LoopClock
from agentflow.testing import FailingLog, assert_laws, call, run_virtual
from tests.builders import log_of, of, turns
from tests.chain.crashes import SESSION, acting, attend, kill_at, saying

# -- who recovers what ---------------------------------------------------------------------------------------


def is_(event_type, **fields):
    return lambda event: event.type is event_type and all(getattr(event, name) == fields[name] for name in fields)


def story(store, done):
    """A run of one call, to be killed while it runs."""
    return Agent(model=saying((call("act", what="a"),)), tools=[acting(done, "act")], store=store)


def at_work():
    return kill_at(story, is_(EventType.TOOL_START))


async def log_at(store, run_id):
    return list(await store.read(run_id, 0, 10_000))


async def the_run(store):
    (record,) = await store.list_runs()
    return record


def test_recovering_twice_at_once_in_one_process_recovers_once():
    store, done = at_work()

    async def second_life():
        async with story(store, done) as agent:
            found = await asyncio.gather(*(agent.recover() for _ in range(5)))
            (chain,) = [chain for chains in found for chain in chains]
            assert await agent.recover() == []
            assert (await chain).type is EventType.FINAL
            assert_laws(await log_of(agent, chain.run_id))

    run_virtual(second_life())


def test_a_run_whose_owner_lives_is_left_to_it():
    store, done = kill_at(story, is_(EventType.TOOL_START), later=LEASE_SECONDS - 1)

    async def second_life():
        async with story(store, done) as agent:
            before = await the_run(store)
            assert await agent.recover() == []
            assert await the_run(store) == before

    run_virtual(second_life())


@pytest.mark.virtual_time
async def test_an_agent_takes_none_of_its_own_live_runs_nor_another_agent_on_the_same_store():
    store = InMemoryStore(now=asyncio.get_running_loop().time)
    async with story(store, []) as agent, story(store, []) as other:
        chain = agent.start("hello")
        async for event in chain:
            if event.type is EventType.TOOL_START:
                assert [await agent.recover(), await other.recover()] == [[], []]
        assert_laws(await log_of(agent, chain.run_id))


def test_the_run_of_another_agent_is_left_alone():
    store, done = at_work()

    async def second_life():
        before = await log_at(store, (await the_run(store)).run_id)
        async with Agent(name="other", model=saying(), store=store) as other, story(store, done) as agent:
            assert await other.recover() == []
            assert await log_at(store, before[0].run_id) == before
            (chain,) = await agent.recover()  # at once: the other has not taken it
            await chain

    run_virtual(second_life())


def nesting(store, done):
    below = Agent(name="below", model=saying((call("act", what="b"),)), tools=[acting(done, "act")])
    turns = ((call("below", input="go"), call("act", what="a")),)
    return Agent(model=saying(*turns), tools=[below.as_tool(), acting(done, "act")], store=store)


def test_a_run_of_an_agent_that_is_no_more_is_told_and_left_and_the_others_are_recovered(caplog):
    store, done = kill_at(nesting, is_(EventType.TOOL_START, path=("agent", "below")))

    async def second_life():
        lost = (await the_run(store)).run_id
        before = await log_at(store, lost)
        newer = await add_run(store, story)
        async with story(store, done) as agent:  # without the agent below
            (chain,) = await agent.recover()
            assert chain.run_id == newer
            assert (await chain).type is EventType.FINAL
            assert await log_at(store, lost) == before
            assert "is of an agent that is no tool of 'agent' any more" in caplog.text
            assert await store.acquire_lease(lost, "another", 1.0) is not None

    run_virtual(second_life())


async def add_run(store, make):
    """One more run that was interrupted, in a session of its own; its id."""
    async with make(InMemoryStore(), []) as agent:
        chain = agent.start("go", session_id="another")
        async for event in chain:
            if event.type is EventType.TOOL_START:
                await store.append(chain.run_id, [decode(encode(e)) for e in await log_at(agent._store, chain.run_id)])
    return chain.run_id


def test_a_tool_that_is_no_more_ends_its_call_and_the_run_goes_on():
    store, _ = at_work()

    async def second_life():
        async with Agent(model=saying((call("act", what="a"),)), store=store) as agent:
            (chain,) = await agent.recover()
            end = await chain
            assert [record.status for record in end.tools] == ["unknown_outcome"]
            assert_laws(await log_of(agent, chain.run_id))

    run_virtual(second_life())


def test_a_log_that_cannot_be_is_told_and_left(caplog):
    store, done = at_work()

    async def second_life():
        record = await the_run(store)
        events = store._runs[record.run_id].events
        again = decode(encode(of(events, EventType.TOOL_START)[0]))
        stamp(again, len(events) + 1, events[-1].ts)
        events.append(again)  # the attempt has begun twice
        async with story(store, done) as agent:
            assert await agent.recover() == []
            assert f"event {len(events)} of its log cannot be" in caplog.text
            assert await store.acquire_lease(record.run_id, "another", 1.0) is not None

    run_virtual(second_life())


def test_an_agent_that_is_closed_takes_no_run_that_nobody_would_end():
    store, done = at_work()

    async def second_life():
        closed = story(store, done)
        await closed.aclose()
        with pytest.raises(AgentflowError, match="is closed"):
            await closed.recover()
        async with story(store, done) as agent:
            (chain,) = await agent.recover()
            await chain

    run_virtual(second_life())


# -- what it does when it goes on ----------------------------------------------------------------------------


def approving(store, done, **options):
    turns = ((call("act", what="a"),),)
    return Agent(model=saying(*turns), tools=[acting(done, "act", approval=True)], store=store, **options)


def suspended(**options):
    return kill_at(lambda store, done: approving(store, done, **options), is_(EventType.APPROVAL))


async def ends(agent, chain):
    """The lawful log of a chain that ends."""
    await chain
    log = await log_of(agent, chain.run_id)
    assert_laws(log)
    return log


def test_a_run_that_waits_for_a_human_waits_on_without_a_task_and_can_be_answered():
    store, done = suspended()

    async def second_life():
        before = await log_at(store, (await the_run(store)).run_id)
        async with approving(store, done) as agent:
            (chain,) = await agent.recover()
            await asyncio.sleep(3601)  # and no lease is being renewed in this moment
            assert (chain.state, len(asyncio.all_tasks())) == (State.SUSPENDED, 1)
            assert await log_at(store, chain.run_id) == before
            attached = agent.attach(chain.run_id)
            reply = await attached.reply()
            (pending,) = reply.pending
            attached.approve(pending.call_id, pending.arguments_hash)
            await ends(agent, chain)
            assert done == ["act a"]

    run_virtual(second_life())


@pytest.mark.parametrize("down", [60.0, 6000.0])
def test_an_approval_expires_when_it_was_to_or_at_once_if_that_has_passed(down):
    store, done = suspended(approval_timeout=600.0)

    async def second_life():
        await asyncio.sleep(down)
        async with approving(store, done, approval_timeout=600.0) as agent:
            (chain,) = await agent.recover()
            log = await ends(agent, chain)
            (asked,) = of(log, EventType.APPROVAL)
            (resolved,) = of(log, EventType.RESOLVED)
            assert resolved.decision == "expired"
            late = datetime.fromisoformat(resolved.ts) - datetime.fromisoformat(asked.expires_at)
            assert 0 <= late.total_seconds() <= max(down - 600, 0) + 0.001
            assert done == []

    run_virtual(second_life())


class SlowSessions(FailingLog):
    """A store whose sessions take long to open."""

    def __init__(self, store):
        super().__init__(store, fail_at=0)

    async def _pass_on(self, name, *args, **kwargs):
        if name == "open_session":
            await asyncio.sleep(10)
        return await super()._pass_on(name, *args, **kwargs)


def test_a_decision_that_comes_before_the_session_is_there_waits_for_it():
    """Else the model would be asked without what was said before."""
    asked = []

    async def model(request):
        asked.append([message.text for message in request.messages if message.role == "user"])
        async for chunk in saying(("Hello.",), (call("act", what="a"),))(request):
            yield chunk

    def make(store, done):
        return Agent(model=model, tools=[acting(done, "act", approval=True)], store=store)

    store, done = kill_at(make, is_(EventType.APPROVAL), said=["before"])

    async def second_life():
        async with make(SlowSessions(store), done) as agent:
            (chain,) = await agent.recover()
            (event,) = of(await log_at(store, chain.run_id), EventType.APPROVAL)
            chain.approve(event.call_id)
            await ends(agent, chain)
            assert (asked[-1], done) == (["before", "go"], ["act a"])

    run_virtual(second_life())


def test_a_run_whose_session_was_given_to_others_waits_for_it_and_sees_what_they_said():
    asked = []

    async def model(request):
        asked.append([message.text for message in request.messages if message.role == "user"])
        async for chunk in saying((call("act", what="a"),))(request):
            yield chunk

    def make(store, done):
        return Agent(model=model, tools=[acting(done, "act")], store=store)

    store, done = kill_at(make, is_(EventType.TOOL_START))

    async def second_life():
        run_id = (await the_run(store)).run_id
        await store.close_session(SessionKey(SESSION), run_id, None)  # as an owner does whose log fails
        async with make(store, done) as agent:
            other = agent.start("meanwhile", session_id=SESSION)
            await turns(5)
            (chain,) = await agent.recover()
            await ends(agent, other)
            await ends(agent, chain)
            assert ["meanwhile", "go"] in asked
            kept = await store.read_turns(SessionKey(SESSION), 0, 10)
            assert [turn.run_id for turn in kept] == [other.run_id, run_id]

    run_virtual(second_life())


def test_a_recovered_run_can_be_cancelled_at_once():
    store, done = at_work()

    async def second_life():
        async with story(SlowSessions(store), done) as agent:
            (chain,) = await agent.recover()
            chain.cancel()
            log = await ends(agent, chain)
            assert (log[-1].type, log[-1].reason) == (EventType.CANCELLED, "user")
            (turn,) = await store.read_turns(SessionKey(SESSION), 0, 10)
            assert turn.outcome == "cancelled"
            assert (await store.find_session(SessionKey(SESSION))).active_run is None

    run_virtual(second_life())


FAIL = Settings(chain={"recovery": "fail"})


def test_by_setting_a_run_that_was_at_work_ends_as_crashed():
    store, _ = at_work()

    async def second_life():
        async with Agent(model=saying(), store=store, settings=FAIL) as agent:
            (chain,) = await agent.recover()
            log = await ends(agent, chain)
            assert (log[-1].error.kind, log[-1].error.retryable) == ("crashed", True)
            (closed,) = of(log, EventType.TOOL_ERROR)
            assert closed.status == "cancelled"
            (turn,) = await store.read_turns(SessionKey(SESSION), 0, 10)
            assert (turn.outcome, unpaired(turn.messages)) == ("failed", None)

    run_virtual(second_life())


def test_by_setting_too_a_run_that_waits_for_a_human_waits_on_since_nothing_of_it_was_broken_off():
    store, done = suspended()

    async def second_life():
        async with approving(store, done, settings=FAIL) as agent:
            (chain,) = await agent.recover()
            ended = asyncio.gather(attend(chain))
            assert (await ends(agent, chain))[-1].type is EventType.FINAL
            await ended

    run_virtual(second_life())


def test_an_end_that_was_announced_is_written_and_nothing_is_run_for_it():
    store, _ = kill_at(story, is_(EventType.FINAL), accepted=False)

    async def second_life():
        record = await the_run(store)
        run_id, announced = record.run_id, record.closing
        assert announced[-1].type is EventType.FINAL
        async with Agent(model=unasked, store=store) as agent:
            heard = []
            agent.bus.attach(heard.append)
            assert await agent.recover() == []
            log = await log_of(agent, run_id)
            assert_laws(log)
            assert (tuple(log[-len(announced) :]), tuple(heard)) == (announced, announced)

    run_virtual(second_life())


def test_an_end_that_was_announced_is_written_by_who_owns_the_run_and_by_nobody_else(caplog):
    store, done = kill_at(story, is_(EventType.FINAL), accepted=False)

    class Stolen(FailingLog):
        async def _pass_on(self, name, *args, **kwargs):
            if name == "append":
                store._runs[args[0]].owned_until = 0.0
                await store.acquire_lease(args[0], "another", LEASE_SECONDS)
            return await super()._pass_on(name, *args, **kwargs)

    async def second_life():
        before = await the_run(store)
        async with story(Stolen(store, fail_at=0), done) as agent:
            assert await agent.recover() == []
            assert await the_run(store) == before
            assert "LeaseLostError" in caplog.text

    run_virtual(second_life())


def test_an_answer_that_was_judged_but_not_acted_on_is_judged_again():
    """As one is that has not the form it must have, also the second time."""

    def make(store, done):
        return Agent(model=saying(("one",), ("two",)), store=store, output=int)

    store, done = kill_at(make, lambda event: event.type is EventType.MODEL_COMPLETE and event.iteration == 2)

    async def second_life():
        async with make(store, done) as agent:
            (chain,) = await agent.recover()
            log = await ends(agent, chain)
            assert (log[-1].error.kind, len(of(log, EventType.MODEL_START))) == ("output", 2)

    run_virtual(second_life())


async def unasked(request):
    raise AssertionError("the model was asked")
    yield


def test_limits_may_be_others_after_a_restart():
    def make(store, done, **chain):
        turns = ((call("act", what="a"), call("act", what="b"), call("act", what="c")),)
        settings = Settings(chain=chain)
        tool = acting(done, "act", approval=lambda arguments: arguments["what"] != "a")
        return Agent(model=saying(*turns), tools=[tool], store=store, settings=settings)

    store, done = kill_at(make, is_(EventType.TOOL_COMPLETE))

    async def second_life():
        async with make(store, done, max_parallel_tools=1, max_tool_calls=1, max_round_calls=1) as agent:
            (chain,) = await agent.recover()
            await attend(chain)
            await ends(agent, chain)
            assert sorted(done) == ["act a", "act b", "act c"]

    run_virtual(second_life())


@pytest.mark.parametrize("step", [-3600.0, 0.0])
def test_a_log_never_goes_back_in_time_whatever_the_clock_does(step):
    class Clock(LoopClock):
        offset = 0.0

        def wall(self):
            return super().wall() + self.offset

    def make(store, done):
        return Agent(model=saying((call("act", what="a"),)), tools=[acting(done, "act")], store=store, clock=Clock())

    store, done = kill_at(make, is_(EventType.TOOL_START))
    Clock.offset = step

    async def second_life():  # begins with its loop's clock at zero again
        async with make(store, done) as agent:
            (chain,) = await agent.recover()
            await ends(agent, chain)
            later = agent.start("and now?")
            Clock.offset = 2 * step
            await ends(agent, later)

    run_virtual(second_life())


def test_an_outcome_that_was_kept_under_its_key_is_found_though_its_event_was_lost():
    store, done = kill_at(story_with_key, is_(EventType.TOOL_COMPLETE), accepted=False)

    async def second_life():
        async with story_with_key(store, done) as agent:
            (chain,) = await agent.recover()
            log = await ends(agent, chain)
            first, second = of(log, EventType.TOOL_COMPLETE)
            assert (first.result, second.result, done) == ("[success]\na is done", "[success]\na is done", ["act a"])
            assert (first.reused_from, second.reused_from) == (None, first.call_id)

    run_virtual(second_life())


@pytest.mark.parametrize("applied", [False, True])
def test_a_key_stays_claimed_where_the_index_cannot_be_asked_by_a_recovery(applied):
    """The deed was done, and only then did the process die: nobody else may do it under that key."""

    def make(store, done):
        @tool(idempotency_key=["what"])
        async def act(what: str) -> str:
            """Do it."""
            done.append(what)
            asyncio.get_running_loop().left = 0
            await asyncio.sleep(1)
            return "it is done"

        return Agent(model=saying((call("act", what="a"),), (call("act", what="a"),)), tools=[act], store=store)

    store, done = kill_at(make, lambda event: False)

    async def second_life():
        failing = FailingLog(store, fail_at=1, of="claim_outcome", applied=applied)
        async with make(failing, done) as agent:
            (chain,) = await agent.recover()
            log = await ends(agent, chain)
            assert [event.status for event in of(log, EventType.TOOL_ERROR)] == ["unknown_outcome", "unknown_outcome"]
            assert done == ["a"]

    run_virtual(second_life())


def story_with_key(store, done):
    tool = acting(done, "act", idempotency_key=["what"])
    return Agent(model=saying((call("act", what="a"),), (call("act", what="a"),)), tools=[tool], store=store)
