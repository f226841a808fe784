"""What whole runs show their models of a session: the last turns, notes on those before, and all within the budget.

`pytest -m soak tests/chain/test_windows.py` has every window from 1 to 20.
"""

import json

import pytest

from agentflow import Agent, RunFailed, tool
from agentflow.events import EventType
from agentflow.models.openai import OpenAIModel
from agentflow.settings import Settings
from agentflow.testing import FakeProvider, assert_laws, text, tool_calls
from tests.builders import log_of, of
from tests.chain.memories import OURS, Model, agent_of, chat, says_of_it, store_with, summaries_in
from tests.memory.histories import tokens

pytestmark = pytest.mark.virtual_time


async def test_the_last_turns_are_shown_and_before_them_what_the_summary_says():
    model = Model(says_of_it(facts=["The user said 1."]))
    async with agent_of(model, await store_with(12), turns=12) as agent:
        await chat(agent)
        assert model.shown == ["Be kind.", *said(1, 12), "hello"]
        await chat(agent, "again")
        assert model.shown[1].splitlines()[1:] == ["- The user said 1."]
        assert model.shown[3:] == [*said(2, 12), "hello", "noted", "again"]


def said(first, last):
    return [text for number in range(first, last + 1) for text in (f"I said {number}.", f"answer {number}")]


async def test_the_full_strategy_shows_every_turn_and_summarises_none():
    model = Model()
    async with agent_of(model, await store_with(40), strategy="full", turns=5) as agent:
        await chat(agent)
        assert model.shown == ["Be kind.", *said(1, 40), "hello"]
        assert model.summarising == []


async def test_layers_are_shown_from_their_number_of_turns_on_with_the_facts_about_the_user():
    model = Model(says_of_it(facts=["The user said something."]))
    store = await store_with(4, said="My city is Bergen, for the {} time.")
    async with agent_of(model, store, strategy="layered", turns=4, layered_from=8) as agent:
        for number in range(5, 12):
            await chat(agent, f"message {number}")
            is_layered = number > 8
            assert ("Bergen" in model.shown[1]) == (is_layered or number == 5), (number, model.shown[1])
    ranges = [(summary.first, summary.last) for summary in await summaries_in(store)]
    assert ranges == [(1, 2), (1, 4), (5, 6), (7, 8)]


@pytest.mark.parametrize("own", [True, False])
async def test_a_request_never_costs_more_than_the_model_can_read(own):
    room = 400
    model = Model(says_of_it(facts=["The user said 1."]), context_tokens=room if own else 0)
    store = await store_with(30, said="word " * 20 + "{}")
    async with agent_of(model, store, context_tokens=0 if own else room) as agent:
        for number in range(6):
            await chat(agent, f"message {number}")
            assert tokens(model.asked[-1]) <= room * 3 // 4  # the rest is for the answer
            assert model.shown[-1] == f"message {number}"
    assert model.summarising != []
    assert all(tokens(request.messages) <= room * 3 // 4 for request in model.summarising)


async def test_a_message_that_does_not_fit_fails_its_run_and_the_session_goes_on():
    model, store = Model(context_tokens=400), await store_with(2)
    async with agent_of(model, store) as agent:
        with pytest.raises(RunFailed, match="room") as caught:
            await agent.chat("word " * 2000, **OURS)
        log = await log_of(agent, caught.value.run_id)
        assert_laws(log)
        assert log[-1].error.kind == "limit"
        assert model.asked == []
        await chat(agent, "shorter")
        assert model.shown[-1] == "shorter"
        assert tokens(model.asked[-1]) <= 300
        await chat(agent, "and again")
        assert model.shown[-3:] == ["shorter", "noted", "and again"]


WINDOWS = (1, 4, 12)


@pytest.mark.parametrize(
    "window", [pytest.param(n, marks=() if n in WINDOWS else pytest.mark.soak) for n in range(1, 21)]
)
async def test_a_strict_provider_accepts_every_request_of_a_long_conversation_with_tools(window):
    """Its replies are those of a model that works, and invents something in each of its summaries."""

    @tool
    async def look(key: str) -> str:
        """Look something up."""
        return f"value of {key}, " * (1 if len(key) % 3 else 100)

    def respond(request):
        messages = request.body["messages"]
        if "response_format" in request.body:
            invented = {"facts": ["The customer is called CANARY."], "confidence": 1.0}
            return text(json.dumps(invented | {part: [] for part in ("decisions", "questions", "pinned")}))
        if messages[-1]["role"] == "tool":
            return text("Found it.")
        asked = messages[-1]["content"]
        return tool_calls(*[("look", {"key": f"{asked} {number}"}) for number in range(1 + len(asked) % 3)])

    async with FakeProvider(respond=respond) as provider:
        model = OpenAIModel("fake", base_url=provider.base_url, api_key="key")
        settings = Settings(memory={"turns": window, "context_tokens": 3000})
        async with Agent(model=model, tools=[look], settings=settings) as agent:
            told = []
            for number in range(60):
                log = [event async for event in agent.start("x" * (1 + number % 7), **OURS)]
                assert log[-1].type is EventType.FINAL
                assert len(log[-1].tools) == 1 + (1 + number % 7) % 3
                told += of(log, EventType.SUMMARY)
        await model.aclose()
    assert provider.refusals == []
    conversation = [request.body for request in provider.requests if "response_format" not in request.body]
    assert (len(conversation), len(provider.requests) > 120) == (120, True)
    assert {("CANARY" in event.text, event.used) for event in told} == {(True, False), (False, True)}
    assert not any("CANARY" in json.dumps(body) for body in conversation)
