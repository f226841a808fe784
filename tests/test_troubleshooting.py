"""README's table of troubles, a line each: made to happen, seen where it says, and cured as it says."""

import asyncio
import contextlib
import json
import shutil
import socket
import tempfile
from contextlib import asynccontextmanager, contextmanager

import aiohttp
import pytest

from agentflow import Agent, InMemoryStore, Settings, tool
from agentflow.cli.doctor import examine
from agentflow.errors import ConfigError, ModelStatusError, RateLimitedError, RunFailed, SessionBusyError
from agentflow.events import EventType
from agentflow.observability.gates import build_gates
from agentflow.observability.loop_lag import LoopWatch
from agentflow.observability.metrics import Metrics
from agentflow.observability.prometheus import Exposition
from agentflow.stores.redis_server import RedisServer
from agentflow.testing import ScriptedModel, assert_laws, call, run_virtual
from agentflow.tools.lint import lint_all
from agentflow.tools.registry import ToolRegistry
from tests.builders import of
from tests.chain.crashes import acting, kill_at, saying
from tests.observability.mixed import value, values
from tests.redis_servers import PROGRAMS, RedisProcess
from tests.transports.served import Frames, Gate, served, settled


@contextmanager
def counted(agent):
    """A function that gives the sum of the samples of a metric, as /metrics has them."""
    exposition = Exposition()
    attached = Metrics(exposition.meter, [agent]).attach()
    try:
        yield lambda name, **labels: value(values(exposition.text()[0].decode()), name, **labels)
    finally:
        attached.dispose()
        exposition.close()


CALLS = 4  # of one round


async def events_of(agent, text="go", **fields):
    return [event async for event in agent.stream(text, **fields)]


def codes(log):
    return [event.code for event in of(log, EventType.WARNING)]


async def findings(subject):
    return [(finding.level, finding.text) for finding in await examine() if finding.subject == subject]


# -- tools -------------------------------------------------------------------------------------------------


@tool
def order(what: str, count: int = 1) -> str:
    """Order something from the shop.

    Args:
        what: The article's name.
        count: How many of it.
    """
    return f"{count} {what}"


async def test_a_tool_that_is_not_registered():
    def agent_with(*tools):
        return Agent(model=ScriptedModel([call("order", what="tea")], "I could not.", "Really."), tools=tools)

    agent = agent_with()
    with counted(agent) as read:
        async with agent:
            (error,) = of(await events_of(agent), EventType.TOOL_ERROR)
        assert (error.status, "there is no tool 'order'" in error.error.message) == ("unknown_tool", True)
        assert read("agentflow_tool_calls_total", status="unknown_tool") == 1
    async with agent_with(order) as agent:
        assert len(of(await events_of(agent), EventType.TOOL_COMPLETE)) == 1


async def test_invented_arguments():
    @tool
    def vague(path: int) -> str:
        """Do it."""
        return "done"

    made_up = ScriptedModel([call("vague", path="the one from yesterday")], [call("vague", path=1)], "done")
    agent = Agent(model=made_up, tools=[vague])
    with counted(agent) as read:
        async with agent:
            (error,) = of(await events_of(agent), EventType.TOOL_ERROR)
        assert (error.status, "path" in error.result) == ("invalid_arguments", True)
        assert read("agentflow_tool_calls_total", status="invalid_arguments") == 1
    told = lint_all(ToolRegistry([vague]))
    assert any("declared integer, which a path is not" in line for line in told)
    assert lint_all(ToolRegistry([order])) == []


async def test_a_loop_of_calls():
    def agent_with(answer, *then, **options):
        @tool(**options)
        def status() -> str:
            """Tell how far the work is, to be asked until it is done."""
            return answer()

        return Agent(model=ScriptedModel(*[[call("status")]] * 3, *then), tools=[status])

    agent = agent_with(lambda: "at work", *[[call("status")]] * 5)
    with counted(agent) as read:
        async with agent:
            log = await events_of(agent)
        assert (set(codes(log)), log[-1].finish_reason) == ({"loop_guard"}, "loop")
        assert read("agentflow_warnings_total", code="loop_guard") == len(codes(log))
    steps = iter(range(1, 4))
    async with agent_with(lambda: f"{next(steps)} of 3 steps done", "It is done.", idempotent=True) as agent:
        log = await events_of(agent)
    assert (codes(log), log[-1].finish_reason, len(log[-1].tools)) == ([], "stop", 3)


async def test_a_pool_that_is_exhausted():
    def agent_with(size):
        waiting = []

        @tool(pool="slow", retries=0, timeout=20)
        def report(number: int) -> str:
            """Write the report of this number."""
            waiting.append(number)
            while len(waiting) < min(size, CALLS):
                pass
            return f"report {number}"

        calls = [call("report", number=number) for number in range(CALLS)]
        settings = Settings(pools={"slow": {"size": size, "queue": 0}})
        return Agent(model=ScriptedModel(calls, "done", "done"), tools=[report], settings=settings)

    async with agent_with(1) as agent:
        log = await events_of(agent)
        refused = of(log, EventType.TOOL_ERROR)
        assert refused
        assert all("pool 'slow'" in error.error.message for error in refused)
        assert next(pool for pool in agent.pools if pool.name == "slow").size == 1
    async with agent_with(CALLS) as agent:
        assert of(await events_of(agent), EventType.TOOL_ERROR) == []


async def test_a_blocked_loop():
    seen = []

    def agent_with(wait):
        return Agent(model=ScriptedModel([call("wait")], "done"), tools=[wait])

    @asynccontextmanager
    async def watched(agent):
        def report(message, data):
            for chain in agent.live():
                chain.warn("loop_lag", message, data)

        watch = LoopWatch(lambda: any(agent.live()), lambda _: None, report)
        seen[:] = [watch]
        agent.bus.attach(watch.see)
        async with agent:
            yield
        watch.close()

    @tool(name="wait")
    async def on_the_loop() -> str:
        """Wait, and let nobody else do anything."""
        while seen[0]._held is None:
            pass
        return "at last"

    agent = agent_with(on_the_loop)
    async with watched(agent):
        log = await events_of(agent)
    assert [(warning.code, warning.data["held_by"]) for warning in of(log, EventType.WARNING)] == [
        ("loop_lag", "on_the_loop")
    ]

    going_on = asyncio.Event()

    @tool(name="wait")
    def in_a_thread() -> str:
        """Wait, in a thread of its own."""
        asyncio.run_coroutine_threadsafe(going_on.wait(), loop).result()
        return "at last"

    loop, agent = asyncio.get_running_loop(), agent_with(in_a_thread)
    async with watched(agent):
        chain = agent.start("go")
        await settled()
        going_on.set()
        await chain
        assert seen[0]._held is None


# -- models, stores ----------------------------------------------------------------------------------------


@pytest.fixture
def configured(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return lambda text: (tmp_path / "agentflow.toml").write_text(text, encoding="utf-8")


async def test_the_wrong_provider(configured):
    configured('[model]\ndefault = "opnai/gpt-5-mini"\n')
    ((level, text),) = await findings("model")
    assert (level, "opnai" in text) == ("problem", True)
    with pytest.raises(ConfigError, match="opnai"):
        Agent().start("go")
    configured('[aliases]\n"gpt" = "ollama/gpt-oss"\n[model]\ndefault = "gpt"\n')
    assert await findings("model string") == [("ok", "'gpt' means ollama/gpt-oss")]
    async with Agent(model=ScriptedModel("hello")) as agent:
        (start,) = of(await events_of(agent), EventType.MODEL_START)
    assert (start.provider, start.model) == ("scripted", "scripted")


async def test_redis_without_an_append_only_file(configured):
    folder = tempfile.mkdtemp()  # a socket's path has to be short
    server = RedisProcess(folder, PROGRAMS["redis8"], aof=False)
    try:
        configured(f'[memory]\nstore = "redis"\nurl = "{server.url}"\n')
        ((level, text),) = await findings("store")
        assert (level, "set appendonly yes" in text) == ("problem", True)
        raw = RedisServer(server.url, prefix="x", ttl=1.0, call_timeout=5.0, connections=1, require_aof=None)
        await raw.call("CONFIG", "SET", "appendonly", "yes")
        await raw.aclose()
        ((level, _),) = await findings("store")
        assert level == "ok"
    finally:
        server.kill()
        shutil.rmtree(folder)


def test_a_run_that_is_left_open_after_a_crash():
    def story(store, done):
        return Agent(model=saying((call("act", what="a"),)), tools=[acting(done, "act")], store=store)

    store, done = kill_at(story, lambda event: event.type is EventType.TOOL_START)

    async def second_life():
        (record,) = await store.list_runs(open_only=True)  # what `agentflow runs --open` shows
        async with story(store, done) as agent:
            (chain,) = await agent.recover()  # as `agentflow serve` does when it starts
            assert (chain.run_id, (await chain).type) == (record.run_id, EventType.FINAL)
            assert_laws([event async for event in agent.follow(chain.run_id)])
        assert not await store.list_runs(open_only=True)

    run_virtual(second_life())


# -- load --------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_limit_that_refuses():
    def agent_with(requests):
        rates = {"users": {"per": "user", "requests": requests}}
        gate = build_gates(Settings(limits={"rates": rates, "wait": 0.001}).limits)
        return Agent(model=ScriptedModel(*["hi"] * 3), gate=gate)

    async with agent_with("1/m") as agent:
        await agent.chat("go", user_id="u")
        with pytest.raises(RateLimitedError, match=r"'users\.requests' is reached; try again in 60"):
            await agent.chat("go", user_id="u")
        assert agent.gate.snapshot()["refused"] == {"users.requests": 1}
    async with agent_with("60/m") as agent:
        for _ in range(3):
            await agent.chat("go", user_id="u")


@pytest.mark.virtual_time
async def test_a_breaker_that_is_open():
    down = ModelStatusError("overloaded", provider="scripted", status=503)
    limits = {"breaker": {"window": 4, "minimum": 1, "open_for": 30}}
    gate = build_gates(Settings(limits=limits).limits)
    settings = Settings(model={"retries": {"attempts": 1}})
    agent = Agent(model=ScriptedModel([down], "hello", "hello", "hello"), gate=gate, settings=settings)
    with counted(agent) as read:
        async with agent:
            log = await events_of(agent)
            assert "breaker" in codes(log)
            with pytest.raises(RunFailed, match="has failed too often and is not called for another"):
                await agent.chat("go")
            assert gate.states() == {"model:scripted": "open"}
            assert read("agentflow_breaker_state", breaker="model:scripted") == 2
            await asyncio.sleep(30)
            for _ in range(2):
                assert (await agent.chat("go")).text == "hello"
            assert gate.states() == {"model:scripted": "closed"}


@pytest.mark.virtual_time
async def test_a_session_that_is_busy():
    for busy in ("reject", "queue"):
        settings, model = Settings(session={"busy": busy}), Gate()
        async with Agent(model=model, settings=settings, store=InMemoryStore()) as agent:
            first = agent.start("one", session_id="s")
            await model.waiting.wait()
            second = agent.start("two", session_id="s")
            if busy == "reject":
                with pytest.raises(SessionBusyError):
                    await second.reply()
                model.open.set()
            else:
                model.open.set()
                assert (await second).text == "first last"
            await first


# -- streams -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def proxy(port, patience):
    """Passes on what comes, as it comes, and cuts an answer on which nothing comes for `patience` seconds."""

    async def passed(reader, writer, patience=None):
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(patience):
                    data = await reader.read(65536)
                if not data:
                    return
                writer.write(data)

    async def relay(reader, writer):
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.TaskGroup() as group:
            there = group.create_task(passed(reader, their_writer))
            await passed(their_reader, writer, patience)
            there.cancel()
        for one in (writer, their_writer):
            one.close()
            with contextlib.suppress(OSError):
                await one.wait_closed()

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.virtual_time
@pytest.mark.parametrize("ping", [90, 15])
async def test_a_stream_that_a_proxy_cuts(ping):
    model = Gate()
    async with served(Agent(model=model), ping=ping) as here, proxy(here.port, 60) as port:
        address = f"http://127.0.0.1:{port}/api/agent/stream"
        async with here.client.post(address, json={"input": "x", "detached": True}) as response:
            assert response.headers["X-Accel-Buffering"] == "no"
            frames = Frames(response)
            seen = [await frames.next()]
            await model.waiting.wait()
            asyncio.get_running_loop().call_later(200, model.open.set)
            cut = False
            try:
                while (event := await frames.next()) is not None:
                    seen.append(event)
            except aiohttp.ClientPayloadError:
                cut = True
        assert cut == (ping > 60) == (seen[-1]["type"] != "final")
        if cut:  # a client goes on where it was, and has it all
            async with here.get(
                f"/api/runs/{seen[0]['run_id']}/events", headers={"Last-Event-ID": frames.last_id}
            ) as response:
                seen += await Frames(response).rest()
            assert here.server.readings.resumes == 1
        assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))


async def test_a_slow_reader():
    @tool
    async def lots():
        """Give a lot."""
        for _ in range(5):
            yield {"text": "y" * 150_000}

    agent = Agent(model=ScriptedModel([call("lots") for _ in range(6)], "done"), tools=[lots])
    async with served(agent, stall=0.05, ping=60) as here:
        body = json.dumps({"input": "x", "detached": True}).encode()
        head = "POST /api/agent/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", here.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            while not here.server.readings.dropped:
                await settled()
        async with here.get("/metrics") as response:
            assert value(values(await response.text()), "agentflow_stream_dropped_total") == 1
        (record,) = await here.server.store.list_runs()
        async with here.get(f"/api/runs/{record.run_id}/events?after=0") as response:
            assert (await Frames(response).rest())[-1]["type"] == "final"
