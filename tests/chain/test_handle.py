"""What users hold: subscriptions, iterators, waits, views and controls of one run."""

import asyncio
import gc
import weakref

import pytest
from reactivex import Observable

from agentflow import Agent, InMemoryStore, ModelChunk, RunCancelled, RunFailed, tool
from agentflow.chain.handle import EventIterator
from agentflow.errors import ModelStatusError, NotPendingError, RunNotFoundError
from agentflow.event_log import PAGE
from agentflow.events import TERMINAL_TYPES, EventType, QuestionEvent, ResolvedEvent, State, ToolStartEvent
from agentflow.operators import of_type
from agentflow.testing import FailingLog, ScriptedModel, assert_laws, call
from tests.builders import TOOLS, log_of, turns

SCRIPT = (["one ", call("look", key="a")], "two three")


def agent_of(*script, **options):
    return Agent(model=ScriptedModel(*(script or SCRIPT)), tools=TOOLS, **options)


def collect(observable):
    """Subscribe, and give what is seen, the errors, and an event that is set at the end."""
    seen, errors, done = [], [], asyncio.Event()

    def on_error(error):
        errors.append(error)
        done.set()

    observable.subscribe(seen.append, on_error, done.set)
    return seen, errors, done


async def test_every_consumer_sees_the_whole_run_in_the_same_order():
    async with agent_of() as agent:
        chain = agent.stream("hello")
        first, _, done = collect(chain)
        iterated = [event async for event in chain]
        late, _, late_done = collect(chain)
        await done.wait()
        await late_done.wait()
        assert_laws(first)
        assert first == iterated == late == await log_of(agent, chain.run_id)


async def test_subscribing_twice_runs_the_model_once():
    model = ScriptedModel("hi")
    async with Agent(model=model) as agent:
        chain = agent.stream("hello")
        ends = [collect(chain)[2] for _ in range(2)]
        await asyncio.gather(*(end.wait() for end in ends))
        assert len(model.requests) == 1


async def test_a_subscriber_that_raises_gets_on_error_and_does_not_end_the_run():
    errors = []

    def fragile(event):
        raise ValueError("cannot take it")

    async with agent_of() as agent:
        chain = agent.stream("hello")
        chain.subscribe(fragile, errors.append)
        seen, _, done = collect(chain)
        await done.wait()
        assert seen[-1].type is EventType.FINAL
        assert [str(error) for error in errors] == ["cannot take it"]


async def test_a_lone_subscriber_that_raises_does_not_end_the_run_either():
    broken = asyncio.Event()

    def fragile(event):
        raise ValueError("cannot take it")

    async with agent_of() as agent:
        chain = agent.stream("hello")
        chain.subscribe(fragile, lambda error: broken.set())
        await broken.wait()
        await turns()
        assert (await chain).type is EventType.FINAL


async def test_first_and_take_leave_the_run():
    async with agent_of() as agent:
        for view in (lambda chain: chain.first(), lambda chain: chain.take(2)):
            chain = agent.stream("hello")
            _, errors, done = collect(view(chain))
            await done.wait()
            assert (errors, (await chain).reason) == ([], "disconnect")


async def test_a_started_run_goes_on_when_its_consumers_leave_and_without_any():
    async with agent_of(*SCRIPT, *SCRIPT) as agent:
        chain = agent.start("hello")
        async for _ in chain:
            break
        assert (await chain).type is EventType.FINAL
        ends = asyncio.Queue()
        agent.bus.attach(lambda event: ends.put_nowait(event) if event.type in TERMINAL_TYPES else None)
        agent.start("hello")
        assert (await ends.get()).type is EventType.FINAL


async def test_a_run_ends_only_when_its_last_consumer_leaves():
    async with agent_of() as agent:
        chain = agent.stream("hello")
        subscription = chain.subscribe(lambda event: None)
        async for _ in chain:
            break
        assert (await chain.reply()).text == "two three"
        subscription.dispose()


@pytest.mark.parametrize("wait", ["terminal", "reply", "chat"])
async def test_cancelling_a_wait_is_leaving(wait):
    hold = asyncio.Event()

    async def slow(request):
        await hold.wait()
        yield None

    async with Agent(model=slow) as agent:
        runs = []
        agent.bus.attach(lambda event: runs.append(event.run_id))
        chain = agent.stream("hello")
        waits = {"terminal": chain._terminal, "reply": chain.reply, "chat": lambda: agent.chat("hello")}
        async with asyncio.TaskGroup() as group:
            task = group.create_task(waits[wait]())
            await turns()
            task.cancel()
        log = await log_of(agent, runs[0])
        assert log[-1].reason == "disconnect"


async def test_a_dropped_iterator_has_left_and_so_has_a_closed_one():
    async with agent_of(*SCRIPT, *SCRIPT) as agent:
        for leave in ("drop", "close"):
            chain = agent.stream("hello")
            events = aiter(chain)
            assert isinstance(events, EventIterator)
            assert (await anext(events)).type is EventType.INPUT
            if leave == "close":
                await events.aclose()
                with pytest.raises(StopAsyncIteration):
                    await anext(events)
            del events
            assert (await chain).reason == "disconnect"


async def test_ends_are_values_and_only_reply_raises():
    fault = ModelStatusError("no such model", provider="p", status=404)
    async with agent_of([fault]) as agent:
        chain = agent.stream("hello")
        seen, errors, done = collect(chain)
        end = await chain
        await done.wait()
        assert (seen[-1], errors) == (end, [])
        assert (end.type, end.error.kind, end.error.message) == (EventType.FAILED, "status", "no such model")
        with pytest.raises(RunFailed, match="no such model") as caught:
            await chain.reply()
        assert (caught.value.kind, caught.value.run_id, caught.value.retryable) == ("status", chain.run_id, False)


async def test_a_reply_tells_all_of_the_answer():
    async with agent_of() as agent:
        chain = agent.stream("hello", session_id="s")
        reply = await chain.reply()
        assert (reply.text, reply.session_id, reply.run_id) == ("two three", "s", chain.run_id)
        assert (reply.state, reply.pending) == (State.COMPLETED, ())
        assert [(record.tool, record.result) for record in reply.tools] == [("look", "[success]\nvalue of a")]
        assert reply.usage == (await chain).usage
        assert repr(chain) == f"<AgentChain {chain.run_id} completed>"


async def test_answers_are_the_text_of_all_rounds():
    async with agent_of() as agent:
        seen, errors, done = collect(agent.stream("hello").answers())
        await done.wait()
        assert ("".join(seen), errors) == ("one two three", [])


async def test_answers_error_when_the_run_fails_or_is_cancelled():
    async with agent_of([ModelStatusError("gone", status=400)], "hi") as agent:
        _, errors, done = collect(agent.stream("hello").answers())
        await done.wait()
        (error,) = errors
        assert (type(error), error.kind, error.retryable) == (RunFailed, "status", False)
        chain = agent.stream("hello")
        chain.cancel()
        _, errors, done = collect(chain.answers())
        await done.wait()
        (error,) = errors
        assert (type(error), error.reason) == (RunCancelled, "user")


async def test_views_are_rx():
    async with agent_of() as agent:
        chain = agent.start("hello")
        assert isinstance(chain, Observable)
        tools, _, done = collect(chain.pipe(of_type(ToolStartEvent)).map(lambda event: event.tool))
        types, _, _ = collect(chain.filter(lambda event: event.type == EventType.FINAL))
        await done.wait()
        await turns()
        assert (tools, [event.text for event in types]) == (["look"], ["two three"])


async def test_run_is_refused_and_names_what_to_use():
    async with agent_of() as agent:
        chain = agent.stream("hello")
        with pytest.raises(RuntimeError, match=r"await chain.*chat_sync"):
            chain.run()
        with pytest.raises(TypeError):
            iter(chain)


def test_subscribing_without_a_loop_is_an_error():
    chain = agent_of().stream("hello")
    with pytest.raises(RuntimeError, match="no running event loop"):
        chain.subscribe(lambda event: None)


async def test_nothing_pending_is_said_by_name():
    async with agent_of() as agent:
        chain = agent.stream("hello")
        controls = [
            lambda: chain.answer("yes", question_id="q1"),
            lambda: chain.approve("q1"),
            lambda: chain.reject("q1", "no"),
            lambda: chain.amend("q1", {}),
        ]
        for control in controls:
            with pytest.raises(NotPendingError, match="'q1'"):
                control()


async def test_attached_chains_look_on_without_counting():
    async with suspended() as agent:
        chain = agent.stream("hello")
        events = aiter(chain)
        await anext(events)
        attached = agent.attach(chain.run_id)
        async for event in attached:
            assert event.seq == 1
            break
        await turns()
        assert chain.state is not State.CANCELLED
        attached.cancel("superseded")
        assert (await chain).reason == "superseded"


class Suspended:
    """A run whose only call waits for its user: what `ask_user` will do, done from outside."""

    def __init__(self, agent):
        self.chain = agent.stream("hello")
        self.run = self.chain._agent_run

    def post(self, kind, **fields):
        header = self.run._performer._root.work.header()
        self.run._performer._root.work.post(kind(**header, **fields))

    async def ask(self):
        events = aiter(self.chain)
        while (event := await anext(events)).type is not EventType.QUESTION:
            if event.type is EventType.TOOL_START:
                self.post(QuestionEvent, question_id=event.call_id, text="Which?", options=("a", "b"))
        return event


async def wait_for_user() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()


def suspended(*script):
    return Agent(model=ScriptedModel(["Let me ask. ", call("wait_for_user")], *script), tools=[wait_for_user])


async def test_a_suspended_run_replies_with_what_it_waits_for_and_goes_on_without_consumers():
    async with suspended("Blue it is.") as agent:
        asked = Suspended(agent)
        question = await asked.ask()
        reply = await asked.chain.reply()
        assert (reply.state, reply.pending, reply.text) == (State.SUSPENDED, (question,), "Let me ask. ")
        await turns()
        assert asked.chain.state is State.SUSPENDED  # left, and not cancelled
        asked.post(ResolvedEvent, target=question.question_id, decision="answered", text="blue")
        end = await asked.chain
        assert (end.text, end.tools[0].result) == ("Blue it is.", "[success]\nblue")
        assert_laws(await log_of(agent, end.run_id))


async def test_a_suspended_run_can_be_cancelled():
    async with suspended() as agent:
        asked = Suspended(agent)
        await asked.ask()
        asked.chain.cancel()
        end = await asked.chain
        log = await log_of(agent, end.run_id)
        assert (end.reason, log[-3].status) == ("user", "cancelled")
        assert_laws(log)


async def test_an_ended_run_and_its_subscribers_are_forgotten():
    class Subscriber:
        def __call__(self, event):
            pass

    async with agent_of([call("fetch", key="a")], "done") as agent:  # a thread would forget it in its own time
        chain, subscriber = agent.stream("hello"), Subscriber()
        chain.subscribe(subscriber)
        await chain
        await turns()
        gone = [weakref.ref(subscriber), weakref.ref(chain), weakref.ref(chain._agent_run)]
        del chain, subscriber
        for _ in range(2):  # a cycle with a finalizer goes with the second
            gc.collect()
        assert [ref() for ref in gone] == [None] * 3


# -- logs that are gone ----------------------------------------------------------------------------------


async def evicted(agent, chain):
    """End the chain's run, and let others take its place in a store that keeps one."""
    await chain
    for _ in range(2):
        await agent.chat("another")


async def test_a_chain_whose_log_was_dropped_says_so_to_every_new_consumer():
    async with agent_of("one", "two", "three", store=InMemoryStore(max_runs=1)) as agent:
        chain = agent.start("hello")
        await evicted(agent, chain)
        with pytest.raises(RunNotFoundError, match=chain.run_id):
            [event async for event in chain]
        seen, errors, done = collect(chain)
        await done.wait()
        assert (seen, [type(error) for error in errors]) == ([], [RunNotFoundError])
        with pytest.raises(RunNotFoundError):
            await anext(agent.follow(chain.run_id))
        assert (await chain).text == "one"  # which the run still knows
        assert (await chain.reply()).text == "one"


@pytest.mark.parametrize("reader", ["iterator", "follower"])
async def test_a_reader_in_the_middle_of_a_log_that_was_dropped_is_told(reader):
    async def talkative(request):
        for number in range(400 if request.messages[-1].content == "hello" else 1):
            yield ModelChunk(text="a") if number % 2 else ModelChunk(reasoning="b")

    async with Agent(model=talkative, store=InMemoryStore(max_runs=1)) as agent:
        chain = agent.start("hello")
        await chain
        events = aiter(chain) if reader == "iterator" else agent.follow(chain.run_id)
        seen = [await anext(events)]
        await evicted(agent, chain)
        with pytest.raises(RunNotFoundError):
            async for event in events:
                seen.append(event)  # noqa: PERF401  what came before the error is kept
        assert [event.seq for event in seen] == list(range(1, PAGE + 1))


@pytest.mark.virtual_time
async def test_what_a_consumer_sees_it_can_act_on_at_once_also_where_the_store_is_slow_to_say_that_it_has_it():
    class Slow(FailingLog):
        async def _pass_on(self, name, *args, **kwargs):
            result = await super()._pass_on(name, *args, **kwargs)
            if name == "append":
                await asyncio.sleep(1)  # it is in the log, and readers find it there
            return result

    @tool(approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    model = ScriptedModel(["I will. ", call("pay", amount=5)], "It is paid.", delay=0.3)
    async with Agent(model=model, tools=[pay], store=Slow(InMemoryStore(), fail_at=0)) as agent:
        seen = []
        async for event in agent.stream("pay 5"):
            seen.append(event)
            if event.type is EventType.APPROVAL:
                agent.attach(event.run_id).approve(event.call_id, event.arguments_hash)
        assert_laws(seen)
        assert seen[-1].text == "It is paid."
