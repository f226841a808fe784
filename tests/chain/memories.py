"""What the tests of windows, summaries and facts in whole runs share: a model, an agent, a session to go on with."""

import json

from agentflow import Agent, ModelChunk
from agentflow.errors import ModelError
from agentflow.memory.summary import REPLY_SCHEMA
from agentflow.settings import Settings
from agentflow.stores.base import SessionKey
from agentflow.stores.in_memory import InMemoryStore
from agentflow.testing import assert_laws
from tests.memory.histories import says, turn, user

SESSION = SessionKey("s", "u")
OURS = {"session_id": "s", "user_id": "u"}


class Model:
    """Answers questions with "noted"; what it is asked to summarise is for `summarise(request)`, an async generator."""

    provider = name = "model"

    def __init__(self, summarise=None, context_tokens=0):
        self.asked, self.summarising = [], []
        self.context_tokens = context_tokens
        self._summarise = summarise or nothing

    async def stream(self, request):
        if request.response_format == REPLY_SCHEMA:
            self.summarising.append(request)
            async for chunk in self._summarise(request):
                yield chunk
        else:
            self.asked.append(request.messages)
            yield ModelChunk(text="noted", finish_reason="stop")

    @property
    def shown(self):
        """What the last request showed, without the notes' frame."""
        return [message.text for message in self.asked[-1]]


async def nothing(request):
    raise ModelError("no summary today")
    yield


def says_of_it(confidence=0.9, **parts):
    """Summarises in words of its own."""
    reply = {"facts": [], "decisions": [], "questions": [], "pinned": [], "confidence": confidence} | parts

    async def summarise(request):
        yield ModelChunk(text=json.dumps(reply), finish_reason="stop")

    return summarise


def agent_of(model, store, **memory):
    settings = Settings(memory=memory)
    return Agent(model=model, instructions="Be kind.", store=store, settings=settings)


async def store_with(count, key=SESSION, said="I said {}."):
    """A store with a session of `count` turns."""
    store = InMemoryStore()
    for number in range(1, count + 1):
        await store.open_session(key, f"run{number}")
        messages = (user(said.format(number)), says(f"answer {number}"))
        await store.close_session(key, f"run{number}", turn(*messages, number=number))
    return store


async def summaries_in(store, key=SESSION):
    session = await store.open_session(key, "look", last_turns=0)
    await store.close_session(key, "look", None)
    return session.summaries


async def chat(agent, text="hello", **fields):
    """One message, to the end of what is done beside its run."""
    chain = agent.start(text, **OURS | fields)
    log = [event async for event in chain]
    await agent._runtime.owner.drain(60)
    assert_laws(log)
    return log
