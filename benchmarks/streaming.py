"""CPU per delta of `Agent.stream` against a hand-written aiohttp loop, in one interleaved run.

    python benchmarks/streaming.py [--repeats 5]

A server in its own process streams 5,000 and 20,000 deltas at full speed. Each measurement is a fresh process:
CPU time of the client, median of three conversations, after a warm-up. The hand-written loop is
`../shared/bench/drivers/raw_aiohttp.py` where that is there (it needs orjson), else the one below. The agent has
three subscribers: a tap on the bus, a subscriber of the chain, and the reader of the text.
"""

import argparse
import asyncio
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from agentflow import Agent, EventType

SHARED = Path(__file__).resolve().parents[2] / "shared" / "bench" / "drivers" / "raw_aiohttp.py"
SIZES = (5000, 20000)


# -- the server ------------------------------------------------------------------------------------------


def frame(delta: dict[str, Any] | None, finish: str | None = None) -> bytes:
    body = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "stream",
        "system_fingerprint": "fp_bench",
        "choices": [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }
    if delta is None:
        body["usage"] = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
    event = b"data: " + msgspec.json.encode(body) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


def serve() -> None:
    scripts: dict[int, bytes] = {}

    async def completions(request: web.Request) -> web.StreamResponse:
        count = int((await request.json())["model"].removeprefix("stream-"))
        if count not in scripts:
            words = b"".join(frame({"content": f" word{i % 1000:03d} and so"}) for i in range(count))
            done = b"e\r\ndata: [DONE]\n\n\r\n"
            scripts[count] = (
                frame({"role": "assistant", "content": ""}) + words + frame({}, "stop") + frame(None) + done
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        # Framed once, and written past aiohttp's writer: the server must not be the bottleneck.
        response._payload_writer.send_headers()  # type: ignore[union-attr]
        request.transport.write(scripts[count])  # type: ignore[union-attr]
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", completions)
    web.run_app(app, host="127.0.0.1", port=0, print=announce, access_log=None)


def announce(text: str) -> None:
    port = text.split("127.0.0.1:")[1].split()[0].strip("/")
    print(f"http://127.0.0.1:{port}/v1", flush=True)


# -- the drivers -----------------------------------------------------------------------------------------


class Raw:
    """The practical limit: split each block by hand, decode, take the text."""

    async def open(self, base_url: str) -> None:
        self.url = base_url + "/chat/completions"
        self.session = aiohttp.ClientSession()

    async def chat(self, model: str, tools: list[Any], on_text: Callable[..., None]) -> None:
        body = msgspec.json.encode({"model": model, "stream": True, "messages": [{"role": "user", "content": "go"}]})
        rest = b""
        async with self.session.post(self.url, data=body, headers={"Content-Type": "application/json"}) as response:
            async for block in response.content.iter_any():
                lines = (rest + block).split(b"\n")
                rest = lines.pop()
                for line in lines:
                    if line.startswith(b"data: ") and line != b"data: [DONE]":
                        for choice in msgspec.json.decode(line[6:])["choices"]:
                            if text := choice["delta"].get("content"):
                                on_text(text)

    async def close(self) -> None:
        await self.session.close()


class Agentflow:
    """An agent as users run it, with a log, a bus tap, a chain subscriber and a reader of the text."""

    async def open(self, base_url: str) -> None:
        self.base_url = base_url
        self.agents: dict[str, Agent] = {}
        self.tapped = 0

    async def chat(self, model: str, tools: list[Any], on_text: Callable[..., None]) -> None:
        if model not in self.agents:
            self.agents[model] = Agent(model=model, base_url=self.base_url, tools=tools)
            self.agents[model].bus.attach(self.count)
        chain = self.agents[model].stream("go")
        chain.subscribe(self.count)
        async for event in chain:
            if event.type == EventType.DELTA:
                on_text(event.text, event.count)

    def count(self, _: object) -> None:
        self.tapped += 1

    async def close(self) -> None:
        for agent in self.agents.values():
            await agent.aclose()


def raw_driver() -> Any:
    if not SHARED.exists() or importlib.util.find_spec("orjson") is None:
        return Raw()
    spec = importlib.util.spec_from_file_location("raw_aiohttp", SHARED)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Driver()


async def drive(name: str, size: int, base_url: str) -> None:
    driver = raw_driver() if name == "raw" else Agentflow()
    await driver.open(base_url)
    used = []
    for repeat in range(4):
        seen = 0

        def on_text(text: str, count: int = 1) -> None:
            nonlocal seen
            seen += count

        began = cpu()
        await driver.chat(f"stream-{size if repeat else 50}", [], on_text)
        if repeat:
            assert seen >= size, (name, seen)
            used.append(cpu() - began)
    await driver.close()
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"us": statistics.median(used) / size * 1e6, "rss": rss}))


def cpu() -> float:
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


def run(*args: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, *args], check=False, capture_output=True, text=True, timeout=120)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--drive", nargs=3)
    args = parser.parse_args()
    if args.serve:
        return serve()
    if args.drive:
        name, size, url = args.drive
        return asyncio.run(drive(name, int(size), url))
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        report(server.stdout.readline().strip(), args.repeats)
    finally:
        server.terminate()
        server.wait()
    return None


def report(url: str, repeats: int) -> None:
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(repeats):
        for size in SIZES:
            for name in ("raw", "agentflow"):
                found.setdefault((name, size), []).append(run("--drive", name, str(size), url))
    median = {key: statistics.median(row["us"] for row in rows) for key, rows in found.items()}
    source = "../shared/bench" if not isinstance(raw_driver(), Raw) else "this file"
    print(f"raw loop from {source}; median of {repeats} runs\n")
    print("| deltas | driver | CPU us/delta | RSS MB | x raw |\n|---|---|---|---|---|")
    for (name, size), us in median.items():
        rss = max(row["rss"] for row in found[name, size])
        print(f"| {size:,} | {name} | {us:.2f} | {rss:.0f} | {us / median['raw', size]:.2f} |")


if __name__ == "__main__":
    main()
