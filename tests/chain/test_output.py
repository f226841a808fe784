"""Structured output: an answer has the form that was asked for, is corrected once, or the run has failed."""

from dataclasses import dataclass

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict  # the standard one is for 3.12, says pydantic

from agentflow import Agent, ModelChunk, RunFailed
from agentflow.chain.output import Output
from agentflow.errors import ConfigError
from agentflow.events import EventType
from agentflow.testing import ScriptedModel, assert_laws, call, text, tool_calls
from tests.builders import TOOLS, folded_text, log_of, of, served


class Weather(BaseModel):
    city: str
    degrees: int


@dataclass
class Place:
    city: str


class Pair(TypedDict):
    one: int
    two: int


GOOD = '{"city": "Oslo", "degrees": -5}'
BAD = '{"city": "Oslo", "degrees": "cold"}'
OSLO = Weather(city="Oslo", degrees=-5)


async def play(*script, **options):
    """One run's log and its last request."""
    model = ScriptedModel(*script)
    async with Agent(model=model, output=Weather, tools=options.pop("tools", ()), **options) as agent:
        log = [event async for event in agent.stream("hello")]
    assert_laws(log)
    return log, model.requests[-1]


# -- the form --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "answer", "value"),
    [
        (Weather, GOOD, OSLO),
        (Weather, f"\n {GOOD}\n", OSLO),
        (Weather, f"```json\n{GOOD}\n```", OSLO),
        (Weather, f"```\n{GOOD}\n```\n", OSLO),
        (list[Weather], f"[{GOOD}, {GOOD}]", [OSLO, OSLO]),
        (Place, '{"city": "Oslo"}', Place("Oslo")),
        (Pair, '{"one": 1, "two": 2}', {"one": 1, "two": 2}),
        (int, "5", 5),
    ],
)
def test_an_answer_becomes_an_object_of_its_type(form, answer, value):
    output = Output(form)
    assert (output.fault(answer), output.parse(answer)) == (None, value)


@pytest.mark.parametrize("answer", ["", "It is cold.", GOOD[:-1], f"Here: {GOOD}", f"```json {GOOD}```", "null", "[]"])
def test_what_is_no_such_object_is_told_in_words(answer):
    assert "the whole: " in Output(Weather).fault(answer)


def test_each_field_that_is_wrong_is_named_up_to_a_few():
    assert Output(Weather).fault('{"degrees": "cold"}') == (
        "city: Field required. degrees: Input should be a valid integer, unable to parse string as an integer."
    )
    many = Output(list[int]).fault("[" + ", ".join(['"x"'] * 100) + "]")
    assert many.count("valid integer") == 5
    assert "0: Input" in many


@pytest.mark.parametrize("form", [object(), "no such type", open])
def test_what_is_no_type_is_told_when_the_agent_is_made(form):
    with pytest.raises(ConfigError, match="no type that has a JSON Schema"):
        Agent(model=ScriptedModel("hi"), output=form)


# -- runs ------------------------------------------------------------------------------------------------


async def test_the_form_is_on_the_wire_and_the_reply_has_the_object():
    async with served(text(GOOD, chunk=3), tools=[], output=Weather) as (provider, agent):
        chain = agent.stream("hello")
        reply = await chain.reply()
        assert (reply.output, reply.text) == (OSLO, GOOD)
        asked = provider.requests[0].body["response_format"]
        assert (asked["type"], asked["json_schema"]["schema"]["properties"].keys()) == (
            "json_schema",
            {"city", "degrees"},
        )
        assert of(await log_of(agent, chain.run_id), EventType.WARNING) == []
        assert (await chain.reply()).output == OSLO


async def test_an_answer_of_another_form_is_corrected_once():
    async with served(text(BAD), text(GOOD), text(GOOD), tools=[], output=Weather) as (provider, agent):
        chain = agent.stream("hello", session_id="s")
        reply = await chain.reply()
        log = await log_of(agent, chain.run_id)
        assert_laws(log)
        (warning,) = of(log, EventType.WARNING)
        assert (reply.output, log[-1].iterations, folded_text(log), warning.code) == (OSLO, 2, GOOD, "output_invalid")
        sent = [(message["role"], message["content"]) for message in provider.requests[1].body["messages"]]
        assert sent == [("user", "hello"), ("assistant", BAD), ("user", warning.message)]
        assert "degrees: Input should be a valid integer" in warning.message
        assert (await agent.chat("again", session_id="s")).output == OSLO
        roles = [message["role"] for message in provider.requests[2].body["messages"]]
        assert roles == ["user", "assistant", "user", "assistant", "user"]
        assert provider.refusals == []


async def test_an_answer_that_stays_wrong_fails_the_run_and_the_session_goes_on():
    async with served(text(BAD), text("It is cold."), text(GOOD), tools=[], output=Weather) as (provider, agent):
        chain = agent.stream("hello", session_id="s")
        with pytest.raises(RunFailed, match=r"form that was asked for.*the whole: ") as caught:
            await chain.reply()
        assert (caught.value.kind, len(provider.requests)) == ("output", 2)
        assert_laws(await log_of(agent, chain.run_id))
        assert (await agent.chat("again", session_id="s")).output == OSLO
        assert provider.refusals == []


async def test_tools_run_as_ever_before_and_after_the_correction():
    look = tool_calls(("look", {"key": "a"}), content="I look.")
    async with served(look, text("It is cold."), look, text(GOOD), output=Weather) as (provider, agent):
        chain = agent.stream("hello")
        reply = await chain.reply()
        assert (reply.output, [record.status for record in reply.tools]) == (OSLO, ["success"] * 2)
        assert_laws(await log_of(agent, chain.run_id))
        roles = [message["role"] for message in provider.requests[-1].body["messages"]]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "tool"]
        assert provider.refusals == []


async def test_one_correction_is_all_a_run_gets():
    log, _ = await play(BAD, [call("look", key="a")], BAD, "never asked", tools=TOOLS)
    assert (log[-1].error.kind, len(of(log, EventType.WARNING))) == ("output", 1)


async def test_no_correction_goes_beyond_the_limit_of_rounds():
    log, _ = await play(BAD, GOOD, max_iterations=1)
    assert (log[-1].error.kind, of(log, EventType.WARNING)) == ("output", [])
    log, _ = await play([call("look", key="a")], BAD, GOOD, max_iterations=2, tools=TOOLS)
    assert log[-1].error.kind == "output"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([[call("look", key="a")]], "max_iterations"),
        ([[ModelChunk(text=GOOD[:9]), ModelChunk(finish_reason="length")]], "length"),
    ],
)
async def test_an_answer_that_was_cut_or_is_the_frameworks_own_is_held_against_no_form(script, reason):
    async with Agent(model=ScriptedModel(*script), output=Weather, tools=TOOLS, max_iterations=1) as agent:
        chain = agent.stream("hello")
        reply = await chain.reply()
        assert ((await chain).finish_reason, reply.output) == (reason, None)


async def test_a_run_cancelled_as_it_is_corrected_ends_once():
    async with Agent(model=ScriptedModel(BAD, GOOD), output=Weather) as agent:
        chain = agent.stream("hello", session_id="s")
        async for event in chain:
            if event.type is EventType.WARNING:
                chain.cancel()
        log = await log_of(agent, chain.run_id)
        assert_laws(log)
        assert log[-1].type is EventType.CANCELLED
        assert (await agent.chat("again", session_id="s")).output == OSLO


async def test_a_form_whose_own_check_breaks_ends_the_run():
    class Fragile(BaseModel):
        city: str

        def model_post_init(self, context):
            raise RuntimeError("a bug of the user's")

    async with Agent(model=ScriptedModel('{"city": "Oslo"}'), output=Fragile) as agent:
        end = await agent.stream("hello")
        assert (end.type, end.error.kind) == (EventType.FAILED, "internal")


async def test_without_a_form_there_is_no_object():
    async with Agent(model=ScriptedModel(GOOD)) as agent:
        assert (await agent.chat("hello")).output is None


async def test_a_refusal_is_no_answer_to_be_corrected():
    model = ScriptedModel([ModelChunk(refusal="I cannot help with that.")])
    async with Agent(model=model, output=Weather) as agent:
        end = await agent.stream("hello")
    assert (end.error.kind, len(model.requests)) == ("output", 1)
    assert "I cannot help with that." in end.error.message
