"""`remember` and `recall` in real runs: what is kept, for whom, and what is refused."""

import pytest

from agentflow import Agent, InMemoryStore, fact_tools
from agentflow.chain.fact_tools import looks_secret
from agentflow.memory.facts import correct
from agentflow.stores.base import Fact
from agentflow.testing import FailingLog, ScriptedModel, assert_laws, call

pytestmark = pytest.mark.virtual_time


async def results(store, *calls, user_id="ada", answer="It failed, sorry."):
    """What the calls of one run gave, each in a round of its own; the run is lawful."""
    model = ScriptedModel(*[[one] for one in calls], answer)
    async with Agent(model=model, tools=fact_tools(store), store=store) as agent:
        chain = agent.start("Hello", user_id=user_id)
        end = await chain
        assert_laws([event async for event in agent.follow(chain.run_id)])
        return [record.result for record in end.tools]


def remember(text, subject=""):
    return call("remember", text=text, subject=subject)


def recall(question):
    return call("recall", question=question)


async def test_what_is_remembered_in_one_run_is_recalled_in_another():
    store = InMemoryStore()
    assert await results(store, remember("I live in Rome.", "home")) == ["[success]\nremembered"]
    (found,) = await results(store, recall("Where do you live?"))
    assert found == '[success]\n["I live in Rome."]'


async def test_a_fact_says_where_it_is_from():
    store = InMemoryStore()
    await results(store, remember(" I  live\nin Rome. ", " Home "))
    (fact,) = await store.list_facts("ada")
    (run,) = await store.list_runs()
    assert (fact.text, fact.subject, fact.run_id, fact.confidence) == ("I live in Rome.", "home", run.run_id, 0.9)
    assert fact.created_at.endswith("Z")


async def test_the_newer_fact_of_a_subject_takes_the_place_of_the_older():
    store = InMemoryStore()
    told = await results(store, remember("I live in Rome.", "home"), remember("I live in Oslo.", "home"))
    assert told[1] == "[success]\nremembered, in place of: I live in Rome."
    assert [fact.text for fact in await store.list_facts("ada")] == ["I live in Oslo."]
    assert len(await store.list_facts("ada", superseded=True)) == 2


async def test_two_facts_of_one_subject_in_one_reply_supersede_each_other_too():
    store = InMemoryStore()
    both = [remember("I live in Rome.", "home"), remember("I live in Oslo.", "home")]
    async with Agent(model=ScriptedModel(both, "Noted."), tools=fact_tools(store), store=store) as agent:
        await agent.chat("Hello", user_id="ada")
    assert [fact.text for fact in await store.list_facts("ada")] == ["I live in Oslo."]


async def test_the_same_fact_is_kept_once():
    store = InMemoryStore()
    await results(store, remember("I like tea."), recall("tea"), remember("I like tea."))
    assert len(await store.list_facts("ada", superseded=True)) == 1


async def test_facts_are_the_users_of_the_run():
    store = InMemoryStore()
    await results(store, remember("I live in Rome.", "home"))
    (found,) = await results(store, recall("Where do you live?"), user_id="bob")
    assert found == "[success]\nnothing about that is remembered"


async def test_without_a_user_both_fail_and_say_so():
    store = InMemoryStore()
    told = await results(store, remember("I live in Rome."), recall("home"), user_id=None)
    assert all(text.startswith("[error: failed]\nnobody knows who the user") for text in told)
    assert len(told) == 2


async def test_a_corrected_fact_is_recalled_as_it_is_by_now():
    store = InMemoryStore()
    await results(store, remember("I live in Rome.", "home"))
    (fact,) = await store.list_facts("ada")
    await store.put_facts(correct(fact, "I live in Milan.", "right"))
    assert await results(store, recall("Where do you live?")) == ['[success]\n["I live in Milan."]']


async def test_facts_that_speak_of_failure_are_no_failure():
    store = InMemoryStore()
    await store.put_facts([Fact(id="1", user_id="ada", text="error: TOO_MANY_REQUESTS is what I saw.")])
    (found,) = await results(store, recall("error"))
    assert found.startswith("[success]")


async def test_what_is_sure_too_little_is_not_recalled():
    store = InMemoryStore()
    await store.put_facts([Fact(id="1", user_id="ada", text="I live in Rome.", confidence=0.3)])
    assert await results(store, recall("Rome")) == ["[success]\nnothing about that is remembered"]


@pytest.mark.parametrize("applied", [False, True])
async def test_where_the_store_fails_once_it_is_done_once(applied):
    store = FailingLog(InMemoryStore(), fail_at=1, of="put_facts", applied=applied)
    assert await results(store, remember("I live in Rome.", "home")) == ["[success]\nremembered"]
    assert len(await store.list_facts("ada", superseded=True)) == 1


@pytest.mark.parametrize(
    ("text", "subject"), [("My password is hunter2.", ""), ("hunter2", "password"), ("4111 1111 1111 1111", "card")]
)
async def test_a_secret_is_refused_and_not_kept(text, subject):
    store = InMemoryStore()
    (told,) = await results(store, remember(text, subject))
    assert told.startswith("[error: failed]\nthis looks like a password, a key or a card number")
    assert not await store.list_facts("ada")


@pytest.mark.parametrize(
    ("text", "words"), [(" ", "there is no fact"), ("", "text"), ("x" * 301, "text")], ids=["blank", "empty", "long"]
)
async def test_what_is_no_fact_is_refused(text, words):
    store = InMemoryStore()
    (told,) = await results(store, remember(text))
    assert told.startswith("[error: ")
    assert words in told
    assert not await store.list_facts("ada")


@pytest.mark.parametrize(
    "text",
    [
        "My password is hunter2.",
        "The PIN of my card is 4711.",
        "pin: 4711",
        "Mein Passwort lautet geheim",
        "我的密码是 hunter2",
        "my api_key=0123456789abcdef",
        "Use sk-abcdefghijklmnop for that.",
        "Authorization: Bearer abcdefgh12345678",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
        "https://ada:hunter2@example.org/",
        "Take AbC123def456GHI789jkl012MNO.",
        "4111-1111-1111-1111",
        "5500000000000004 is my card",
    ],
)
def test_what_has_the_form_of_a_secret_is_one(text):
    assert looks_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        "I live in Rome.",
        "I forgot my password",
        "I keep my keys at the door; I am pinned down by work.",
        "My order is ORD2025010001.",
        "My phone number is +49 170 1234567.",
        "The run was 024df9a9-3a97-42fb-9d95-1e997f704bf7.",
        "Der Vertrag hat die Nummer 1234567890123",
        "我住在罗马",
        "Donaudampfschifffahrtsgesellschaftskapitän is my grandfather's word.",
        "See https://example.org/a/long/path/to/something?page=12",
    ],
)
def test_what_people_say_of_themselves_is_none(text):
    assert not looks_secret(text)
