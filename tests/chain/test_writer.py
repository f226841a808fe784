"""Accept before all else: what happens when an append fails, and what is stored before the end is seen."""

import asyncio
import itertools

import pytest

from agentflow import Agent, InMemoryStore, ModelChunk
from agentflow.errors import AgentflowError, StoreError
from agentflow.events import EventType
from agentflow.messages import Message, unpaired
from agentflow.models.base import CallRequest
from agentflow.settings import Settings
from agentflow.stores.base import SessionKey
from agentflow.testing import FailingLog, LeakCheck, ScriptedModel, assert_laws, call, check_laws
from tests.builders import TOOLS, log_of, tool_delta, turns

SCRIPT = (["Let me look. ", call("look", key="a"), call("fetch", key="b"), call("count", upto=2)], "All is there.")


async def outcome(awaitable):
    """What it gives, or the `StoreError` it raises."""
    try:
        return await awaitable
    except StoreError as error:
        return error


async def iterate(chain):
    return [event async for event in chain]


def subscribe(chain):
    ended = asyncio.get_running_loop().create_future()
    seen = []
    chain.subscribe(seen.append, ended.set_result, lambda: ended.set_result(seen))
    return ended


async def run_with(log):
    """One run; what each kind of consumer got, and its chain."""
    async with Agent(model=ScriptedModel(*SCRIPT), tools=TOOLS, store=log) as agent:
        chain = agent.stream("hello", session_id="s")
        waits = (subscribe(chain), iterate(chain), chain._terminal(), chain.reply(), agent.attach(chain.run_id))
        got = await asyncio.gather(*(outcome(wait) for wait in waits[:4]), outcome(waits[4]._terminal()))
    return chain, got


async def each_append(applied=False):
    """A run for every append that may fail, until none is left: its store, chain and what its consumers got."""
    for number in itertools.count(1):  # how many there are depends on which tools end together
        store = InMemoryStore()
        async with LeakCheck():
            log = FailingLog(store, fail_at=number, applied=applied)
            chain, got = await run_with(log)
        if log.appends < number:
            return
        yield number, store, chain, got


async def test_when_any_append_fails_every_consumer_gets_the_store_error_and_nothing_goes_on():
    failures = 0
    async for number, store, chain, got in each_append():
        failures += 1
        assert [type(result) for result in got] == [StoreError] * 5
        assert [str(result) for result in got] == [f"append {number} failed, as the test asked"] * 5
        left = await store.read(chain.run_id, 0, 1000)
        assert check_laws(left, ended=False) == []
        assert all(event.type is not EventType.FINAL for event in left)
        session = await store.open_session(SessionKey("s"), chain.run_id)
        assert [unpaired(turn.messages) for turn in session.turns] == [None] * len(session.turns)
    assert failures > 5


async def test_when_only_the_reply_of_any_append_is_lost_the_run_succeeds():
    failures = 0
    async for _, _, _, (seen, iterated, end, reply, attached) in each_append(applied=True):
        failures += 1
        assert (reply.text, attached, seen, iterated[-1]) == ("All is there.", end, iterated, end)
        assert_laws(iterated)
    assert failures > 5


async def test_a_foreign_exception_of_the_store_is_told_as_a_store_error():
    log = FailingLog(InMemoryStore(), fail_at=2, error=OSError("the disk is gone"))
    _, got = await run_with(log)
    assert {type(result) for result in got} == {StoreError}
    assert "the disk is gone" in str(got[0])


async def test_a_store_that_cannot_open_a_session_is_told_at_once():
    class Closed(InMemoryStore):
        async def open_session(self, key, run_id, **options):
            raise OSError("no connection")

    async with Agent(model=ScriptedModel("hi"), store=Closed()) as agent:
        with pytest.raises(StoreError, match="no connection"):
            await agent.chat("hello")


async def test_commands_wait_for_the_acceptance_of_their_cause():
    """A model that was asked, and a tool that ran, although the log never took their start, would be a lie."""
    ran = []

    def effect() -> str:
        ran.append("effect")
        return "done"

    log = FailingLog(InMemoryStore(), fail_at=2)
    model = ScriptedModel([call("effect")], "done")
    async with Agent(model=model, tools=[effect], store=log) as agent:
        with pytest.raises(StoreError):
            await agent.chat("hello")
    assert (ran, len(model.requests)) == ([], 1)


@pytest.mark.parametrize("at", [EventType.TOOL_START, EventType.MODEL_START])
async def test_nothing_is_begun_that_was_cancelled_in_the_moment_it_was_told(at):
    class Slow(InMemoryStore):
        async def append(self, run_id, events, *, token=None):
            await turns(10)
            await super().append(run_id, events, token=token)

    ran = []

    def effect() -> str:
        ran.append("effect")
        return "done"

    model = ScriptedModel([call("effect")], "done")
    async with Agent(model=model, tools=[effect], store=Slow()) as agent:
        chain = agent.stream("hello")
        agent.bus.attach(lambda event: chain.cancel() if event.type is at else None)
        await chain
        await turns(20)
    assert (ran, len(model.requests)) == ([], 1 if at is EventType.TOOL_START else 0)


async def test_the_turn_is_stored_and_the_session_free_before_the_end_is_seen():
    store = InMemoryStore()
    async with Agent(model=ScriptedModel("one", "two"), store=store) as agent:
        again = []

        def follow_up(event):
            if event.type is EventType.FINAL and not again:
                again.append(agent.start("next", session_id="s"))

        agent.bus.attach(follow_up)
        await agent.chat("hello", session_id="s")
        assert (await again[0].reply()).text == "two"
        session = await store.open_session(SessionKey("s"), "r")
        contents = [[message.content for message in turn.messages] for turn in session.turns]
        assert contents == [["hello", "one"], ["next", "two"]]


async def test_no_follower_sees_the_end_before_the_turn_is_stored():
    class Slow(InMemoryStore):
        stored = False

        async def close_session(self, *args, **kwargs):
            await turns(10)
            await super().close_session(*args, **kwargs)
            self.stored = True

    store = Slow()
    async with Agent(model=ScriptedModel("hi"), store=store) as agent:
        chain = agent.start("hello")
        await turns(3)
        seen = [(event.type, store.stored) async for event in agent.follow(chain.run_id)]
    assert seen[-1] == (EventType.FINAL, True)
    assert not any(stored for _, stored in seen[:2])


async def test_a_run_that_did_not_end_final_keeps_a_paired_turn_that_ends_with_the_assistant():
    store = InMemoryStore()
    async with Agent(model=ScriptedModel([call("look", key="a")]), tools=TOOLS, store=store) as agent:
        chain = agent.stream("hello", session_id="s")
        async for event in chain:
            if event.type is EventType.TOOL_START:
                chain.cancel()
    (turn,) = (await store.open_session(SessionKey("s"), "r")).turns
    assert (turn.outcome, unpaired(turn.messages)) == ("cancelled", None)
    assert [message.role for message in turn.messages] == ["user", "assistant", "tool", "assistant"]
    assert turn.messages[-1] == Message(role="assistant", content="[no answer: the run cancelled]")


async def test_a_log_over_its_bound_ends_the_run():
    settings = Settings(limits={"run_log_bytes": 4000})
    async with Agent(model=ScriptedModel([call("look", key="a" * 5000)], "x"), tools=TOOLS, settings=settings) as agent:
        end = await agent.start("hello")
        assert (end.type, end.error.kind) == (EventType.FAILED, "limit")
        assert_laws(await log_of(agent, end.run_id))


async def test_a_run_is_one_task_less_while_it_has_nothing_to_write():
    hold = asyncio.Event()

    async def wait() -> str:
        await hold.wait()
        return "x"

    async with Agent(model=ScriptedModel([call("wait")], "done"), tools=[wait]) as agent:
        chain = agent.start("hello")
        await turns()
        assert not [task for task in asyncio.all_tasks() if "writer" in task.get_name()]
        hold.set()
        await chain


async def test_an_event_that_cannot_be_is_dropped_logged_and_counted(caplog):
    async with Agent(model=ScriptedModel("hi")) as agent:
        chain = agent.start("hello")
        run = chain._agent_run
        run._performer._root.work.post(tool_delta("unknown"))
        end = await chain
        assert run._writer.dropped == 1
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "tool_delta" in caplog.text
        assert_laws(await log_of(agent, end.run_id))


async def test_calls_that_still_wait_for_room_are_told_and_closed_when_the_run_ends():
    async def wait(number: int) -> str:
        await asyncio.Event().wait()

    calls = [call("wait", number=number) for number in range(20)]
    async with Agent(model=ScriptedModel(calls), tools=[wait]) as agent:
        chain = agent.stream("hello", session_id="s")
        async for event in chain:
            if event.type is EventType.TOOL_START and event.arguments["number"] == 15:
                chain.cancel()
        log = await log_of(agent, chain.run_id)
    assert_laws(log)
    assert [event.type for event in log].count(EventType.TOOL_START) == 20
    assert {event.status for event in log if event.type is EventType.TOOL_ERROR} == {"cancelled"}
    starts = [event.arguments for event in log if event.type is EventType.TOOL_START]
    assert starts == [{"number": number} for number in range(20)]


async def test_errors_of_a_run_are_agentflows():
    async with Agent(model=ScriptedModel()) as agent:
        with pytest.raises(AgentflowError, match="0 turns"):
            await agent.chat("hello")


# -- faults that nobody foresaw --------------------------------------------------------------------------


class Unnamed:
    """A model that breaks when it is asked for its name, from the second call on."""

    provider = "odd"

    def __init__(self, breaks_at):
        self._breaks_at = breaks_at
        self._asked = 0

    @property
    def name(self):
        self._asked += 1
        if self._asked == self._breaks_at:
            raise ZeroDivisionError("a bug in the model's name")
        return "unnamed"

    async def stream(self, request):
        if request.messages[-1].role == "user" and self._breaks_at == 2:
            yield ModelChunk(calls=(CallRequest(name="look", arguments='{"key": "a"}'),))
        else:
            yield ModelChunk(text="hi")


@pytest.mark.parametrize("breaks_at", [1, 2])
async def test_an_unforeseen_fault_ends_the_run_frees_its_session_and_is_logged_with_its_traceback(breaks_at, caplog):
    async with Agent(model=Unnamed(breaks_at), tools=TOOLS) as agent:
        chain = agent.stream("hello", session_id="s")
        log = [event async for event in chain]
        assert_laws(log)
        error = log[-1].error
        assert (error.kind, error.message) == ("internal", "an internal error ended the run: ZeroDivisionError")
        (record,) = caplog.records
        assert (record.levelname, record.exc_info[0]) == ("ERROR", ZeroDivisionError)
        assert "a bug in the model's name" in caplog.text
        assert (await agent.chat("again", session_id="s")).text == "hi"


class Fatal(BaseException):
    """Not even an Exception."""


FAULTS = [asyncio.CancelledError(), OSError("gone"), StoreError("no"), TypeError("odd")]


class Faulty(InMemoryStore):
    """One of its methods does `fault` at its `number`-th call: raises it, or gives it back."""

    def __init__(self, method, fault, number=1):
        super().__init__()
        self._left = number
        self._fault = fault
        method_of_store = getattr(self, method)

        async def faulty(*arguments, **named):
            self._left -= 1
            if self._left:
                return await method_of_store(*arguments, **named)
            if isinstance(fault, BaseException):
                raise fault
            return fault

        setattr(self, method, faulty)


@pytest.mark.parametrize(
    "fault", [Fatal(), asyncio.CancelledError(), OSError("gone"), StoreError("no"), None], ids=repr
)
async def test_whatever_a_store_does_when_it_opens_a_session_is_told_as_a_store_error(fault):
    async with Agent(model=ScriptedModel("hi"), store=Faulty("open_session", fault)) as agent:
        chain = agent.stream("hello", session_id="s")
        got = await asyncio.gather(outcome(chain.reply()), outcome(iterate(chain)), subscribe(chain))
        assert [type(error) for error in got] == [StoreError] * 3
        assert agent._runs == {}
        assert (await agent.chat("again", session_id="s")).text == "hi"


@pytest.mark.virtual_time
@pytest.mark.parametrize("fault", FAULTS, ids=repr)
@pytest.mark.parametrize(("method", "number"), [("append", 1), ("append", 2), ("close_session", 1)])
async def test_whatever_a_store_raises_in_mid_run_stops_it_and_frees_its_session(method, number, fault):
    store = Faulty(method, fault, number)
    async with Agent(model=ScriptedModel("hi", "hi"), store=store) as agent:
        chain = agent.stream("hello", session_id="s")
        got = await asyncio.gather(outcome(chain.reply()), outcome(iterate(chain)), subscribe(chain))
        assert [isinstance(error, StoreError) for error in got] == [True] * 3
        assert check_laws(await store.read(chain.run_id, 0, 1000), ended=False) == []
        await turns()
        assert agent._runs == {}
        assert (await agent.chat("again", session_id="s")).text == "hi"


async def test_what_is_no_exception_is_told_to_the_consumers_and_to_the_loop():
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
    async with Agent(model=ScriptedModel("hi", "hi"), store=Faulty("append", Fatal("x"), 2)) as agent:
        with pytest.raises(StoreError, match="Fatal"):
            await agent.chat("hello", session_id="s")
        await turns()
        assert [type(error) for error in told] == [Fatal]
        assert (await agent.chat("again", session_id="s")).text == "hi"


async def test_a_session_that_cannot_even_be_freed_is_logged(caplog):
    class Gone(InMemoryStore):
        async def append(self, run_id, events, *, token=None):
            raise StoreError("gone")

        async def close_session(self, *args, **kwargs):
            raise StoreError("gone too")

    async with Agent(model=ScriptedModel("hi"), store=Gone()) as agent:
        with pytest.raises(StoreError, match=r"^gone$"):
            await agent.chat("hello", session_id="s")
        await turns()
    assert "session s stays held" in caplog.text
    assert "gone too" in caplog.text


async def test_cancelled_waits_leave_no_followers_and_a_stored_error_does_not_grow():
    hold = asyncio.Event()

    async def slow(request):
        await hold.wait()
        yield ModelChunk(text="hi")

    async with Agent(model=slow, store=Faulty("append", StoreError("no"), 2)) as agent:
        chain = agent.start("hello")
        await turns()
        writer = chain._agent_run._writer
        for _ in range(50):
            wait = asyncio.get_running_loop().create_task(chain._terminal())
            await turns(2)
            wait.cancel()
            await asyncio.gather(wait, return_exceptions=True)
        assert len(writer._followers) == 0
        hold.set()
        lengths = []
        for _ in range(50):
            error = await outcome(chain.reply())
            frames, trace = 0, error.__traceback__
            while trace is not None:
                frames, trace = frames + 1, trace.tb_next
            lengths.append(frames)
        assert len(set(lengths)) == 1
