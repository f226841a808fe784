from pathlib import Path

import pytest

from agentflow import Agent, tool
from agentflow.events import TERMINAL_TYPES, EventType, FinalEvent, decode
from agentflow.testing import ScriptedModel, call
from agentflow.tools import ask_user
from agentflow.transports.ag_ui_encoding import AguiEncoder
from agentflow.transports.views import RunView
from tests.builders import run, turns
from tests.transports.ag_ui_law import Client, assert_lawful

DATA = Path(__file__).parent.parent / "data"
LOGS = sorted(DATA.glob("*.ndjson"))


def read(path):
    return [decode(line) for line in path.read_bytes().splitlines()]


def told_of(log, encoder=None, before=()):
    """The stream of an AG-UI run: to the end of the log, or to the interrupt where it has none."""
    encoder, view = encoder or AguiEncoder("t", "r1"), RunView(log[0].run_id)
    view.take(before)
    encoder.replay(before)
    told = list(encoder.start())
    for event in log:
        told += encoder.encode(event)
    view.take(log)
    return [*told, *encoder.end(view)]


def of(told, *types):
    return [one for one in told if one["type"] in types]


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def nested_log(decide=lambda chain, asked: chain.approve(asked.call_id)):
    """Two agents deep an approval and a question are waited for, both at once; the rest is after they are decided."""
    cashier = ScriptedModel(["I pay. ", call("pay", id="p", amount=3)], "Paid.")
    clerk = ScriptedModel([call("cashier", id="c", input="pay 3")], "The cashier has paid.")
    asker = ScriptedModel([call("ask_user", id="q", question="Which?")], "It is blue.")
    boss = ScriptedModel(
        ["Off you go. ", call("clerk", id="k", input="pay"), call("asker", id="a", input="ask")], "Done."
    )
    below = Agent(name="cashier", model=cashier, tools=[pay])
    beside = Agent(name="asker", model=asker, tools=[ask_user])
    middle = Agent(name="clerk", model=clerk, tools=[below.as_tool()])
    async with Agent(name="boss", model=boss, tools=[middle.as_tool(), beside.as_tool()]) as agent:
        chain = agent.start("go")
        reply = await chain.reply()
        log = [event async for event in _so_far(agent, chain.run_id)]
        for asked in reply.pending:
            if asked.type is EventType.APPROVAL:
                decide(chain, asked)
            else:
                chain.answer("blue", asked.question_id)
        await chain
        whole = [event async for event in agent.follow(chain.run_id)]
    return log, whole[len(log) :]


async def _so_far(agent, run_id):
    for event in await agent.store.read(run_id, 0, 1000):
        yield event


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_golden_log_is_a_lawful_stream(path):
    log = read(path)
    told = told_of(log)
    assert_lawful(told)
    client = Client()
    client.take(told)
    if isinstance(log[-1], FinalEvent):
        assert client.messages[-1]["content"] == log[-1].text
        assert client.outcome == {"type": "success"}
    calls = [one.call_id for event in log if event.type is EventType.MODEL_COMPLETE for one in event.tool_calls]
    assert [one["toolCallId"] for one in of(told, "TOOL_CALL_START")] == calls
    if log[-1].type in TERMINAL_TYPES and log[-1].type is not EventType.FAILED:
        assert {one["toolCallId"] for one in of(told, "TOOL_CALL_RESULT")} == set(calls)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_log_that_is_gone_on_with_at_any_place_is_a_lawful_stream(path):
    log = read(path)
    for at in range(len(log)):
        assert_lawful(told_of(log[at:], before=log[:at]))


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "decide",
    [
        lambda chain, asked: chain.approve(asked.call_id),
        lambda chain, asked: chain.reject(asked.call_id, "no"),
        lambda chain, asked: chain.amend(asked.call_id, {"amount": 4}),
        lambda chain, asked: chain.cancel(),
    ],
)
async def test_agents_that_agents_call_are_subagents_also_when_they_wait(decide):
    before, after = await nested_log(decide)
    first, client = told_of(before), Client()
    assert_lawful(first)
    client.take(first)
    asked = client.outcome["interrupts"]
    assert {(one["reason"], one["toolCallId"]) for one in asked} == {("tool_call", "p"), ("input_required", "q")}
    suspended = of(first, "SUBAGENT_FINISHED")
    assert sorted(tuple(one["outcome"]["interruptIds"]) for one in suspended) == [(), ("p",), ("q",)]
    assert {one["subagentRunId"] for one in asked} < {one["subagentRunId"] for one in suspended}

    second = told_of(after, AguiEncoder("t", "r2", messages=client.messages), before)
    assert_lawful(second)
    client.take(second)
    assert not of(second, "TOOL_CALL_START")
    assert {one["toolCallId"] for one in of(second, "TOOL_CALL_RESULT")} == {"p", "q", "c", "k", "a"}


@pytest.mark.virtual_time
async def test_a_subagent_names_its_caller_and_what_it_says_is_its_own():
    before, after = await nested_log()
    told = told_of([*before, *after])
    assert_lawful(told)
    began = {one["name"]: one for one in of(told, "SUBAGENT_STARTED")}
    assert {name: one["parentToolCallId"] for name, one in began.items()} == {
        "clerk": "k",
        "cashier": "c",
        "asker": "a",
    }
    assert began["cashier"]["parentSubagentRunId"] == began["clerk"]["subagentRunId"]
    assert "parentSubagentRunId" not in began["clerk"]
    client = Client()
    client.take(told)
    said = {message.get("subagentRunId"): message["content"] for message in client.messages if "content" in message}
    assert said[None] == "Done."
    assert said[began["cashier"]["subagentRunId"]] == "Paid."
    assert all(one["outcome"] == {"type": "success"} for one in of(told, "SUBAGENT_FINISHED"))


@pytest.mark.virtual_time
async def test_an_answer_that_is_made_again_stands_once_on_the_screen():
    log = read(DATA / "rollback.ndjson")
    mine = [{"id": "u", "role": "user", "content": "hello"}]
    client = Client()
    client.messages = list(mine)
    client.take(told_of(log, AguiEncoder("t", "r1", messages=[*mine, {"id": "x", "role": "reasoning", "content": ""}])))
    assert client.texts() == [("user", "hello"), ("assistant", "right")]


@pytest.mark.virtual_time
async def test_calls_hang_on_the_message_of_their_round_with_or_without_a_text():
    log = await run(
        ["Let me. ", call("look", id="a", key="x"), call("look", id="b", key="y")], [call("nope", id="c")], "So."
    )
    client = Client()
    client.take(told_of(log))
    first, *results, second, third, last = client.messages
    assert (first["content"], [one["id"] for one in first["toolCalls"]]) == ("Let me. ", ["a", "b"])
    assert sorted(one["toolCallId"] for one in results) == ["a", "b"]
    assert (second.get("content"), [one["name"] for one in second["toolCalls"]]) == (None, ["nope"])
    assert third["content"].startswith("[error: not_found]")
    assert last["content"] == "So."


@pytest.mark.parametrize(
    ("state", "shared"), [(None, {}), ({"mine": 1}, {"mine": 1}), ({}, {}), ([1], None), ("text", None)]
)
def test_the_state_of_a_client_is_kept_beside_ours(state, shared):
    client = Client()
    client.state = state
    client.take(told_of(read(DATA / "text.ndjson"), AguiEncoder("t", "r", state=state)))
    if shared is None:
        assert client.state == state
    else:
        ours = client.state.pop("agentflow")
        assert client.state == shared
        assert (ours["agent"], ours["state"]) == ("golden", "completed")
        assert ours["run_id"] == read(DATA / "text.ndjson")[0].run_id


def test_usage_is_told_by_model_and_of_this_run_only():
    log = read(DATA / "tools.ndjson")
    usage = told_of(log)[-1]["usage"]
    assert sum(one["totalTokens"] for one in usage) == log[-1].usage.input_tokens + log[-1].usage.output_tokens
    assert {(one["provider"], one["model"]) for one in usage} == {
        (event.provider, event.model) for event in log if event.type is EventType.MODEL_START
    }
    assert told_of(log[-1:], before=log[:-1])[-1]["usage"] == []


def test_reasoning_ends_where_the_answer_begins():
    told = told_of(read(DATA / "tools.ndjson"))
    kinds = [one["type"] for one in told]
    assert kinds.index("REASONING_END") < kinds.index("TEXT_MESSAGE_START")
    assert "".join(one["delta"] for one in of(told, "REASONING_MESSAGE_CONTENT")) == "I look."


def test_what_the_protocol_has_no_event_for_is_custom():
    told = told_of(read(DATA / "cancelled.ndjson"))
    progress = [one["value"] for one in of(told, "CUSTOM") if one["name"] == "agentflow.tool_delta"]
    assert [one["toolCallId"] for one in progress] == ["b", "b"]
    assert told[-1]["outcome"] == {"type": "cancelled"}
    warned = of(told_of(read(DATA / "corrected.ndjson")), "CUSTOM")
    assert [(one["name"], one["value"]["code"]) for one in warned] == [("agentflow.warning", "output_invalid")]


def test_a_failed_run_says_why():
    log = read(DATA / "failed.ndjson")
    end = told_of(log)[-1]
    assert (end["type"], end["code"], end["message"]) == ("RUN_ERROR", log[-1].error.kind, log[-1].error.message)


@pytest.mark.virtual_time
async def test_a_run_that_was_cancelled_before_it_began_is_a_lawful_stream():
    async with Agent(model=ScriptedModel("never")) as agent:
        chain = agent.start("hello")
        chain.cancel()
        await chain
        await turns()
        log = [event async for event in agent.follow(chain.run_id)]
    assert_lawful(told_of(log))
