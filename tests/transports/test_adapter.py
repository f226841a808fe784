import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow import Agent, tool
from agentflow.errors import NotPendingError, SessionBusyError, ToolArgumentsError
from agentflow.events import EventType
from agentflow.settings import Settings
from agentflow.streams import LoopClock
from agentflow.testing import ScriptedModel, assert_laws, call
from agentflow.tools import ask_user
from agentflow.transports.adapter import (
    COMMANDS,
    Adapter,
    CancelCommand,
    RunCommand,
    chat_session,
    read_command,
)
from agentflow.transports.auth import Caller
from agentflow.transports.bodies import Amend, Answer, Approve, AskBody, Reject
from agentflow.transports.refusals import Refused
from agentflow.transports.server import Server
from tests.transports.served import Gate
from tests.transports.test_bodies import BAD_FIELDS, BAD_IDS

pytestmark = pytest.mark.virtual_time

ANN, BOB = Caller("ann"), Caller("bob")

GOOD = {
    "run": {"input": "hello"},
    "follow": {"run_id": "r"},
    "cancel": {"run_id": "r"},
    "answer": {"run_id": "r", "text": "yes"},
    "approve": {"run_id": "r", "call_id": "c"},
    "reject": {"run_id": "r", "call_id": "c"},
    "amend": {"run_id": "r", "call_id": "c", "arguments": {"to": "x"}},
}
BAD_VALUES = {
    "after": [-1, 10**15, 1.5, "1", True, None],
    "text": [None, 1, [], "x" * (256 * 1024 + 1)],
    "question_id": [1, {}],
    "call_id": [None, 1, []],
    "arguments_hash": [1, False],
    "why": [None, 1],
    "arguments": [None, [], "{}", 1],
    "run_id": [*BAD_IDS, "", None],
    "id": [1, {}, "x" * 129],
    "user_id": [*BAD_IDS, ""],
    "surplus": [1],
}


@tool(approval=True)
def send(to: str) -> str:
    """Send it."""
    return f"sent to {to}"


@pytest.fixture
async def make():
    """Servers of agents that are closed at the end."""
    made = []

    def server(*turns, model=None, busy="queue", **options):
        settings = Settings(session={"busy": busy})
        agent = Agent(model=model or ScriptedModel(*turns), settings=settings, **options)
        made.append(Server([agent], settings))
        return made[-1]

    yield server
    for server in made:
        for agent in server.agents.values():
            await agent.aclose()
        server.presence.close()
        await server.owner.aclose()


async def all_of(events):
    return [event async for page in events for event in page]


async def until(events, kind):
    """What comes up to the first event of this kind, which must come; the rest is left to be read."""
    found = []
    async for page in events:
        found += page
        if any(event.type == kind for event in page):
            return found
    raise AssertionError(f"the run ended without {kind}")


def commands(names):
    return [pytest.param(name, id=name) for name in names]


@pytest.mark.parametrize("name", commands(COMMANDS))
def test_a_command_is_what_its_type_says(name):
    command = read_command({"type": name, "id": "a", **GOOD[name]})
    assert type(command) is COMMANDS[name]
    assert command.type == name
    assert command.id == "a"


@pytest.mark.parametrize(
    "value", [None, [], "run", 1, {}, {"type": "start"}, {"type": ["run"]}, {"type": None}], ids=str
)
def test_what_is_no_command_is_refused(value):
    with pytest.raises(Refused, match="one of run, follow, cancel, answer, approve, reject, amend"):
        read_command(value)


@pytest.mark.parametrize("name", commands(COMMANDS))
def test_a_command_with_a_field_that_cannot_be_is_refused(name):
    known = {"surplus", *COMMANDS[name].model_fields}
    wrong = [{field: value} for field, values in BAD_VALUES.items() if field in known for value in values]
    assert len(wrong) > 20
    for fields in wrong:
        with pytest.raises(Refused) as refused:
            read_command({"type": name, **GOOD[name], **fields})
        assert (refused.value.status, refused.value.kind) == (400, "request"), fields


@pytest.mark.parametrize("name", commands(COMMANDS))
def test_a_command_without_a_field_that_it_needs_is_refused(name):
    for field in GOOD[name]:
        with pytest.raises(Refused, match="field"):
            read_command({"type": name, **{key: value for key, value in GOOD[name].items() if key != field}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({name for model in COMMANDS.values() for name in model.model_fields} | {"message", "sessionId"})


@given(st.sampled_from(sorted(COMMANDS)), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_value_is_a_command_or_is_refused(name, fields, whole):
    value = {"type": name} | (GOOD[name] if whole else {}) | fields
    try:
        assert isinstance(read_command(value), tuple(COMMANDS.values()))
    except Refused as refused:
        assert (refused.status, refused.kind) == (400, "request")


def test_a_run_is_asked_for_as_elsewhere():
    asked = [{"type": "run", **fields} for fields in BAD_FIELDS if fields.get("model") != "nobody/knows"]
    named = ("agent", "model", "session_id")  # which the agent, or the server, has to look at
    for value in asked:
        if not any(isinstance(value.get(name), str) for name in named):
            with pytest.raises(Refused):
                read_command(value)


async def test_a_message_begins_a_run_whose_events_come_to_its_end(make):
    adapter = Adapter(make("Hello there."), ANN)
    run_id, events = await adapter.run(AskBody(input="hello"))
    found = await all_of(events)
    assert_laws(found)
    assert {event.run_id for event in found} == {run_id}
    assert found[0].user_id == "ann"
    assert found[-1].text == "Hello there."


async def test_events_are_followed_from_a_cursor(make):
    adapter = Adapter(make("Hello there."), ANN)
    run_id, events = await adapter.run(RunCommand(input="hello"))
    found = await all_of(events)
    for after in range(len(found) + 2):
        assert await all_of(await adapter.follow(run_id, after)) == found[after:]


async def test_a_message_that_comes_twice_is_one_run(make):
    server = make("one", "two")
    first, events = await Adapter(server, ANN).run(AskBody(input="hello", request_id="m1"))
    await all_of(events)
    again, events = await Adapter(server, ANN).run(AskBody(input="hello", request_id="m1"))
    assert again == first
    assert (await all_of(events))[-1].text == "one"
    of_bob, _ = await Adapter(server, BOB).run(AskBody(input="hello", request_id="m1"))
    assert of_bob != first


async def test_messages_of_a_chat_belong_to_its_session(make):
    server = make(*["yes"] * 4)
    sessions = {}
    for chat in ("-100:7", "@room"):
        adapter = Adapter(server, ANN, session_id=chat_session("chats", chat))
        found = [await all_of((await adapter.run(AskBody(input="hello")))[1]) for _ in range(2)]
        (sessions[chat],) = {events[0].session_id for events in found}
        assert found[1][0].history_version == 1
    assert len(set(sessions.values())) == 2


async def test_a_message_may_name_a_session_of_its_own(make):
    server = make("yes", "yes", "yes")
    adapter = Adapter(server, ANN, session_id="room")
    _, events = await adapter.run(AskBody(input="hello", session_id="other"))
    assert (await all_of(events))[0].session_id == "other"
    told = {(await all_of((await Adapter(server, ANN).run(AskBody(input="hello")))[1]))[0].session_id for _ in range(2)}
    assert len(told) == 2
    assert "room" not in told


@pytest.mark.parametrize("chat", ["", "1", "\0", "a/b\n", "\ud800", "x" * 10_000, "会话"], ids=ascii)
def test_any_name_of_a_chat_makes_a_session_id(chat):
    assert read_command({"type": "run", "input": "x", "request_id": chat_session("s", chat)})
    assert chat_session("s", chat) == chat_session("s", chat) != chat_session("t", chat)


async def test_a_run_that_cannot_begin_says_why(make):
    model = Gate()
    adapter = Adapter(make(model=model, busy="reject"), ANN, session_id="room")
    _, first = await adapter.run(AskBody(input="hello"))
    await until(first, EventType.DELTA)
    _, second = await adapter.run(AskBody(input="hello"))
    with pytest.raises(SessionBusyError):
        await all_of(second)
    model.open.set()
    assert (await all_of(first))[-1].type == EventType.FINAL


async def test_a_run_is_cancelled_and_an_ended_one_left_alone(make):
    adapter = Adapter(make(model=Gate()), ANN)
    run_id, events = await adapter.run(AskBody(input="hello"))
    await until(events, EventType.DELTA)
    await adapter.cancel(run_id)
    found = await all_of(await adapter.follow(run_id))
    assert (found[-1].type, found[-1].reason) == (EventType.CANCELLED, "user")
    await adapter.cancel(run_id)
    assert await all_of(await adapter.follow(run_id)) == found


async def waiting(adapter):
    """A run that waits for the approval of a call, and that call's event."""
    run_id, events = await adapter.run(AskBody(input="send it"))
    approval = next(event for event in await until(events, EventType.APPROVAL) if event.type == EventType.APPROVAL)
    return run_id, approval


DECISIONS = {
    "approve": (lambda asked: Approve(call_id=asked.call_id, arguments_hash=asked.arguments_hash), "sent to bob"),
    "reject": (lambda asked: Reject(call_id=asked.call_id, why="not him"), "not him"),
    "amend": (lambda asked: Amend(call_id=asked.call_id, arguments={"to": "eve"}), "sent to eve"),
}


@pytest.mark.parametrize("name", DECISIONS)
async def test_what_people_decide_is_told_to_the_run(make, name):
    decision, expected = DECISIONS[name]
    adapter = Adapter(make([call("send", to="bob")], "Done.", "Done.", tools=[send]), ANN)
    run_id, approval = await waiting(adapter)
    await adapter.decide(run_id, decision(approval))
    found = await all_of(await adapter.follow(run_id))
    assert next(event for event in found if event.type == EventType.RESOLVED).by == "ann"
    assert expected in found[-1].tools[0].result
    with pytest.raises(NotPendingError):
        await adapter.decide(run_id, decision(approval))


async def test_a_question_is_answered(make):
    adapter = Adapter(make([call("ask_user", question="Which?")], "The blue one.", tools=[ask_user]), ANN)
    run_id, events = await adapter.run(AskBody(input="take one"))
    await until(events, EventType.QUESTION)
    await adapter.decide(run_id, Answer(text="blue"))
    assert (await all_of(await adapter.follow(run_id)))[-1].text == "The blue one."


async def test_an_amendment_must_fit_the_tool(make):
    adapter = Adapter(make([call("send", to="bob")], tools=[send]), ANN)
    run_id, approval = await waiting(adapter)
    with pytest.raises(ToolArgumentsError):
        await adapter.decide(run_id, Amend(call_id=approval.call_id, arguments={"cc": 1}))
    await adapter.cancel(run_id)


async def test_the_runs_of_others_are_as_unknown_as_those_that_never_were(make):
    server = make([call("send", to="bob")], tools=[send])
    run_id, approval = await waiting(Adapter(server, ANN))
    bob = Adapter(server, BOB)
    decisions = [
        Answer(text="x"),
        *(make_decision(approval) for make_decision, _ in DECISIONS.values()),
    ]
    for asked in (run_id, "no-such-run"):
        refused = []
        for action in (
            bob.follow(asked),
            bob.cancel(asked),
            *(bob.decide(asked, decision) for decision in decisions),
        ):
            with pytest.raises(Refused) as error:
                await action
            refused.append((error.value.status, error.value.kind, str(error.value).replace(asked, "...")))
        assert set(refused) == {(404, "run_not_found", "no run '...' is known here; it may have expired")}
    assert server.chain(run_id).state == "suspended"
    await Adapter(server, ANN).cancel(run_id)


async def test_who_reads_the_events_keeps_the_run_and_who_closes_them_leaves_it(make):
    model = Gate()
    server = make(model=model)
    adapter = Adapter(server, ANN)
    run_id, events = await adapter.run(AskBody(input="hello"))
    await until(events, EventType.DELTA)
    await events.aclose()
    events = await adapter.follow(run_id)
    await anext(events)
    clock = LoopClock()
    clock.call_later(100, model.open.set)
    assert (await all_of(events))[-1].type == EventType.FINAL

    model.open.clear()
    run_id, events = await adapter.run(AskBody(input="hello"))
    await anext(events)
    await events.aclose()
    clock.call_later(100, model.open.set)
    chain = server.chain(run_id)
    assert (await chain).reason == "disconnect"


def test_commands_can_be_made_without_json():
    assert CancelCommand(run_id="r") == read_command({"type": "cancel", "run_id": "r"})
