"""What the tests of the transports share: agents served over the loopback, a clock that is moved, frames read."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from agentflow import Agent, InMemoryStore, Settings
from agentflow.models.base import ModelChunk
from agentflow.testing import ScriptedModel
from agentflow.transports import create_app
from agentflow.transports.server import SERVER


class HandClock:
    """A clock that stands still until it is advanced."""

    def __init__(self):
        self.now = 0.0
        self._timers = []

    def monotonic(self):
        return self.now

    def wall(self):
        return 1767225600.0 + self.now

    def call_later(self, delay, callback):
        timer = _Timer(self.now + delay, callback)
        self._timers.append(timer)
        return timer

    def advance(self, seconds):
        self.now += seconds
        due = [timer for timer in self._timers if timer.due <= self.now]
        self._timers = [timer for timer in self._timers if timer.due > self.now]
        for timer in due:
            timer.fire()


class _Timer:
    def __init__(self, due, callback):
        self.due = due
        self._callback = callback

    def cancel(self):
        self._callback = None

    def fire(self):
        if self._callback is not None:
            self._callback()


class Gate:
    """A model that says a word, waits until it is let on, and says another; in every turn."""

    provider = name = "gate"

    def __init__(self, *words):
        self.words = words or ("first ", "last")
        self.waiting = asyncio.Event()
        self.open = asyncio.Event()

    async def stream(self, request):
        for number, word in enumerate(self.words):
            if number:
                self.waiting.set()
                await self.open.wait()
            yield ModelChunk(text=word)
        yield ModelChunk(finish_reason="stop")


class Served:
    """A server that listens: its address, what its handlers share, and a client."""

    def __init__(self, app, runner, client):
        self.app = app
        self.server = app.get(SERVER)
        self.client = client
        self.runner = runner
        self.host, self.port = runner.addresses[0][:2]
        self.base = f"http://127.0.0.1:{self.port}"

    def get(self, path, **options):
        return self.client.get(self.base + path, **options)

    def post(self, path, body=None, **options):
        if body is not None:
            options["json"] = body
        return self.client.post(self.base + path, **options)

    def delete(self, path, **options):
        return self.client.delete(self.base + path, **options)

    async def json(self, path, **options):
        async with self.get(path, **options) as response:
            return response.status, await response.json()

    async def posted(self, path, body=None, **options):
        async with self.post(path, body, **options) as response:
            return response.status, await response.json()

    async def ask(self, text="hello", **fields):
        """The answer to a message, which must come."""
        status, body = await self.posted("/api/agent/chat", {"input": text, **fields})
        assert status == 200, body
        return body

    def cut(self):
        """Break every connection there is, as a network does."""
        for handler in self.runner.server.connections:
            if handler.transport is not None:
                handler.transport.abort()

    async def raw(self, data):
        """What the server answers to these bytes, up to its close."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        await writer.drain()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer


@asynccontextmanager
async def listening(app, *, handler_cancellation=True):
    """An application, listening on the loopback."""
    options = {"handler_cancellation": handler_cancellation, "shutdown_timeout": 1.0, "lingering_time": 0.05}
    runner = web.AppRunner(app, access_log=None, **options)
    await runner.setup()
    try:
        listener = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(runner, listener).start()
        # Virtual time runs ahead of a machine that is busy, and some tests have more clients than a session lets be.
        never, many = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=never, connector=many) as client:
            yield Served(app, runner, client)
    finally:
        await runner.cleanup()
    await asyncio.sleep(0)


@asynccontextmanager
async def served(*agents, settings=None, clock=None, **server):
    """These agents, or one that says "Hello there."; `server` are settings of that section."""
    agents = agents or (Agent(model=ScriptedModel(*["Hello there."] * 20)),)
    settings = settings or Settings(server={"shutdown_grace": 0.2} | server)
    try:
        async with listening(create_app(agents, settings, clock=clock)) as here:
            yield here
    finally:
        for agent in agents:
            await agent.aclose()


def pair(**models):
    """Agents of these names that share a store."""
    store = InMemoryStore()
    return [Agent(name=name, model=model, store=store) for name, model in models.items()]


class Frames:
    """Reads a stream frame by frame, as a client does that knows only LF."""

    def __init__(self, response):
        self._content = response.content
        self.last_id = None

    async def next(self):
        """The next frame's data as JSON; None at the end. Comments and frames without data are passed over."""
        while True:
            lines = []
            while (line := (await self._content.readline()).decode()) not in ("\n", ""):
                lines.append(line.removesuffix("\n"))
            if not lines and not line:
                return None
            told = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
            self.last_id = next((line.removeprefix("id: ") for line in lines if line.startswith("id: ")), self.last_id)
            if told:
                return json.loads("\n".join(told))

    async def rest(self):
        """All that is left."""
        found = []
        while (told := await self.next()) is not None:
            found.append(told)
        return found


def read(text):
    """The frames of a whole stream, each as its id and its data."""
    assert "\r" not in text
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in fields:
            found.append((fields.get("id"), json.loads(fields["data"])))
    return found


async def settled(turns=20):
    """Let everything that is ready go on."""
    for _ in range(turns):
        await asyncio.sleep(0)
