"""Whichever call of the store fails, in a conversation with tools and keys: an error or success, and nothing twice."""

import asyncio
import collections

import pytest

from agentflow import Agent, ModelChunk, tool
from agentflow.errors import StoreError
from agentflow.messages import unpaired
from agentflow.models.base import CallRequest
from agentflow.settings import Settings
from agentflow.stores.base import SessionKey
from agentflow.stores.in_memory import InMemoryStore
from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import FailingLog, assert_laws
from tests.builders import log_of

pytestmark = pytest.mark.virtual_time

SESSION = SessionKey("s", "u")
OURS = {"session_id": "s", "user_id": "u"}
TURNS = 3


async def model(request):
    """Orders two things for each message, then tells how that went; summarises nothing."""
    last = request.messages[-1]
    if last.role == "user" and not request.response_format:
        things = [f'{{"thing": "{last.text} {thing}"}}' for thing in ("lamp", "chair")]
        yield ModelChunk(calls=tuple(CallRequest(name="order", arguments=arguments) for arguments in things))
    else:
        yield ModelChunk(text="I am sorry, it may not have worked.", finish_reason="stop")


def agent_of(store, effects):
    @tool(idempotency_key=["thing"])
    async def order(thing: str) -> str:
        """Order something."""
        await asyncio.sleep(0)
        effects.append(thing)
        return f"ordered {thing}"

    settings = Settings(memory={"turns": 2})  # so that the third message has something to summarise
    return Agent(model=model, tools=[order], store=store, settings=settings)


async def converse(store, effects):
    """The conversation; which of its messages have failed. All that is done beside its runs has ended."""
    failed = []
    async with agent_of(store, effects) as agent:
        for number in range(TURNS):
            try:
                assert (await agent.chat(f"message {number}", **OURS)).text
            except StoreError:
                failed.append(number)
            await agent._runtime.owner.drain(60)  # what frees the session, and what is done beside the run
    return failed


async def check(store, effects, failed):
    """The session goes on at once; once the open runs are recovered every run has ended once, and is kept as it was."""
    async with agent_of(store, effects) as agent:
        assert (await agent.chat("afterwards", **OURS)).text
    await asyncio.sleep(60)  # the lease of a run that could not give it back lapses
    async with agent_of(store, effects) as agent:
        for chain in await agent.recover():
            await chain
        assert (await agent.chat("in the end", **OURS)).text
        records = await store.list_runs()
        for record in records:
            assert record.ended or not record.last  # one whose lease was taken, but not to its knowledge, never began
            if record.last:
                assert_laws(await log_of(agent, record.run_id))
    kept = await store.read_turns(SESSION, 0, 100)
    assert all(unpaired(turn.messages) is None for turn in kept)
    runs = collections.Counter(turn.run_id for turn in kept)
    assert set(runs.values()) == {1}
    assert collections.Counter(effects).most_common(1)[0][1] == 1
    asked = {turn.messages[0].text for turn in kept}
    assert asked >= {f"message {number}" for number in range(TURNS) if number not in failed} | {"afterwards"}


def a_store(kind, path):
    return InMemoryStore(now=asyncio.get_running_loop().time) if kind == "in_memory" else SqliteStore(path)


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("kind", ["in_memory", "sqlite"])
async def test_whichever_store_call_fails_it_is_an_error_or_a_success_and_nothing_is_done_or_kept_twice(
    kind, applied, tmp_path
):
    number = errors = 0
    hit = True
    while hit:
        number += 1
        effects, store = [], a_store(kind, tmp_path / f"{number}.db")
        failing = FailingLog(store, fail_at=number, of=None, applied=applied)
        try:
            failed = await converse(failing, effects)
            hit = failing.calls.total() >= number
            errors += len(failed)
            await check(store, effects, failed)
        except Exception as error:
            error.add_note(f"call {number} failed")
            raise
        finally:
            await store.aclose()
    assert number > 40
    assert errors >= (5 if applied else 15)
