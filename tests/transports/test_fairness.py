"""Two hundred clients of which fifty stop reading: they cost little, hold up nobody, are dropped, and lose nothing.

What they cost the others in time is measured in `benchmarks/serving.py`.
"""

import asyncio
import fcntl
import json
import struct
import termios
from contextlib import suppress

import pytest

from agentflow import Agent, tool
from agentflow.events import TERMINAL_TYPES, decode
from agentflow.models.base import ModelChunk
from agentflow.testing import assert_laws, call
from agentflow.transports.connections import SEND_BUFFER
from agentflow.transports.encoding import MAX_WRITE
from agentflow.transports.websocket import CLOSE_SECONDS
from tests.transports.served import Frames, read, served
from tests.transports.sockets import PATH, TEXT, connected, frame, narrow, raw

pytestmark = pytest.mark.virtual_time

CLIENTS, STALLED = 200, 50
PIECES, PIECE = 10, 60_000
SPOKEN = PIECES * 0.25  # seconds in which all runs have said everything
STALL = 15.0  # the default of server.stall
# The server writes 256 KiB when all but 64 KiB have left; the system takes what it may hold, and one segment more.
BOUND = MAX_WRITE + 65536 + 2 * SEND_BUFFER + 65536


@tool
async def lots():
    """Give more than may wait for a client."""
    for _ in range(PIECES):
        await asyncio.sleep(SPOKEN / PIECES)
        yield {"text": "x" * PIECE}


async def talkative(request):
    """Uses it, and is done."""
    if request.messages[-1].role == "user":
        yield ModelChunk(calls=(call("lots"),), finish_reason="tool_calls")
    else:
        yield ModelChunk(text="done", finish_reason="stop")


def waiting_bytes(here):
    """What waits for each client, in the server and in the system below it."""
    found = []
    for protocol in here.runner.server.connections:
        if protocol.transport is not None:
            sock = protocol.transport.get_extra_info("socket")
            (below,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
            found.append(protocol.transport.get_write_buffer_size() + below)
    return found


class Streams:
    """Clients of Server-Sent Events."""

    async def ask(self, here, user):
        """The events of a run that is read to its end."""
        async with here.post("/api/agent/stream", {"input": "talk", "user_id": user}) as response:
            return await self._events(response)

    async def stall(self, here, user, dropped):
        """The first events of a run: those that lie on the way to a client which reads when it is `dropped`."""
        body = json.dumps({"input": "talk", "user_id": user})
        head = "POST /api/agent/stream HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}"
        with narrow() as sock:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", here.port))
            await loop.sock_sendall(sock, request.encode())
            await dropped.wait()
            answer = b""
            with suppress(ConnectionError):
                while block := await loop.sock_recv(sock, 65536):
                    answer += block
        _, _, text = answer.partition(b"\r\n\r\n")
        return [decode(json.dumps(event)) for _, event in read(text[: text.rindex(b"\n\n") + 2].decode())]

    async def resume(self, here, user, run_id, after):
        """The events after a number."""
        async with here.get(f"/api/runs/{run_id}/events?after={after}&user_id={user}") as response:
            return await self._events(response)

    async def _events(self, response):
        return [decode(json.dumps(event)) for event in await Frames(response).rest()]


class Sockets:
    """Clients of the WebSocket."""

    async def ask(self, here, user):
        """The events of a run that is read to its end."""
        async with connected(here, f"{PATH}?user_id={user}") as client:
            return await client.ended(await client.accepted("run", input="talk"))

    async def stall(self, here, user, dropped):
        """The first events of a run: those that lie on the way to a client which reads when it is `dropped`."""
        async with raw(here, f"{PATH}?user_id={user}", limit=4096, sock=narrow()) as client:
            await client.send(frame(TEXT, b'{"type": "run", "input": "talk"}'))
            await dropped.wait()
            (events,) = (await client.told_until_cut()).values()
            return events

    async def resume(self, here, user, run_id, after):
        """The events after a number."""
        async with connected(here, f"{PATH}?user_id={user}") as client:
            await client.accepted("follow", run_id=run_id, after=after)
            return await client.ended(run_id)


@pytest.mark.parametrize("clients", [Streams(), Sockets()])
async def test_fifty_of_two_hundred_stop_reading_and_cost_little_until_they_are_dropped_and_come_back(clients):
    asyncio.get_running_loop().settle(0.06)
    async with served(Agent(model=talkative, tools=[lots])) as here, asyncio.TaskGroup() as group:
        dropped = asyncio.Event()
        stalled = {f"still{n}": None for n in range(STALLED)}
        for user in stalled:
            stalled[user] = group.create_task(clients.stall(here, user, dropped))
        others = [group.create_task(clients.ask(here, f"user{n}")) for n in range(CLIENTS - STALLED)]
        for other in others:
            assert_laws(await other)
        assert len(here.server.connections) == STALLED  # the others are through before anybody has been dropped
        await asyncio.sleep(SPOKEN)
        assert 65536 < max(waiting_bytes(here)) <= BOUND
        await asyncio.sleep(STALL + CLOSE_SECONDS)
        assert len(here.server.connections) == 0
        dropped.set()
        for user, told in stalled.items():
            seen = await told
            run_id = seen[0].run_id
            assert seen[-1].type not in TERMINAL_TYPES
            seen += await clients.resume(here, user, run_id, seen[-1].seq)
            assert_laws(seen)
            assert seen == list(await here.server.store.read(run_id, 0, 1000))
