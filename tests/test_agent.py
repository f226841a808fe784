"""Agents as users hold them: requests, sessions, lives, and many at once."""

import asyncio
import contextlib
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from agentflow import Agent, EventBus, InMemoryStore, ModelChunk, RunCancelled, Settings, ToolContext, tool
from agentflow.errors import (
    AgentflowError,
    ConfigError,
    RequestError,
    RunNotFoundError,
    SessionBusyError,
    StoreError,
)
from agentflow.events import EventType, State
from agentflow.models.base import CallRequest
from agentflow.models.openai import OpenAIModel
from agentflow.testing import FakeProvider, LeakCheck, ScriptedModel, assert_laws, call, text
from tests.builders import TOOLS, log_of, mixed_run, served, turns


class Held:
    """A model that answers each call once it is let go."""

    provider = name = "held"

    def __init__(self):
        self.asked = []
        self.gates = []

    async def stream(self, request):
        gate = asyncio.Event()
        self.asked.append(request.messages[-1].content)
        self.gates.append(gate)
        await gate.wait()
        yield ModelChunk(text=f"answer to {request.messages[-1].content}")


# -- requests --------------------------------------------------------------------------------------------


async def test_a_wrong_model_is_told_before_anything_begins():
    async with Agent(model="nonsense/model") as agent:
        for begin in (agent.stream, agent.start):
            with pytest.raises(ConfigError, match="nonsense"):
                begin("hello")
        with pytest.raises(ConfigError, match="max_iterations is 0; input should be greater than 0"):
            Agent(model=ScriptedModel("hi"), max_iterations=0).stream("hello")


async def test_what_is_configured_reaches_the_model():
    model = ScriptedModel("hi")
    async with Agent(model=model, temperature=0.5, max_tokens=99, instructions="Be brief.") as agent:
        await agent.chat("hello")
    (request,) = model.requests
    assert (request.temperature, request.max_tokens, request.messages[0].content) == (0.5, 99, "Be brief.")
    model = ScriptedModel("hi")
    async with Agent(model=model, settings=Settings(model={"temperature": 0.1})) as agent:
        await agent.chat("hello")
    assert model.requests[0].temperature == 0.1


async def test_a_bare_generator_function_is_a_model():
    async def parrot(request):
        yield ModelChunk(text=request.messages[-1].content)

    async with Agent(model=parrot) as agent:
        chain = agent.stream("hello")
        starts = [event async for event in chain if event.type is EventType.MODEL_START]
        assert [(event.provider, event.model) for event in starts] == [("function", "parrot")]
        assert (await chain.reply()).text == "hello"


# -- sessions --------------------------------------------------------------------------------------------


async def test_a_session_goes_on_for_its_user_only():
    model = ScriptedModel("one", "two", "three", "four")
    async with Agent(model=model) as agent:
        for message, fields in (("a", {"user_id": "u"}), ("b", {"user_id": "u"}), ("c", {"user_id": "v"}), ("d", {})):
            await agent.chat(message, session_id="s", **fields)
    seen = [[message.content for message in request.messages] for request in model.requests]
    assert seen == [["a"], ["a", "one", "b"], ["c"], ["d"]]


async def test_two_subscriptions_and_a_follower_make_one_request():
    async with served(*mixed_run()) as (provider, agent):
        chain = agent.stream("hello")
        one, two = [], []
        chain.subscribe(one.append)
        chain.subscribe(two.append)
        end = await chain
        await turns()
        assert len(provider.requests) == 3  # one per round
        assert one == two == await log_of(agent, end.run_id)


async def test_messages_to_a_busy_session_wait_in_line_up_to_eight():
    model = Held()
    async with Agent(model=model) as agent:
        chains = [agent.start(str(number), session_id="s") for number in range(9)]
        await turns()
        assert model.asked == ["0"]
        with pytest.raises(SessionBusyError, match="8 more wait"):
            await agent.chat("9", session_id="s")
        chains[1].cancel()
        assert (await chains[1]).reason == "user"
        for number in (0, 2, 3, 4, 5, 6, 7, 8):
            await turns()
            model.gates[-1].set()
            assert (await chains[number].reply()).text == f"answer to {number}"
        assert model.asked == ["0", "2", "3", "4", "5", "6", "7", "8"]
        assert_laws(await log_of(agent, chains[1].run_id))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
async def test_cancelling_a_line_in_any_order_leaves_the_session_free(order):
    model = Held()
    async with LeakCheck(), Agent(model=model) as agent:
        chains = [agent.start(str(number), session_id="s") for number in range(3)]
        await turns()
        for number in order:
            chains[number].cancel()
        assert [(await chain).type for chain in chains] == [EventType.CANCELLED] * 3
        last = agent.start("last", session_id="s")
        await turns()
        model.gates[-1].set()
        assert (await last.reply()).text == "answer to last"


async def test_fifty_users_at_once_never_see_each_others_values():
    async def lookup(key: str, context: ToolContext) -> str:
        await asyncio.sleep(0)
        return f"{key} of {context.user_id} in {context.session_id} with {context.metadata['canary']}"

    async def echo(request):
        await asyncio.sleep(0)
        if request.messages[-1].role == "user":
            yield ModelChunk(text="I look. ")
            arguments = f'{{"key": "{request.messages[-1].content}"}}'
            yield ModelChunk(calls=(CallRequest(name="lookup", arguments=arguments),))
        else:
            yield ModelChunk(text=" ".join(message.content for message in request.messages))

    def canary(number):
        return f"canary{number:03}"

    async with Agent(model=echo, tools=[lookup]) as agent:
        seen = []
        agent.events.subscribe(seen.append)

        async def user(number):
            own = canary(number)
            fields = {"session_id": f"session-{own}", "user_id": f"user-{own}", "metadata": {"canary": own}}
            return [await agent.chat(f"{own} asks {turn}", **fields) for turn in range(3)]

        replies = await asyncio.gather(*(user(number) for number in range(50)))
    by_run = {}
    for event in seen:
        by_run.setdefault(event.run_id, []).append(event)
    for number, own in enumerate(replies):
        foreign = [canary(other) for other in range(50) if other != number]
        for reply in own:
            assert_laws(by_run[reply.run_id])
            told = repr((reply, by_run[reply.run_id]))
            assert canary(number) in told
            assert [word for word in foreign if word in told] == []


# -- lives -----------------------------------------------------------------------------------------------


async def test_closing_ends_what_runs_and_refuses_what_comes_later():
    model = Held()
    agent = Agent(model=model)
    chains = [agent.start(str(number), session_id="s") for number in range(3)]
    unstarted = agent.stream("later")
    waiting = asyncio.get_running_loop().create_task(agent.chat("4"))
    await turns()
    await agent.aclose()
    assert [(await chain).reason for chain in chains] == ["shutdown"] * 3
    with pytest.raises(RunCancelled, match="shutdown"):
        await waiting
    with pytest.raises(AgentflowError, match="is closed"):
        agent.stream("hello")
    with pytest.raises(AgentflowError, match="was closed before this run began"):
        await unstarted
    assert unstarted.state is State.IDLE
    await agent.aclose()


async def test_closing_that_is_itself_cancelled_still_ends_the_threads():
    hold = asyncio.Event()

    async def stubborn(request):
        while not hold.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await hold.wait()
        yield ModelChunk()

    agent = Agent(model=ScriptedModel([call("look", key="a")], "done"), tools=TOOLS)
    await agent.chat("hello")
    agent._models._model = stubborn
    agent.start("hello")
    await turns()
    closing = asyncio.get_running_loop().create_task(agent.aclose())
    await turns()
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert closing.cancelled()
    hold.set()


async def test_a_live_run_can_be_attached_and_an_ended_one_followed():
    async with Agent(model=ScriptedModel("hi")) as agent:
        chain = agent.start("hello")
        attached = agent.attach(chain.run_id)
        assert [event async for event in attached] == await log_of(agent, chain.run_id)
        with pytest.raises(RunNotFoundError, match="can be followed"):
            agent.attach(chain.run_id)
        with pytest.raises(RunNotFoundError, match="'nobody'"):
            await anext(agent.follow("nobody"))
        with pytest.raises(RunNotFoundError):
            agent.attach("nobody")


async def test_agents_share_a_store_and_a_bus_that_they_do_not_close():
    class Watched(InMemoryStore):
        closed = 0

        async def aclose(self):
            self.closed += 1

    store, bus, paths = Watched(), EventBus(), []
    bus.attach(lambda event: paths.append(event.path[0]) if event.type is EventType.FINAL else None)
    second = ScriptedModel("two")
    one = Agent(name="one", model=ScriptedModel("one"), store=store, bus=bus)
    two = Agent(name="two", model=second, store=store, bus=bus)
    async with one, two:
        reply = await one.chat("hello", session_id="s")
        await two.chat("again", session_id="s")
        assert [event async for event in two.follow(reply.run_id)] == await log_of(one, reply.run_id)
    assert (store.closed, paths) == (0, ["one", "two"])
    assert [message.content for message in second.requests[0].messages] == ["hello", "one", "again"]


async def test_a_model_of_the_users_is_not_closed_and_one_of_the_agents_is():
    class Closing(ScriptedModel):
        closed = 0

        async def aclose(self):
            self.closed += 1

    model = Closing("hi")
    async with Agent(model=model) as agent:
        await agent.chat("hello")
    assert model.closed == 0
    async with (
        FakeProvider(text("hi")) as provider,
        LeakCheck(),
        Agent(model="openai/fake", base_url=provider.base_url, api_key="k") as agent,
    ):
        assert (await agent.chat("hello")).text == "hi"


async def test_a_store_that_fails_while_it_opens_a_session_leaves_the_agent_usable():
    class Moody(InMemoryStore):
        fail = True

        async def open_session(self, key, run_id, **options):
            if self.fail:
                raise StoreError("not now")
            return await super().open_session(key, run_id, **options)

    store = Moody()
    async with Agent(model=ScriptedModel("hi"), store=store) as agent:
        chain = agent.stream("hello", session_id="s")
        with pytest.raises(StoreError, match="not now"):
            await chain
        with pytest.raises(StoreError, match="not now"):
            [event async for event in chain]
        store.fail = False
        assert (await agent.chat("hello", session_id="s")).text == "hi"


# -- scripts ---------------------------------------------------------------------------------------------


@contextmanager
def provider_in_a_thread(*scripts):
    """A provider in a loop of its own, for tests without one."""
    loop, provider = asyncio.new_event_loop(), FakeProvider(*scripts)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(provider.__aenter__(), loop).result()
    try:
        yield provider
    finally:
        asyncio.run_coroutine_threadsafe(provider.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("made_by", ["agent", "user"])
def test_chat_sync_twice_goes_on_with_the_session_and_leaves_nothing_open(made_by):
    with provider_in_a_thread(*mixed_run()[1:], text("again")) as provider:
        options = {"model": "openai/fake", "base_url": provider.base_url, "api_key": "k"}
        if made_by == "user":
            options = {"model": OpenAIModel("fake", base_url=provider.base_url, api_key="k")}
        agent = Agent(tools=TOOLS, **options)
        agent.chat_sync("hello", session_id="s")
        reply = agent.chat_sync("and?", session_id="s")
        roles = [message["role"] for message in provider.requests[-1].body["messages"]]
        asyncio.run(agent.aclose())
        gc.collect()
        assert (reply.text, provider.refusals) == ("again", [])
        assert roles == ["user", "assistant", "tool", "tool", "assistant", "user"]


async def test_chat_sync_refuses_a_running_loop():
    with pytest.raises(RuntimeError, match=r"await agent\.chat"):
        Agent(model=ScriptedModel("hi")).chat_sync("hello")


def test_start_needs_a_running_loop():
    with pytest.raises(RuntimeError, match="no running event loop"):
        Agent(model=ScriptedModel("hi")).start("hello")


async def parrot(request):
    await asyncio.sleep(0)
    yield ModelChunk(text=request.messages[-1].content)


@pytest.mark.parametrize("session_id", [None, "s"])
def test_chat_sync_from_many_threads_answers_each(session_id):
    agent = Agent(model=parrot)
    with ThreadPoolExecutor(8) as threads:
        replies = threads.map(lambda number: agent.chat_sync(f"hello {number}", session_id=session_id), range(24))
        assert [reply.text for reply in replies] == [f"hello {number}" for number in range(24)]
    assert len(agent._store._sessions) == (1 if session_id else 24)
    asyncio.run(agent.aclose())


async def test_chat_sync_refuses_while_runs_are_alive_in_another_loop():
    model = Held()
    async with Agent(model=model) as agent:
        chain = agent.start("hello")
        await turns()
        with pytest.raises(AgentflowError, match=r"runs in another event loop; use `await agent\.chat"):
            await asyncio.to_thread(agent.chat_sync, "aside")
        model.gates[0].set()
        assert (await chain.reply()).text == "answer to hello"


def test_chat_sync_in_a_tool_of_its_own_chat_sync_is_refused_since_it_would_wait_for_itself():
    agents = []

    def aside() -> str:
        return agents[0].chat_sync("aside").text

    def through_another() -> str:
        return agents[1].chat_sync("go on").text

    script = [[call("aside")], "refused", [call("through_another")], "done"]
    agents.append(Agent(name="first", model=ScriptedModel(*script), tools=[aside, through_another]))
    agents.append(Agent(name="second", model=ScriptedModel([call("aside")], "refused there"), tools=[aside]))
    reply = agents[0].chat_sync("hello")
    assert (reply.text, reply.tools[0].status) == ("refused", "error")
    assert "agent 'first' runs this tool in its own chat_sync()" in reply.tools[0].result
    reply = agents[0].chat_sync("hello")
    assert reply.tools[0].result == "[success]\nrefused there"
    for agent in agents:
        asyncio.run(agent.aclose())


# -- what an agent is made of ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "  ", None, 5, "a\ud800", b"shop"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(ConfigError, match="an agent's name must be a text"):
        Agent(name=name, model=ScriptedModel("hi"))


def test_a_coroutine_is_no_model():
    async def answer(request):
        return ModelChunk(text="hi")

    class Answering:
        async def stream(self, request):
            return ModelChunk(text="hi")

    for model in (answer, Answering()):
        with pytest.raises(ConfigError, match="must be an async generator: it has to yield ModelChunk"):
            Agent(model=model)


def test_tools_are_a_list():
    def look() -> str:
        return "seen"

    for tools in (look, "look"):
        with pytest.raises(ConfigError, match=r"tools must be a list, .* write tools=\[\.\.\.\]"):
            Agent(model=ScriptedModel("hi"), tools=tools)


@pytest.mark.parametrize("model", [5, [], "x" * 300, "\ud800", "two\nlines"])
async def test_a_model_that_is_no_model_string_is_refused_before_anything_begins(model):
    async with Agent(model=ScriptedModel("hi")) as agent:
        with pytest.raises(RequestError, match="the model must be"):
            agent.stream("hello", model=model)
    if isinstance(model, str):
        with pytest.raises(ConfigError, match="no model string"):
            Agent(model=model)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temperature": float("nan")}, "temperature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"model_options": {"stop": "abc"}}, "stop"),
    ],
)
def test_an_option_that_cannot_be_is_refused_when_the_agent_is_made(options, named):
    with pytest.raises(ConfigError, match=named):
        Agent(model=ScriptedModel("hi"), **options)


async def test_a_cursor_that_is_no_number_is_refused():
    async with Agent(model=ScriptedModel("hi")) as agent:
        with pytest.raises(RequestError, match="number of an event"):
            agent.follow("run", after=None)


async def test_clients_of_models_that_requests_name_are_bounded_and_those_at_work_stay():
    settings = Settings(providers={"mine": {"base_url": "http://127.0.0.1:9/v1"}})
    async with Agent(settings=settings, model="scripted/hi") as agent:
        await agent.chat("hello")
        for number in range(200):
            agent.stream("hello", model=f"mine/{number}")
        assert len(agent._models._made) <= 65
        assert (await agent.chat("hello", model="scripted/ho")).text == "ho"


@pytest.mark.parametrize("examples", ["A tea, please.", [""], [5]])
def test_examples_that_are_no_messages_are_refused(examples):
    with pytest.raises(ConfigError, match="examples are a list of messages"):
        Agent(model=ScriptedModel("hi"), examples=examples)


async def test_what_is_no_store_is_told_before_anything_begins():
    agent = Agent(model=ScriptedModel("hi"), store="s.db")
    with pytest.raises(ConfigError, match=r"store='s.db' is no store; .*SqliteStore"):
        agent.stream("hello")


async def test_the_pools_of_its_tools_can_be_seen_once_it_has_run():
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    async with Agent(model=ScriptedModel([call("look")], ["done"]), tools=[look]) as agent:
        assert agent.pools == ()
        await agent.chat("hello")
        assert {pool.name: pool.calls for pool in agent.pools}["default"] == 1
