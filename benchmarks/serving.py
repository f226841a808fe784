"""Serving beside a bare relay: delay and CPU per delta, memory per conversation, idle chains, clients that stand still.

    python benchmarks/serving.py [--repeats 3] [--quick]

500 clients, each with a conversation over Server-Sent Events: 40 deltas a second, a tool call in the middle, an end.
The model is a local generator whose deltas say when they were made. Each measurement has a fresh server in a process of
its own, and its clients are raw sockets in this one; the servers take turns. The relays are aiohttp handlers that keep
nothing and check nothing: "relay" joins the deltas of 200 ms as agentflow does, "unbatched" writes each at once, and
"source" only makes them, which is in the CPU of all. CPU is the server's, per delta, while all 500 are under way;
"less source" is what serving costs. Medians of the repeats; under three minutes in all.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from agentflow import Agent, ModelChunk, tool
from agentflow.cli.serving import spare_the_collector
from agentflow.testing import call
from agentflow.transports import create_app

CLIENTS = 500
RATE = 40  # deltas a second
WINDOW = 0.2
SECONDS = 5.0  # of a conversation
RAMP = 1.0  # seconds in which all clients come
IDLE_SECONDS = 15.0  # one sign of life for each client
FAST = (200, 50)  # clients, and those of them that stop reading
STATM = Path("/proc/self/statm")
SERVERS = ("agentflow", "relay", "unbatched", "source")


# -- what is said ------------------------------------------------------------------------------------------


def stamp() -> str:
    return f"@{time.monotonic_ns()} "


async def words(seconds: float) -> AsyncIterator[str]:
    due = asyncio.get_running_loop().time()
    for _ in range(int(seconds * RATE)):
        due += 1 / RATE
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        yield stamp()


@tool
async def look() -> str:
    return stamp()


async def conversation(seconds: float) -> AsyncIterator[tuple[str, str]]:
    """What a relay has to tell: kinds and texts."""
    for part in (1, 2):
        async for text in words(seconds / 2):
            yield "content", text
        if part == 1:
            yield "tool_call", "look"
            yield "tool_result", stamp()
    yield "done", stamp()


def paced(seconds: float) -> Any:
    async def model(request: Any) -> AsyncIterator[ModelChunk]:
        async for text in words(seconds / 2):
            yield ModelChunk(text=text)
        if request.messages[-1].role == "user":
            yield ModelChunk(calls=(call("look"),), finish_reason="tool_calls")
        else:
            yield ModelChunk(text=stamp(), finish_reason="stop")

    return model


async def fast(request: Any) -> AsyncIterator[ModelChunk]:
    """As much as there is at once: more than may wait for a client that stands still."""
    for _ in range(400):
        yield ModelChunk(text="word " * 250)
        await asyncio.sleep(0)
    yield ModelChunk(finish_reason="stop")


async def silent(request: Any) -> AsyncIterator[ModelChunk]:
    """A delta, and the next one never."""
    yield ModelChunk(text="well ")
    await asyncio.Event().wait()


async def asking(request: Any) -> AsyncIterator[ModelChunk]:
    yield ModelChunk(calls=(call("pay"),), finish_reason="tool_calls")


@tool(approval=True)
async def pay() -> str:
    return "paid"


# -- the servers -------------------------------------------------------------------------------------------


def frame(kind: str, text: str) -> bytes:
    return b"data: " + json.dumps({"type": kind, "rawContent": text}).encode() + b"\n\n"


async def opened(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    return response


def relay(seconds: float) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        response, told = await opened(request), []
        some, urgent = asyncio.Event(), asyncio.Event()

        async def listen() -> None:
            async for kind, text in conversation(seconds):
                if kind == "content" and told and told[-1][0] == "content":
                    told[-1][1].append(text)
                else:
                    told.append((kind, [text]))
                some.set()
                if kind != "content":
                    urgent.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(listen())
            while True:
                await some.wait()
                frames = [frame(kind, "".join(texts)) for kind, texts in told]
                ended = told[-1][0] == "done"
                told.clear()
                some.clear()
                urgent.clear()
                await response.write(b"".join(frames))
                if ended:
                    return response
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WINDOW):
                        await urgent.wait()

    return handle


def unbatched(seconds: float) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = await opened(request)
        async for kind, text in conversation(seconds):
            await response.write(frame(kind, text))
        return response

    return handle


def source(seconds: float) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = await opened(request)
        async for kind, text in conversation(seconds):
            if kind != "content":
                await response.write(frame(kind, text))
        return response

    return handle


def application(name: str, seconds: float) -> web.Application:
    agents = {
        "agentflow": lambda: Agent(model=paced(seconds), tools=[look]),
        "fast": lambda: Agent(model=fast),
        "silent": lambda: Agent(model=silent),
        "suspended": lambda: Agent(model=asking, tools=[pay]),
    }
    if name in agents:
        return create_app([agents[name]()])
    app = web.Application()
    handlers = {"relay": relay, "unbatched": unbatched, "source": source}
    app.router.add_get("/api/agent/stream", handlers[name](seconds))
    return app


def resident() -> float:
    """Kilobytes that this process holds now."""
    return int(STATM.read_text().split()[1]) * resource.getpagesize() / 1024


async def usage(request: web.Request) -> web.Response:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return web.json_response({"at": time.monotonic_ns(), "cpu": used.ru_utime + used.ru_stime, "rss": resident()})


def serve(name: str, seconds: float) -> None:
    logging.getLogger("agentflow").setLevel(logging.ERROR)  # that it is busy is what is measured
    app = application(name, seconds)
    app.router.add_get("/usage", usage)

    def announce(text: str) -> None:
        print(text.split("127.0.0.1:")[1].split()[0].strip("/"), flush=True)

    spare_the_collector()  # all of them, as `agentflow serve` does
    web.run_app(app, host="127.0.0.1", port=0, print=announce, access_log=None, handler_cancellation=True)


@contextlib.contextmanager
def server(name: str, seconds: float = SECONDS) -> Iterator[int]:
    """The port of a server in a process of its own."""
    command = [sys.executable, __file__, "--serve", name, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


# -- the clients -------------------------------------------------------------------------------------------

_STAMP = re.compile(rb"@(\d+) ")
_KIND = re.compile(rb'data: \{"type":\s?"(\w+)"')


class Client(asyncio.Protocol):
    """Reads one stream and keeps, for each kind, when what it tells was made and how long that took to come."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[float] = self.loop.create_future()
        self.told: dict[bytes, list[tuple[int, int]]] = {}
        self.rest = b""
        self.began = self.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        *frames, self.rest = (self.rest + data).split(b"\n\n")
        for text in frames:
            found = _KIND.search(text)
            if found is None:
                continue
            stamps = _STAMP.findall(text)
            if found[1] != b"content":  # the end repeats all of the text
                stamps = stamps[-1:]
            self.told.setdefault(found[1], []).extend((int(made), now - int(made)) for made in stamps)
            if found[1] == b"done" and not self.ended.done():
                self.ended.set_result(self.loop.time() - self.began)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(error or EOFError("a stream broke off"))


async def connect(port: int, query: str = "", *, stalled: bool = False) -> Client:
    sock = socket.socket()
    sock.setblocking(False)
    if stalled:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    transport, client = await loop.create_connection(Client, sock=sock)
    if stalled:
        transport.pause_reading()
    transport.write(f"GET /api/agent/stream?message=go{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return client


async def connect_all(port: int, count: int, query: str = "") -> list[Client]:
    """That many clients, who come one after another."""
    loop = asyncio.get_running_loop()
    began, clients = loop.time(), []
    for number in range(count):
        await asyncio.sleep(began + number * RAMP / count - loop.time())
        clients.append(await connect(port, query))
    return clients


async def used(port: int) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/usage") as response:
        return await response.json()


# -- what is measured --------------------------------------------------------------------------------------


async def stream(port: int, count: int, seconds: float) -> dict[str, float]:
    """One server with all its clients."""
    before = await used(port)
    clients = await connect_all(port, count)
    await asyncio.sleep(0.5)
    first = await used(port)
    await asyncio.sleep(seconds - RAMP - 1.0)
    last = await used(port)
    await asyncio.gather(*(client.ended for client in clients))
    deltas = [told for client in clients for told in client.told.get(b"content", ())]
    others = [told[1] for client in clients for kind in (b"tool_result", b"done") for told in client.told[kind]]
    # The source tells no deltas. What is made is counted where they are told, and is what the pace says.
    made = sum(first["at"] <= at < last["at"] for at, _ in deltas) or RATE * count * (last["at"] - first["at"]) / 1e9
    delays = [delay for _, delay in deltas] or [0, 0]
    return {
        "cpu": (last["cpu"] - first["cpu"]) / made * 1e6,
        "busy": (last["cpu"] - first["cpu"]) / (last["at"] - first["at"]) * 1e9,
        "p50": statistics.median(delays) / 1e6,
        "p99": quantile(delays) / 1e6,
        "others": quantile(others) / 1e6,
        "rss": (last["rss"] - before["rss"]) / count,
    }


def quantile(values: list[int]) -> float:
    return statistics.quantiles(values, n=100)[98]


async def race(port: int, *, stalled: bool) -> float:
    """Seconds until all clients that read have their runs, beside some that may stand still."""
    everybody, still = FAST
    others = [await connect(port, stalled=stalled) for _ in range(still)]
    readers = [await connect(port) for _ in range(everybody - still)]
    await asyncio.gather(*(client.ended for client in readers))
    took = max(client.ended.result() for client in readers)
    for client in (*others, *readers):
        client.transport.abort()
    await asyncio.gather(*(client.ended for client in others), return_exceptions=True)
    return took


async def idle(port: int, count: int, seconds: float) -> float:
    """The part of a core that a server with open streams in which nothing comes uses."""
    clients = await connect_all(port, count, "&format=events")
    await asyncio.sleep(1.0)
    first = await used(port)
    await asyncio.sleep(seconds)
    last = await used(port)
    if any(client.ended.done() for client in clients):
        sys.exit("an idle stream has ended")
    for client in clients:
        client.ended.cancel()
        client.transport.abort()
    return (last["cpu"] - first["cpu"]) / (last["at"] - first["at"]) * 1e9


async def idle_both(count: int, seconds: float) -> dict[str, float]:
    with server("suspended") as suspended, server("silent") as between:
        found = await asyncio.gather(idle(suspended, count, seconds), idle(between, count, seconds))
    return dict(zip(("suspended", "between deltas"), found, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="100 clients, once: whether it runs")
    parser.add_argument("--serve", nargs=2)
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if args.serve:
        name, seconds = args.serve
        return serve(name, float(seconds))
    count, repeats, seconds = (100, 1, 3.0) if args.quick else (CLIENTS, args.repeats, SECONDS)
    report_streams(count, repeats, seconds)
    report_race(1 if args.quick else 5)
    for name, part in asyncio.run(idle_both(count, 3.0 if args.quick else IDLE_SECONDS)).items():
        print(f"{count} idle chains, {name}: {part * 100:.2f} % of a core")
    return None


def report_streams(count: int, repeats: int, seconds: float) -> None:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SERVERS}
    for _ in range(repeats):
        for name in SERVERS:
            with server(name, seconds) as port:
                found[name].append(asyncio.run(stream(port, count, seconds)))
    medians = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in found.items()
    }
    base = medians["source"]["cpu"]
    print(f"{count} clients, {RATE} deltas/s each; median of {repeats}; {os.cpu_count()} cores\n")
    print("| server | CPU us/delta | less source | of a core | p50 / p99 ms | tools and ends p99 ms | KB each |")
    print("|---|---|---|---|---|---|---|")
    for name, row in medians.items():
        delays = "-" if name == "source" else f"{row['p50']:.0f} / {row['p99']:.0f}"
        print(
            f"| {name} | {row['cpu']:.1f} | {row['cpu'] - base:.1f} | {row['busy'] * 100:.0f} % | {delays} "
            f"| {row['others']:.1f} | {row['rss']:.0f} |"
        )
    ours, bare, each = medians["agentflow"], medians["relay"], medians["unbatched"]
    print(f"\nCPU of a relay with the same batching: {ours['cpu'] / bare['cpu']:.2f}x (goal 1.5x), ", end="")
    print(f"less the source {(ours['cpu'] - base) / (bare['cpu'] - base):.2f}x; ", end="")
    print(f"of an unbatched one {ours['cpu'] / each['cpu']:.2f}x (goal below 1x)")
    print(f"p99 of tool results and ends: {ours['others'] / bare['others']:.2f}x of the relay's (goal 1.5x)")


def report_race(repeats: int) -> None:
    took: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(repeats):
        for stalled, rows in took.items():
            with server("fast") as port:
                rows.append(asyncio.run(race(port, stalled=stalled)))
    everybody, still = FAST
    ratio = statistics.median(took[True]) / statistics.median(took[False])
    print(f"{still} of {everybody} clients stop reading: the others take {ratio:.2f}x as long (goal 1.1x)")


if __name__ == "__main__":
    main()
