"""Readers whose connections are cut at random: nothing is lost, nothing comes twice, nothing is out of order."""

import asyncio
import json
import random
from contextlib import aclosing, asynccontextmanager

import pytest

from agentflow import Agent, InMemoryStore, tool
from agentflow.events import encode
from agentflow.models.base import ModelChunk
from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import call
from tests.transports.served import Frames, served, settled

RUNS, STEPS = 4, 450


@tool
async def count(to: int):
    """Count."""
    for number in range(to):
        yield {"number": number}
        await settled(5)


async def counter(request):
    """Has it counted, and says so."""
    if request.messages[-1].role == "user":
        yield ModelChunk(calls=(call("count", to=STEPS),), finish_reason="tool_calls")
    else:
        yield ModelChunk(text="counted", finish_reason="stop")


def counting(store):
    """An agent each of whose runs has an event for each of its steps."""
    return Agent(model=counter, tools=[count], store=store)


@asynccontextmanager
async def on_memory(tmp_path):
    """One server."""
    async with aclosing(InMemoryStore()) as store, served(counting(store)) as here:
        yield [here]


@asynccontextmanager
async def on_one_file(tmp_path):
    """Two servers that know of each other only by the file they share: one runs, both are read from."""
    path = tmp_path / "store.db"
    async with (
        aclosing(SqliteStore(path)) as store,
        aclosing(SqliteStore(path)) as other,
        served(counting(store)) as here,
        served(counting(other)) as there,
    ):
        yield [here, there]


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
            async with servers[0].post("/api/agent/stream", {"input": "count"}) as response:
                first = await Frames(response).next()
                response.close()
            return await read_with_cuts(servers, first, chance)

        found = await asyncio.gather(*(one() for _ in range(RUNS)))
        for seen, _ in found:
            stored = await servers[0].server.store.read(seen[0]["run_id"], 0, 10_000)
            assert seen == [json.loads(encode(event)) for event in stored]
        assert sum(cuts for _, cuts in found) >= 1000
