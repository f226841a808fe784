"""The history that a run's log leads to is the one its session keeps; and the check of that, which all tests get."""

import msgspec
import pytest

from agentflow import Agent, tool
from agentflow.events import EventType
from agentflow.messages import ImagePart, TextPart
from agentflow.stores.base import SessionKey
from agentflow.stores.in_memory import InMemoryStore
from agentflow.testing import ScriptedModel, call
from tests.kept_history import assert_kept

pytestmark = pytest.mark.virtual_time

SESSION = SessionKey("s")


class Keeping(InMemoryStore):
    """A store that keeps `change(turn)` instead of the turn."""

    def __init__(self, change=lambda turn: turn):
        super().__init__()
        self.change = change

    async def close_session(self, key, run_id, turn, closing=(), *, token=None):
        await super().close_session(key, run_id, turn and self.change(turn), closing, token=token)


def with_text(turn, text):
    return msgspec.structs.replace(
        turn, messages=(*turn.messages[:-1], msgspec.structs.replace(turn.messages[-1], content=text))
    )


WRONG = {
    "other words": lambda turn: with_text(turn, "something else"),
    "a message less": lambda turn: msgspec.structs.replace(turn, messages=turn.messages[:-1]),
    "no turn": lambda turn: None,
    "another run's": lambda turn: msgspec.structs.replace(turn, run_id="another"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_whatever_a_store_keeps_otherwise_fails_the_test_that_closes_the_agent(wrong):
    store = Keeping(WRONG[wrong])
    with pytest.raises(AssertionError, match="run "):
        async with Agent(model=ScriptedModel("hi", "hi"), store=store) as agent:
            await agent.chat("hello", session_id="s")
            store.change = lambda turn: turn
            await agent.chat("again", session_id="s")


@tool
async def look(key: str) -> str:
    """Look something up."""
    return f"value of {key}"


async def test_turns_with_tools_pictures_and_every_end_are_what_their_logs_say():
    model = ScriptedModel(
        [call("look", key="a"), call("gone")], "There.", "I see.", [ZeroDivisionError("gone")], "word " * 9, delay=1
    )
    async with Agent(model=model, tools=[look], store=InMemoryStore()) as agent:
        for said in ("look", (TextPart("and this?"), ImagePart(url="https://example.org/a.png")), "again"):
            await agent.start(said, session_id="s")
        chain = agent.start("stop", session_id="s")
        async for event in chain:
            if event.type is EventType.DELTA:
                chain.cancel()
        kept = await agent._store.read_turns(SESSION, 0, 10)
        assert [turn.outcome for turn in kept] == ["final", "final", "failed", "cancelled"]
    await assert_kept(agent._store)


async def test_what_was_deleted_is_not_missed():
    store = InMemoryStore()
    async with Agent(model=ScriptedModel("hi", "hi"), store=store) as agent:
        await agent.chat("hello", session_id="s")
        await agent.chat("hello", session_id="t")
        await store.delete_session(SESSION)
