"""A run of several chains may be cut at any event, and its log may fail at any append: nothing is left over."""

import asyncio

import pytest

from agentflow import Agent, InMemoryStore, tool
from agentflow.errors import StoreError
from agentflow.events import TERMINAL_TYPES, EventType, State
from agentflow.messages import unpaired
from agentflow.stores.base import SessionKey
from agentflow.testing import FailingLog, ScriptedModel, assert_laws, call, run_virtual
from tests.builders import of, turns
from tests.chain.families import so_far

AGAIN = "and again?"


def playing(*script):
    """A model that plays `script` from the beginning for every user's message, and is fine when asked again."""

    async def model(request):
        said = request.messages
        asked = max(position for position, message in enumerate(said) if message.role == "user")
        number = sum(message.role == "assistant" for message in said[asked:])
        turn = "fine" if said[asked].text == AGAIN else script[number]
        async for chunk in ScriptedModel(turn).stream(request):
            yield chunk

    return model


@tool(approval=True)
async def refund(order: str) -> str:
    """Give money back."""
    await asyncio.sleep(0)
    return f"refunded {order}"


@tool(idempotent=True)
async def flaky(key: str) -> str:
    """Work at the second attempt only."""
    tries.append(key)
    await asyncio.sleep(0.1)
    if tries.count(key) < 2:
        raise ConnectionResetError("gone")
    return f"found {key}"


@tool
async def count(upto: int):
    """Stream numbers."""
    for number in range(upto):
        await asyncio.sleep(0.1)
        yield f"{number} "


@tool
async def fetch(key: str) -> str:
    """Fetch it; what is amended to "quick" is quick."""
    await asyncio.sleep(0.05 if key == "quick" else 5.0)
    return f"fetched {key}"


tries: list[str] = []


def nested(tools, *script, depth=3, **options):
    agent = Agent(name="leaf", model=playing(*script), tools=tools)
    for level in reversed(range(depth)):
        below = [call(agent.name, input="go on")]
        above = options if level == 0 else {}
        agent = Agent(name=f"a{level}", model=playing(below, "done"), tools=[agent.as_tool()], **above)
    return agent


def approved(**options):
    return nested([refund], [call("refund", order="A1")], "done", **options)


def parallel(**options):
    tries.clear()
    left = nested([flaky, count], [call("flaky", key="x"), call("count", upto=3)], "done", depth=1)
    right = nested([refund, count], [call("count", upto=2), call("refund", order="A2")], "done", depth=0)
    calls = [call("a0", input="left"), call("leaf", input="right"), call("count", upto=2)]
    return Agent(name="root", model=playing(calls, "done"), tools=[left.as_tool(), right.as_tool(), count], **options)


def amended(**options):
    return nested([fetch], [call("fetch", key="slow")], "done", depth=2, **options)


def approve(chain, event):
    if event.type is EventType.APPROVAL:
        chain.approve(event.call_id, event.arguments_hash)


def amend(chain, event):
    """First the agent in the middle, then the leaf's call."""
    if event.type is EventType.TOOL_START and event.attempt == 1:
        if event.tool == "fetch" and not any(event.tool == "a1" for event in amendments):
            amendments.append(next(start for start in starts if start.tool == "a1"))
            chain.amend(amendments[-1].call_id, {"input": "do better"})
        elif event.tool == "fetch":
            chain.amend(event.call_id, {"key": "quick"})
        else:
            starts.append(event)


amendments, starts = [], []
SCENARIOS = {"approved": (approved, approve), "parallel": (parallel, approve), "amended": (amended, amend)}


async def play(name, *, store=None, cut=None):
    """Play a scenario; `cut` says what happens at which event. The agent, its chain, and what was seen."""
    build, human = SCENARIOS[name]
    amendments.clear()
    starts.clear()
    store = store or InMemoryStore()
    agent = build(store=store)
    chain = agent.start("hello", session_id="s")
    loop, seen = asyncio.get_running_loop(), []

    def look(event):
        if event.run_id != chain.run_id:
            return
        seen.append(event)
        if cut is not None and event.seq == cut[0]:
            cut[1](chain)
        elif event.type not in TERMINAL_TYPES:
            loop.call_soon(decide, event)

    def decide(event):
        if chain.state not in (State.CANCELLED, State.COMPLETED):
            human(chain, event)

    agent.bus.attach(look)
    try:
        await chain
    except StoreError as error:
        failed = error
    else:
        failed = None
    await turns(50)
    return agent, chain, seen, failed


async def usable_again(agent, store):
    """Nothing is left of the run, its session takes the next message, and the history is paired."""
    await asyncio.sleep(10.0)  # timers of what should have ended
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert (await agent.chat(AGAIN, session_id="s")).text == "fine"
    history = [message for turn in await store.read_turns(SessionKey("s"), 0, 10) for message in turn.messages]
    assert unpaired(history) is None
    await agent.aclose()


async def whole(name):
    store = InMemoryStore()
    agent, _, seen, _ = await play(name, store=store)
    assert_laws(seen)
    await usable_again(agent, store)
    return seen


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_scenario_holds_what_it_is_to_show(name):
    seen = run_virtual(whole(name))
    assert seen[-1].type is EventType.FINAL
    errors = {(event.status, event.will_retry) for event in of(seen, EventType.TOOL_ERROR)}
    deltas, decided = of(seen, EventType.TOOL_DELTA), [event.decision for event in of(seen, EventType.RESOLVED)]
    depth = max(len(event.path) for event in seen)
    assert (depth, errors, bool(deltas), decided) == {
        "approved": (4, set(), False, ["approved"]),
        "parallel": (3, {("error", True)}, True, ["approved"]),
        "amended": (3, {("amended", True), ("amended", False)}, False, ["amended", "amended"]),
    }[name]


@pytest.mark.parametrize(("name", "when"), [*((name, "at once") for name in SCENARIOS), ("approved", "a step later")])
def test_a_run_may_be_cancelled_at_every_event(name, when, caplog):
    async def cancelled_at(number):
        def cut(chain):
            if when == "at once":
                chain.cancel()
            else:
                asyncio.get_running_loop().call_soon(chain.cancel)

        store = InMemoryStore()
        agent, chain, seen, _ = await play(name, store=store, cut=(number, cut))
        assert_laws(seen)
        assert seen == await so_far(agent, chain)
        await usable_again(agent, store)
        return seen

    length = len(run_virtual(whole(name)))
    for number in range(1, length + 1):
        seen = run_virtual(cancelled_at(number))
        ended = seen[-1].type is EventType.CANCELLED
        assert ended or number > length - 5, number  # these came with the end, in one append
        open_at_the_end = {event.status for event in of(seen, EventType.TOOL_ERROR) if not event.will_retry}
        assert open_at_the_end <= {"cancelled", "amended"}
    assert caplog.records == []


@pytest.mark.parametrize("applied", [False, True], ids=["refused", "reply lost"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_log_may_fail_at_every_append(name, applied):
    async def failing_at(number):
        store = FailingLog(InMemoryStore(), fail_at=number, applied=applied)
        agent, chain, seen, failed = await play(name, store=store)
        appends, log = store.appends, await so_far(agent, chain)
        assert seen == log
        assert (failed is None) is (applied or number > appends)
        assert_laws(log, ended=failed is None)
        if number <= appends:
            await usable_again(agent, store)
        await agent.aclose()
        return appends

    length = run_virtual(failing_at(1_000_000))
    assert length >= 10
    for number in range(1, length + 1):
        run_virtual(failing_at(number))
