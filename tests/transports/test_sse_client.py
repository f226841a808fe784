"""The EventSource of npm, which is not ours: what it sees over connections that are cut, and on wrong servers."""

import asyncio
import json
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from agentflow import Agent, tool
from agentflow.events import encode
from agentflow.testing import call
from tests.transports.paused import WAIT, Paused
from tests.transports.served import listening, served

NODE = Path(__file__).parent.parent / "node"


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Listening:
    """The client, in a process of its own, and all it has told so far."""

    def __init__(self, lines):
        self._lines = lines
        self.told = []

    async def until(self, wanted):
        """Read on up to the first thing that is so."""
        while not (self.told and wanted(self.told[-1])):
            line = await self._lines.readline()
            assert line, f"the client ended after {self.told}"
            self.told.append(json.loads(line))

    async def closed(self):
        """Read on until it has given up."""
        await self.until(lambda one: one.get("closed"))

    @property
    def messages(self):
        return [one["data"] for one in self.told if "data" in one]

    @property
    def connections(self):
        return sum("open" in one for one in self.told)


@asynccontextmanager
async def eventsource(url):
    if shutil.which("node") is None or not (NODE / "node_modules" / "eventsource").is_dir():
        pytest.skip("needs node and: npm install --prefix tests/node")
    command = ("node", str(NODE / "eventsource.mjs"), url)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield Listening(process.stdout)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_the_client_goes_on_where_it_was_cut_off_and_stops_at_the_end():
    model = Paused(["one ", WAIT, "two ", WAIT, call("add", a=1, b=2)], ["three"])
    async with served(Agent(model=model, tools=[add])) as here:
        url = here.base + "/api/agent/stream?message=hello&format=events"
        async with eventsource(url) as client:
            for word in ("one ", "two "):
                await model.standing()
                await client.until(lambda one, word=word: one.get("data", {}).get("text") == word)
                here.cut()
                model.go()
            await client.closed()
        (run,) = await here.server.store.list_runs(limit=10)
        log = await here.server.store.read(run.run_id, 0, 1000)
        assert client.messages == [json.loads(encode(event)) for event in log]
        assert client.connections == 3


@pytest.mark.parametrize("ids", ["none", "unread"])
async def test_a_server_that_does_not_go_on_is_seen_by_what_comes_twice(ids):
    async def wrong(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        name = b"id: r:1\n" if ids == "unread" else b""
        await response.write(b"retry: 1\n" + name + b'data: "one"\n\n')
        return response

    app = web.Application()
    app.router.add_get("/", wrong)
    async with listening(app) as here, eventsource(here.base) as client:
        await client.until(lambda one: one.get("open") == 3)
        assert client.messages == ["one", "one"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(200, "text/plain"), (500, "text/event-stream"), (204, "text/event-stream")],
)
async def test_the_client_gives_up_on_a_server_that_is_wrong(status, kind):
    async def wrong(request):
        return web.Response(status=status, content_type=kind, text="" if status == 204 else "data: 1\n\n")

    app = web.Application()
    app.router.add_get("/", wrong)
    async with listening(app) as here, eventsource(here.base) as client:
        await client.closed()
        assert client.told == [{"error": status, "closed": True}]
