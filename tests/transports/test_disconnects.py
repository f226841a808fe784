"""Readers whose connections are cut at random: nothing is lost, nothing comes twice, nothing is out of order."""

import asyncio
import json
import random
from contextlib import asynccontextmanager

import pytest

from agentflow import Agent, InMemoryStore, Settings
from agentflow.events import encode
from agentflow.models.base import ModelChunk
from agentflow.stores.sqlite import SqliteStore
from tests.transports.served import Frames, served, settled

SETTINGS = Settings(flow={"window_ms": 1}, server={"shutdown_grace": 1})


async def chatter(request):
    """Says a word whenever the loop has come round, for as many words as it is asked for."""
    for number in range(int(request.messages[-1].text)):
        yield ModelChunk(text=f"{number} ")
        await settled(5)
    yield ModelChunk(finish_reason="stop")


@asynccontextmanager
async def on_memory(tmp_path):
    """One server."""
    store = InMemoryStore()
    async with served(Agent(model=chatter, store=store, settings=SETTINGS), settings=SETTINGS) as here:
        yield [here]
    await store.aclose()


@asynccontextmanager
async def on_one_file(tmp_path):
    """Two servers that know of each other only by the file they share: one runs, both are read from."""
    stores = [SqliteStore(tmp_path / "store.db") for _ in range(2)]
    one, two = (Agent(model=chatter, store=store, settings=SETTINGS) for store in stores)
    async with served(one, settings=SETTINGS) as here, served(two, settings=SETTINGS) as there:
        yield [here, there]
    for store in stores:
        await store.aclose()


async def read_with_cuts(servers, first, chance):
    """All events of a run that `first` has the first of, by connections that last for a few each; and how many."""
    run_id, seen, cuts = first["run_id"], [first], 0
    while seen[-1]["type"] != "final":
        here = chance.choice(servers)
        headers = {"Last-Event-ID": f"{run_id}:{len(seen)}"}
        async with here.get(f"/api/runs/{run_id}/events", headers=headers) as response:
            frames = Frames(response)
            for _ in range(chance.randrange(4)):
                event = await frames.next()
                seen.append(event)
                if event["type"] == "final":
                    break
            response.close()
            cuts += 1
    return seen, cuts


@pytest.mark.parametrize("servers_of", [on_memory, on_one_file])
async def test_a_thousand_connections_that_are_cut_lose_and_double_nothing(servers_of, tmp_path):
    chance = random.Random(7)
    async with servers_of(tmp_path) as servers:

        async def one():
            async with servers[0].post("/api/agent/stream", {"input": "700"}) as response:
                first = await Frames(response).next()
                response.close()
            return await read_with_cuts(servers, first, chance)

        found = await asyncio.gather(*(one() for _ in range(4)))
        for seen, _ in found:
            stored = await servers[0].server.store.read(seen[0]["run_id"], 0, 10_000)
            assert seen == [json.loads(encode(event)) for event in stored]
        assert sum(cuts for _, cuts in found) > 500  # about 1,000, as the deltas were joined
