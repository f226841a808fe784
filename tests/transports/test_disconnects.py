"""Readers whose connections are cut at random: nothing is lost, nothing comes twice, nothing is out of order.

On SQLite and Redis every connection goes to one of two servers in two processes, of which one has the runs and the
other has only the store. In memory there can be only the one.
"""

import asyncio
import json
import random
from contextlib import aclosing, asynccontextmanager

import aiohttp
import pytest

from agentflow import Agent, InMemoryStore, tool
from agentflow.events import decode, encode
from agentflow.models.base import ModelChunk
from agentflow.stores.redis import RedisStore
from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import assert_laws, call
from tests.redis_servers import PROGRAMS, RedisProcess
from tests.transports.other_process import other_process
from tests.transports.served import Frames, read, served
from tests.transports.sockets import connected

CUTS = 1000
RUNS = 4


class Walk:
    """Runs that go on by steps, each of which is an event; and a run's steps by its input."""

    def __init__(self):
        self.steps = {f"walk {number}": asyncio.Queue() for number in range(RUNS)}

    def agent(self, store):
        """An agent that walks."""

        @tool
        async def walk(name: str):
            """Walk as far as there are steps."""
            while step := await self.steps[name].get():
                yield {"step": step}

        async def walker(request):
            if request.messages[-1].role == "user":
                yield ModelChunk(calls=(call("walk", name=request.messages[-1].content),), finish_reason="tool_calls")
            else:
                yield ModelChunk(text="walked", finish_reason="stop")

        return Agent(model=walker, tools=[walk], store=store)


@asynccontextmanager
async def in_memory(walk, folder):
    """The one server that there can be."""
    async with aclosing(InMemoryStore()) as store, served(walk.agent(store)) as here:
        yield here, [here]


@asynccontextmanager
async def on_sqlite(walk, folder):
    """Two processes that share a file."""
    path = folder / "runs.db"
    async with (
        aclosing(SqliteStore(path)) as store,
        served(walk.agent(store)) as here,
    ):
        with other_process(str(path), here.client) as other:
            yield here, [here, other]


@asynccontextmanager
async def on_redis(walk, folder):
    """Two processes that share a server."""
    process = RedisProcess(folder, PROGRAMS["redis8"])
    try:
        async with (
            aclosing(RedisStore(process.url)) as store,
            served(walk.agent(store)) as here,
        ):
            with other_process(process.url, here.client) as other:
                yield here, [here, other]
    finally:
        process.kill()


async def read_stream(server, run_id, seen, wanted, chance):
    """Server-Sent Events, cut somewhere in the middle of a frame, or before the first."""
    url, last = f"{server.base}/api/runs/{run_id}/events", {"Last-Event-ID": f"{run_id}:{len(seen)}"}
    async with server.client.get(url, headers=last) as response:
        text, whole = b"", 0
        while len(told := read(text[:whole].decode())) < wanted:
            text += await response.content.read(chance.randrange(1, 2000))
            whole = text.rfind(b"\n\n") + 2 if b"\n\n" in text else 0
        response.close()
    assert [name for name, _ in told] == [f"{run_id}:{event['seq']}" for _, event in told]
    return [event for _, event in told]


async def read_socket(server, run_id, seen, wanted, chance):
    """A WebSocket that goes without a word, when it follows the run or even before it knows that."""
    while True:
        try:
            async with connected(server) as client:
                if wanted:
                    await client.accepted("follow", run_id=run_id, after=len(seen))
                else:
                    await client.send("follow", run_id=run_id, after=len(seen))
                told = [await client.next() for _ in range(wanted)]
                await client.drop()
            return told
        except aiohttp.WSServerHandshakeError as error:
            if error.status != 429:  # those that were cut are counted until the server has noticed
                raise
            await asyncio.sleep(0)


async def read_with_cuts(connect, walk, name, here, servers, chance):
    """The events of a run as they come over connections of which each lasts for a few of them."""
    async with here.post("/api/agent/stream", {"input": name}) as response:
        seen = [await Frames(response).next()]
        response.close()
    run_id = seen[0]["run_id"]
    for _ in range(CUTS // RUNS - 1):
        wanted = chance.randrange(4)
        for _ in range(wanted + chance.randrange(2)):
            walk.steps[name].put_nowait(len(seen))
        seen += await connect(chance.choice(servers), run_id, seen, wanted, chance)
    walk.steps[name].put_nowait(0)
    async with here.get(f"/api/runs/{run_id}/events?after={len(seen)}") as response:
        return seen + await Frames(response).rest()


@pytest.mark.parametrize("servers_of", [in_memory, on_sqlite, on_redis])
@pytest.mark.parametrize("connect", [read_stream, read_socket])
async def test_a_thousand_connections_that_are_cut_lose_and_double_nothing(servers_of, connect, tmp_path):
    walk, chance = Walk(), random.Random(7)
    async with servers_of(walk, tmp_path) as (here, servers):
        reading = (read_with_cuts(connect, walk, name, here, servers, chance) for name in walk.steps)
        for seen in await asyncio.gather(*reading):
            stored = await here.server.store.read(seen[0]["run_id"], 0, 10_000)
            assert seen == [json.loads(encode(event)) for event in stored]
            assert_laws([decode(json.dumps(event)) for event in seen])
            assert len(seen) > CUTS // RUNS
