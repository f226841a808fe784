"""What whole runs make of a session beside their own work: summaries, what they are worth, and facts."""

import asyncio
import itertools
import json

import pytest

from agentflow import Agent, ModelChunk, tool
from agentflow.chain import remembering
from agentflow.errors import ConfigError, ModelError, StoreError
from agentflow.events import EventType, State
from agentflow.settings import Settings
from agentflow.stores.base import SessionKey
from agentflow.stores.in_memory import InMemoryStore
from agentflow.streams import CANCEL_GRACE
from agentflow.testing import FailingLog, FakeProvider, ScriptedModel, assert_laws, call, text
from tests.builders import log_of, of, turns
from tests.chain.memories import OURS, SESSION, Model, agent_of, chat, nothing, says_of_it, store_with, summaries_in

pytestmark = pytest.mark.virtual_time

# -- what is summarised ----------------------------------------------------------------------------------


async def test_summaries_are_due_half_a_window_ahead_and_made_from_the_original_turns():
    model, store = Model(says_of_it(facts=["The user said something."])), await store_with(0)
    async with agent_of(model, store, turns=4) as agent:
        for number in range(1, 12):
            await chat(agent, f"I said {number}.")
    records = [[json.loads(line) for line in request.messages[1].text.splitlines()] for request in model.summarising]
    asked = [[entry["user"] for entry in record if "user" in entry] for record in records]
    assert asked == [[f"I said {number}." for number in range(1, last + 1)] for last in (2, 4, 6, 8)]
    assert [entry.keys() for record in records for entry in record] == [{"user"}, {"assistant"}] * 20
    assert [(summary.first, summary.last) for summary in await summaries_in(store)] == [(1, 2), (1, 4), (1, 6), (1, 8)]


async def test_a_summary_is_kept_although_turns_were_added_while_it_was_made_and_is_the_only_one_at_work():
    going_on = asyncio.Event()

    async def slowly(request):
        await going_on.wait()
        async for chunk in says_of_it(facts=["The user said 1."])(request):
            yield chunk

    model, store = Model(slowly), await store_with(4)
    async with agent_of(model, store, turns=4) as agent:
        for number in range(5):
            assert (await agent.chat(f"message {number}", **OURS)).text == "noted"
        assert len(model.summarising) == 1
        going_on.set()
        await agent._runtime.owner.drain(60)
        assert [(summary.first, summary.last) for summary in await summaries_in(store)] == [(1, 2)]
        await chat(agent)
        assert len(model.summarising) == 2  # what has become due meanwhile


async def test_sessions_do_not_wait_for_each_others_summaries_and_each_has_its_own():
    at_work, most = set(), []

    async def slowly(request):
        key = json.loads(request.messages[1].text.splitlines()[0])["user"][-1]
        assert key not in at_work
        at_work.add(key)
        most.append(len(at_work))
        await asyncio.sleep(10)
        at_work.discard(key)
        yield ModelChunk(text=json.dumps({"facts": [f"known {key}"], "confidence": 1}))

    model, store = Model(slowly), InMemoryStore()
    async with agent_of(model, store, turns=2) as agent:
        for number, name in itertools.product(range(4), "abc"):
            await agent.chat(f"{number} of {name}", session_id=name)
        await agent._runtime.owner.drain(60)
        for name in "abc":
            assert [summary.last for summary in await summaries_in(store, SessionKey(name))] == [1]
    assert max(most) == 3


async def hangs(request):
    await asyncio.sleep(1e9)
    yield


async def breaks(request):
    raise ZeroDivisionError("what a fault")
    yield


async def babbles(request):
    for _ in range(100):
        yield ModelChunk(text="No JSON at all. ")


@pytest.mark.parametrize("summarise", [nothing, hangs, breaks, babbles])
async def test_where_the_model_fails_no_run_does_and_quotes_stand_in(summarise, caplog):
    model, store = Model(summarise), await store_with(4, said="My city is Bergen, for the {} time.")
    async with agent_of(model, store, turns=4) as agent:
        began = asyncio.get_running_loop().time()
        assert (await agent.chat("hello", **OURS)).text == "noted"
        assert asyncio.get_running_loop().time() == began
        assert (await agent.chat("hello", **OURS)).text == "noted"
        await agent._runtime.owner.drain(3600)
        (summary,) = await summaries_in(store)
        assert "Bergen" in summary.text
        await chat(agent)
        assert "Bergen" in model.shown[1]
    told = [record.getMessage() for record in caplog.records if record.name.endswith("remembering")]
    assert all("session s was summarised without a model" in message for message in told)
    assert (len(told) > 0) == (summarise is not babbles)


async def test_closing_the_agent_ends_a_summary_that_hangs_and_keeps_none():
    model, store = Model(hangs), await store_with(4)
    agent = agent_of(model, store, turns=4)
    await agent.chat("hello", **OURS)
    began = asyncio.get_running_loop().time()
    await agent.aclose()
    assert asyncio.get_running_loop().time() - began <= 5 + CANCEL_GRACE
    assert await summaries_in(store) == ()
    async with agent_of(Model(says_of_it(facts=["The user said 1."])), store, turns=4) as after:
        await chat(after)
        assert len(await summaries_in(store)) == 1


@pytest.mark.parametrize("method", ["read_turns", "keep_summary", "list_facts", "put_facts"])
@pytest.mark.parametrize("error", [StoreError("gone"), ZeroDivisionError("what a fault")])
async def test_a_store_that_fails_meanwhile_fails_no_run_and_the_summary_is_made_by_the_next(method, error, caplog):
    inner = await store_with(4, said="My city is Bergen, for the {} time.")
    model, store = Model(), FailingLog(inner, fail_at=1, of=method, error=error)
    async with agent_of(model, store, turns=4) as agent:
        assert (await chat(agent))[-1].type is EventType.FINAL
        assert (await summaries_in(inner), len(caplog.records)) == ((), 1 + (method == "keep_summary"))
        await chat(agent)
        assert len(await summaries_in(inner)) == 1
        assert len(await inner.list_facts("u")) > 0


async def test_a_summary_of_a_session_that_was_deleted_meanwhile_is_dropped():
    going_on = asyncio.Event()

    async def slowly(request):
        await going_on.wait()
        yield ModelChunk(text="{}")

    store = await store_with(4)
    async with agent_of(Model(slowly), store, turns=4) as agent:
        await agent.chat("hello", **OURS)
        await store.delete_session(SESSION)
        await agent.chat("I am new.", **OURS)
        going_on.set()
        await agent._runtime.owner.drain(60)
        assert await summaries_in(store) == ()


async def test_a_run_that_waits_for_a_human_is_told_of_its_summary():
    @tool(approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    class Paying(Model):
        async def stream(self, request):
            if request.response_format is None and request.messages[-1].text == "pay":
                yield ModelChunk(calls=(call("pay", amount=5),), finish_reason="tool_calls")
                return
            async for chunk in super().stream(request):
                yield chunk

    async def slowly(request):
        await asyncio.sleep(60)
        raise ModelError("no summary today")
        yield

    settings = Settings(memory={"turns": 4})
    async with Agent(model=Paying(slowly), tools=[pay], store=await store_with(4), settings=settings) as agent:
        chain = agent.start("pay", **OURS)
        async for event in chain:
            if event.type is EventType.SUMMARY:
                break
        assert (chain.state, event.used) == (State.SUSPENDED, True)
        chain.approve((await chain.reply()).pending[0].call_id)
        assert (await chain).type is EventType.FINAL
        assert_laws(await log_of(agent, chain.run_id))


# -- what it is worth ------------------------------------------------------------------------------------


async def test_a_summary_that_is_worth_too_little_is_told_and_never_sent():
    model = Model(says_of_it(facts=["The user is called CANARY.", "The user has order 77123."]))
    store = await store_with(4)
    async with agent_of(model, store, turns=4) as agent:
        told = of(await chat(agent), EventType.SUMMARY)
        assert [(event.turns, event.used, "CANARY" in event.text) for event in told] == [
            ((1, 2), False, True),
            ((1, 2), False, True),
            ((1, 2), True, False),
        ]
        assert all(event.confidence < 0.6 for event in told[:2])
        for number in range(8):
            await chat(agent, f"message {number}")
    assert not any("CANARY" in message.text for messages in model.asked for message in messages)
    assert not any("CANARY" in summary.text for summary in await summaries_in(store))


async def test_a_summary_that_comes_after_its_run_has_ended_is_told_in_the_sessions_next():
    async def slowly(request):
        await asyncio.sleep(60)
        async for chunk in says_of_it(facts=["The user is called CANARY."])(request):
            yield chunk

    store = await store_with(4)
    async with agent_of(Model(slowly), store, turns=4) as agent:
        assert of(await chat(agent, session_id="another"), EventType.SUMMARY) == []
        assert of(await chat(agent), EventType.SUMMARY) == []
        assert of(await chat(agent, session_id="another"), EventType.SUMMARY) == []
        told = of(await chat(agent), EventType.SUMMARY)
        assert [(event.turns, event.used) for event in told] == [((1, 2), False), ((1, 2), False), ((1, 2), True)]
        await chat(agent)  # has something to summarise again
        await store.delete_session(SESSION)
        assert of(await chat(agent), EventType.SUMMARY) == []


async def test_what_waits_to_be_told_is_forgotten_where_too_many_sessions_are_not_come_back_to(monkeypatch):
    monkeypatch.setattr(remembering, "_UNTOLD", 2)

    async def slowly(request):
        await asyncio.sleep(10)
        async for chunk in says_of_it(facts=["The user said something."])(request):
            yield chunk

    async with agent_of(Model(slowly), InMemoryStore(), turns=4) as agent:
        for name in "abc":
            for _ in range(5):
                await chat(agent, session_id=name)
        told = {name: of(await chat(agent, session_id=name), EventType.SUMMARY) for name in "abc"}
    assert [len(told[name]) for name in "abc"] == [0, 1, 1]


async def test_summaries_of_the_store_that_are_worth_too_little_by_the_setting_are_not_shown():
    store = await store_with(4)
    async with agent_of(Model(says_of_it(0.7, facts=["The user said 1."])), store, turns=4) as agent:
        await chat(agent)
    model = Model()
    async with agent_of(model, store, turns=4, confidence=0.8) as agent:
        await chat(agent)
        assert "The user said 1." not in "\n".join(model.shown)
        *_, made = await summaries_in(store)
        assert (made.first, made.last, made.confidence) == (1, 3, 1.0)  # quotes have taken its place


# -- facts -----------------------------------------------------------------------------------------------


async def test_what_a_user_says_of_themself_is_kept_as_facts_and_without_a_user_nothing_is():
    for key in (SESSION, SessionKey("s")):
        store = await store_with(4, key, said="My city is Bergen, for the {} time.")
        async with agent_of(Model(), store, turns=4) as agent:
            await chat(agent, user_id=key.user_id)
        facts = [fact for user_id in ("u", "", "None") for fact in await store.list_facts(user_id)]
        assert (len(facts) > 0) == (key.user_id is not None)
        told = [(fact.user_id, fact.turn, fact.run_id) for fact in facts if "Bergen" in fact.text]
        assert told == ([("u", 2, "run2")] if facts else [])


async def test_a_turn_that_is_summarised_again_brings_no_old_or_deleted_fact_back():
    store = InMemoryStore()
    async with agent_of(Model(), store, turns=4) as agent:
        for said in ("My city is Bergen.", "My city is Oslo.", "My email is a@example.org.", "Thanks.", "Go on."):
            await chat(agent, said)
        await store.delete_fact("u", (await store.list_facts("u"))[0].id)
        for _ in range(8):
            await chat(agent, "and so on")
    assert [fact.text for fact in await store.list_facts("u")] == ["My email is a@example.org."]


async def test_facts_of_turns_that_are_read_again_after_a_failure_do_not_take_the_place_of_newer_ones():
    store = FailingLog(InMemoryStore(), fail_at=1, of="keep_summary")
    async with agent_of(Model(), store, turns=4) as agent:
        for said in ("My city is Bergen.", "My city is Oslo.", "Thanks.", "Go on.", "And so on.", "Go on."):
            await chat(agent, said)
    assert store.calls["keep_summary"] == 2
    assert [fact.text for fact in await store.list_facts("u")] == ["My city is Oslo."]


# -- who summarises --------------------------------------------------------------------------------------


async def test_by_setting_another_model_summarises():
    def respond(request):
        if request.body["model"] == "openai/small":
            return text(json.dumps({"facts": ["The user said 1."], "confidence": 1.0}))
        return text("noted")

    async with FakeProvider(respond=respond) as provider:
        settings = Settings(memory={"turns": 4, "summary_model": "openai/small"})
        store = await store_with(4)
        async with Agent(
            model="openai/large", base_url=provider.base_url, api_key="key", store=store, settings=settings
        ) as agent:
            await chat(agent)
            await chat(agent)
        models = [(request.body["model"], "response_format" in request.body) for request in provider.requests]
        assert (models.count(("openai/large", False)), models.count(("openai/small", True))) == (2, len(models) - 2)
        assert "The user said 1." in json.dumps(provider.requests[-1].body)


async def test_a_model_that_cannot_summarise_for_want_of_a_key_is_told_before_anything_begins(monkeypatch):
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    settings = Settings(memory={"summary_model": "groq/small"})
    async with Agent(model=ScriptedModel("hi"), settings=settings) as agent:
        with pytest.raises(ConfigError, match="GROQ_API_KEY"):
            agent.stream("hello")


async def test_a_short_session_costs_no_summary():
    model = Model()
    async with agent_of(model, InMemoryStore()) as agent:
        for number in range(12):
            await chat(agent, f"message {number}")
        await turns()
    assert model.summarising == []
