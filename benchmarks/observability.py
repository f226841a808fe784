"""CPU per run with traces, metrics and logs, each and all, against the same run with none of them.

    python benchmarks/observability.py [--repeats 15] [--runs 20]

A run is ten rounds of one call of a tool that is done at once, then an answer of 50 deltas, streamed by a server in a
process of its own. All ways of looking take turns within one process, a batch of runs each; told are the medians of the
batches, and of the ratios to the batch with nothing on in the same turn. CPU is that of the whole process: threads that
export and write are in it. Spans go over OTLP to the same server, logs are JSON written to /dev/null; to be read by
Prometheus every 15 s costs nothing beside that. With "10 %" nine of ten runs are not sampled. "down" and "slow" are all
three with a collector that is not there, or answers after ten seconds; told is also their wall time, and the memory
that the process has grown by in these batches.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased

from agentflow import Agent, tool
from agentflow.chain.tracing import install
from agentflow.observability.logs import logged
from agentflow.observability.metrics import Metrics
from agentflow.observability.prometheus import Exposition
from agentflow.observability.tracing import Tracing

ROUNDS = 10
DELTAS = 50
PIECES = ('{"num', 'ber"', ": ")  # of a call's arguments, before the number
SLOW_SECONDS = 10.0
STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class Way:
    """What is on. `collector` is where spans go: "there", "down" or "slow"."""

    traces: float = 0.0  # the share of runs that are sampled
    metrics: bool = False
    logs: bool = False
    collector: str = "there"


WAYS = {
    "nothing": Way(),
    "traces": Way(traces=1.0),
    "traces, 10 %": Way(traces=0.1),
    "metrics": Way(metrics=True),
    "logs": Way(logs=True),
    "all": Way(1.0, metrics=True, logs=True),
    "all, traces 10 %": Way(0.1, metrics=True, logs=True),
    "all, collector down": Way(1.0, metrics=True, logs=True, collector="down"),
    "all, collector slow": Way(1.0, metrics=True, logs=True, collector="slow"),
}


# -- the server --------------------------------------------------------------------------------------------


def frame(delta: dict[str, Any] | None, finish: str | None = None) -> bytes:
    body: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1700000000, "model": "m"}
    body["choices"] = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    if delta is None:
        body["usage"] = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def called(number: int) -> bytes:
    function = {"name": "work", "arguments": ""}
    call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
    pieces = [{"tool_calls": [call]}]
    pieces += [
        {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in (*PIECES, str(number), "}")
    ]
    return b"".join(map(frame, pieces)) + frame({}, "tool_calls") + frame(None) + b"data: [DONE]\n\n"


def answered() -> bytes:
    words = b"".join(frame({"content": f" word{number}"}) for number in range(DELTAS))
    return words + frame({}, "stop") + frame(None) + b"data: [DONE]\n\n"


def serve() -> None:
    scripts = [*map(called, range(ROUNDS)), answered()]

    async def completions(request: web.Request) -> web.Response:
        messages = (await request.json())["messages"]
        done = sum(message["role"] == "tool" for message in messages)
        return web.Response(body=scripts[done], headers={"Content-Type": "text/event-stream"})

    async def collect(request: web.Request) -> web.Response:
        await request.read()
        if request.path.startswith("/slow"):
            await asyncio.sleep(SLOW_SECONDS)
        return web.Response()

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions", completions)
    app.router.add_post("/{which}/traces", collect)

    def announce(text: str) -> None:
        print(text.split("http://")[1].split()[0].strip("/"), flush=True)

    web.run_app(app, host="127.0.0.1", port=0, print=announce, access_log=None)


# -- the client --------------------------------------------------------------------------------------------


@tool
async def work(number: int) -> str:
    """Do some work.

    Args:
        number: Which.
    """
    return f"done {number}"


@contextlib.contextmanager
def looked_at(way: Way, agent: Agent, place: str) -> Iterator[Callable[[], object]]:
    """Look at the agent's runs in this way. What is given sends the spans that are left."""
    with contextlib.ExitStack() as stack:
        flush: Callable[[], object] = bool
        if way.logs:
            sink = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
            stack.enter_context(logged("json", [agent.bus], stream=sink))
        if way.metrics:
            exposition = Exposition()
            stack.callback(exposition.close)
            stack.callback(Metrics(exposition.meter, [agent]).attach().dispose)
        if way.traces:
            provider = provider_of(way, place)
            install(Tracing(provider))
            stack.callback(install, None)
            if way.collector == "there":
                flush = provider.force_flush
        yield flush


PROVIDERS: dict[Way, TracerProvider] = {}  # made once: what waits to be exported has to stay bounded over all batches


def provider_of(way: Way, place: str) -> TracerProvider:
    if way not in PROVIDERS:
        address = (
            "http://127.0.0.1:1/v1/traces" if way.collector == "down" else f"http://{place}/{way.collector}/traces"
        )
        sampler = ParentBased(ALWAYS_ON if way.traces == 1.0 else TraceIdRatioBased(way.traces))
        PROVIDERS[way] = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        PROVIDERS[way].add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=address)))
    return PROVIDERS[way]


async def batch(way: Way, place: str, runs: int) -> tuple[float, float]:
    """CPU and wall time of a run, in milliseconds."""
    async with Agent(model="m", base_url=f"http://{place}/v1", tools=[work]) as agent:
        with looked_at(way, agent, place) as flush:
            await agent.chat("go")
            began, since = cpu(), time.perf_counter()
            for _ in range(runs):
                reply = await agent.chat("go")
                assert len(reply.tools) == ROUNDS
            took = time.perf_counter() - since  # without the last spans
            flush()
            used = cpu() - began
        return used * 1000 / runs, took * 1000 / runs


def cpu() -> float:
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


def memory() -> float:
    return int(STATM.read_text().split()[1]) * resource.getpagesize() / 2**20


async def measure(place: str, repeats: int, runs: int) -> None:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    grown = dict.fromkeys(WAYS, 0.0)
    for turn in range(repeats + 1):
        names = list(WAYS) if turn % 2 else list(reversed(WAYS))
        for name in names:
            before = memory()
            result = await batch(WAYS[name], place, runs)
            if turn:  # the first warms up
                found[name].append(result)
                grown[name] += memory() - before
    print("| on | CPU ms/run | ratio | wall ratio | MB grown |\n|---|---|---|---|---|")
    for name, results in found.items():
        ratios = [
            tuple(mine / base for mine, base in zip(result, nothing, strict=True))
            for result, nothing in zip(results, found["nothing"], strict=True)
        ]
        used, wall = (statistics.median(ratio[part] for ratio in ratios) for part in (0, 1))
        median = statistics.median(result[0] for result in results)
        print(f"| {name} | {median:.2f} | {used:.2f} | {wall:.2f} | {grown[name]:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--serve", action="store_true")
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the collector that is down is meant to be
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        asyncio.run(measure(server.stdout.readline().strip(), args.repeats, args.runs))
    finally:
        server.terminate()
        server.wait()
    sys.stdout.flush()
    os._exit(0)  # nobody waits for the collector that is slow


if __name__ == "__main__":
    main()
