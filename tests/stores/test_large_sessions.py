"""A session of 50 MB is opened, shown and gone on with like any other; reading it whole goes by pages."""

import tracemalloc

from agentflow import Agent, ModelChunk
from agentflow.messages import Message
from agentflow.stores.base import SessionKey, Turn
from agentflow.stores.sqlite import SqliteStore
from tests.stores.conftest import give

KEY = SessionKey("large", "u")
TURNS, SIZE = 100, 512 * 1024  # bytes of text of each
CONTEXT = 100_000  # tokens that the model can read


def turn(number):
    said = Message(role="user", content=f"{number} " + "x" * SIZE)
    return Turn(run_id=f"r{number}", outcome="final", messages=(said, Message(role="assistant", content="ok")))


async def fill(store):
    for number in range(1, TURNS + 1):
        await store.open_session(KEY, f"r{number}", last_turns=1)
        await store.close_session(KEY, f"r{number}", turn(number))


async def goes_on(store):
    """What it takes to open the session for one run, and what the run's model is sent of it."""
    sent = []

    async def model(request):
        sent.append(sum(len(message.text) for message in request.messages))
        yield ModelChunk(text="fine", finish_reason="stop")

    model.context_tokens = CONTEXT
    async with Agent(model=model, store=store) as agent:
        tracemalloc.start()
        try:
            reply = await agent.chat("and now?", session_id=KEY.session_id, user_id=KEY.user_id)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (reply.text, (await store.find_session(KEY)).version) == ("fine", TURNS + 1)
    return sent, peak


async def read_whole(store):
    numbers, after = [], 0
    while page := await store.read_turns(KEY, after, 10):
        numbers += [int(turn.messages[0].text.split()[0]) for turn in page]
        after += len(page)
    return numbers


async def check(store):
    await fill(store)
    assert await read_whole(store) == list(range(1, TURNS + 1))
    sent, peak = await goes_on(store)
    assert max(sent) < 4 * CONTEXT
    assert peak < 12 * 4 * SIZE + 16 * 1024 * 1024  # the last turns, decoded, and what it takes to do so


async def test_in_a_file(tmp_path):
    store = SqliteStore(tmp_path / "agentflow.db")
    await check(store)
    await store.aclose()


async def test_on_redis(redis_store):
    give(redis_store, 10.0)
    await check(redis_store)
