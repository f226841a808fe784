import asyncio
import gc
import json
import os
import re
import shutil
import signal
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from agentflow import Agent, Settings
from agentflow.cli import main
from agentflow.cli.serving import http_runner, spare_the_collector
from agentflow.testing import FakeProvider, ScriptedModel, Stall, status, text, tool_calls
from agentflow.transports import create_app
from agentflow.transports.auth import Keys
from tests.transports.served import Frames, read

# As a user of the service would type them.
ASK = """curl -X POST http://localhost:8080/api/agent/chat -H "Content-Type: application/json" -d '{"message": "现在几点了？", "model": "nv/llama-3.1-8b"}'"""  # noqa: E501  verbatim
STREAM = """curl -N http://localhost:8080/api/agent/stream -G --data-urlencode "message=帮我搜索今天新闻" --data-urlencode "model=openrouter/anthropic/claude-sonnet-4\""""  # noqa: E501  verbatim

AGENTS = """
from agentflow import Agent, InMemoryStore
from agentflow.testing import ScriptedModel

store = InMemoryStore()
agent = Agent(name="shop", model=ScriptedModel("Sold."), store=store)
both = [agent, Agent(name="desk", model=ScriptedModel("Noted."), store=store)]
nothing = []
number = 5
"""


class Serving:
    """A process that serves, and a client of it."""

    def __init__(self, process, line, client):
        self.process = process
        self.line = line
        self.address = re.search(r"http://\S+", line)[0]
        self.client = client

    async def post(self, path, body, **options):
        async with self.client.post(self.address + path, json=body, **options) as response:
            return response.status, await response.json()

    def stream(self, body, **options):
        return self.client.post(self.address + "/api/agent/stream", json=body, **options)

    async def ended(self, number=signal.SIGTERM):
        """What it said on standard error, and its exit code, after a signal."""
        self.process.send_signal(number)
        _, said = await self.process.communicate()
        return self.process.returncode, said.decode()


@pytest.fixture
def serving(agentflow):
    """`async with serving(...) as it`: a whole `agentflow serve`, once it is ready."""

    @asynccontextmanager
    async def start(*arguments, logs="off", **variables):
        variables["AGENTFLOW_TELEMETRY__LOGS"] = logs
        async with (
            agentflow("serve", "--port", "0", *arguments, **variables) as command,
            aiohttp.ClientSession() as client,
        ):
            line = (await command._process.stdout.readline()).decode()
            assert line, (await command._process.stderr.read()).decode()
            yield Serving(command._process, line, client)

    return start


def at(provider):
    """The variables that point the providers of the two commands to this one."""
    return {
        "AGENTFLOW_PROVIDERS__NVIDIA__BASE_URL": provider.base_url,
        "AGENTFLOW_PROVIDERS__OPENROUTER__BASE_URL": provider.base_url,
        "NVIDIA_API_KEY": "nvapi-x",
        "OPENROUTER_API_KEY": "sk-or-x",
    }


async def shell(command, tmp_path, address):
    """What a command prints whose localhost:8080 is this address."""
    (tmp_path / ".curlrc").write_text(f'connect-to = "localhost:8080:{address.removeprefix("http://")}"\nsilent\n')
    environment = {"PATH": os.environ["PATH"], "CURL_HOME": str(tmp_path)}  # noqa: TID251  to find curl
    process = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE, env=environment)
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_both_commands_of_a_service_work_as_they_are_typed(serving, tmp_path):
    replies = [tool_calls(("current_time", {})), text("现在是三点。"), text("今天没有新闻。")]
    async with FakeProvider(*replies) as provider, serving(**at(provider)) as here:
        body = json.loads(await shell(ASK, tmp_path, here.address))
        assert (body["content"], body["tool_history"][0]["tool"]) == ("现在是三点。", "current_time")
        told = [data for _, data in read(await shell(STREAM, tmp_path, here.address))]
        assert [one["type"] for one in told][-1] == "done"
        assert "".join(one["rawContent"] for one in told if one["type"] == "content") == "今天没有新闻。"
        assert [request.body["model"] for request in provider.requests] == [
            "meta/llama-3.1-8b-instruct",
            "meta/llama-3.1-8b-instruct",
            "anthropic/claude-sonnet-4",
        ]
        said = [request.body["messages"][-1]["content"] for request in provider.requests]
        assert (said[0], said[2]) == ("现在几点了？", "帮我搜索今天新闻")


async def test_one_line_says_where_it_is_and_a_signal_ends_it(serving):
    for number in (signal.SIGTERM, signal.SIGINT):
        async with serving("--tools", "none") as here:
            assert re.fullmatch(r"serving agent on http://127\.0\.0\.1:\d+\n", here.line)
            async with here.client.get(here.address + "/readyz") as response:
                assert response.status == 200
            assert await here.ended(number) == (0, "")


@pytest.mark.parametrize(("target", "names"), [("shop_agents", "shop"), ("shop_agents:both", "shop, desk")])
async def test_the_agents_of_a_module_are_served(serving, tmp_path, target, names):
    (tmp_path / "shop_agents.py").write_text(AGENTS)
    async with serving(target) as here:
        assert here.line.startswith(f"serving {names} on ")
        assert (await here.post("/api/agent/chat", {"input": "x"}))[1]["content"] == "Sold."
        assert await here.ended() == (0, "")


async def test_the_limits_of_the_settings_hold_for_the_agents_of_a_module(serving, tmp_path):
    (tmp_path / "shop_agents.py").write_text(AGENTS)
    limit = {"PER": "user", "REQUESTS": "1/h"}
    variables = {f"AGENTFLOW_LIMITS__RATES__USERS__{name}": value for name, value in limit.items()}
    async with serving("shop_agents:both", **variables) as here:
        for agent, status in (("shop", 200), ("desk", 429)):
            assert (await here.post("/api/agent/chat", {"input": "x", "agent": agent}))[0] == status
        assert await here.ended() == (0, "")


async def test_at_the_end_what_goes_on_is_cancelled_after_its_grace_and_told(serving):
    stalled = (*text("Hello there.").steps[:1], Stall())
    async with FakeProvider(stalled) as provider:
        variables = at(provider) | {"AGENTFLOW_SERVER__SHUTDOWN_GRACE": "0.1s"}
        async with serving(**variables) as here:
            ask = {"input": "x", "model": "nvidia/m"}
            async with here.stream(ask) as response:
                frames = Frames(response)
                while (await frames.next())["type"] != "delta":
                    pass
                ended = asyncio.gather(here.ended(), frames.rest())
                (code, said), rest = await ended
        assert (code, said) == (0, "")
        assert (rest[-1]["type"], rest[-1]["reason"]) == ("cancelled", "shutdown")


async def test_a_process_that_was_killed_leaves_its_runs_to_the_next(serving):
    stalled = (*text("Hello there.").steps[:1], Stall())
    async with FakeProvider(stalled, text("Once more.")) as provider:
        ask = {"input": "x", "model": "nvidia/m", "session_id": "s1", "request_id": "r1"}
        async with (
            serving(**at(provider)) as here,
            here.client.post(f"{here.address}/api/agent/stream", json=ask) as it,
        ):
            frames = Frames(it)
            while (event := await frames.next())["type"] != "delta":
                pass
            here.process.kill()
            await here.process.wait()
        async with serving(**at(provider)) as here:
            headers = {"Last-Event-ID": f"{event['run_id']}:1"}
            async with here.client.post(f"{here.address}/api/agent/stream", json=ask, headers=headers) as it:
                assert (await Frames(it).next())[
                    "seq"
                ] == 2  # it is the same run; when it goes on is the store's matter


async def test_keys_are_read_anew_when_it_is_told_to(serving, tmp_path, capsys):
    key, table = new_key(capsys, "--user", "alice", "--operator")
    (tmp_path / "agentflow.toml").write_text(table)
    headers = {"Authorization": f"Bearer {key}"}
    async with serving() as here:
        assert (await here.post("/api/tickets", {}, headers=headers))[0] == 200
        assert (await here.post("/api/tickets", {}))[0] == 401
        (tmp_path / "agentflow.toml").write_text(table.replace("hash", "harsh"))
        here.process.send_signal(signal.SIGHUP)
        assert b"the keys stay as they were: setting" in await here.process.stderr.readline()
        assert (await here.post("/api/tickets", {}, headers=headers))[0] == 200
        (tmp_path / "agentflow.toml").write_text("")
        here.process.send_signal(signal.SIGHUP)
        while (await here.post("/api/tickets", {}, headers=headers))[0] != 401:
            pass
        assert (await here.ended())[0] == 0


async def test_garbage_on_the_port_is_not_repeated_in_a_log(serving):
    async with serving() as here:
        port = int(here.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header \x00: a-secret\r\n\r\n")
        assert b" 400 " in (await reader.read())[:20]
        writer.close()
        assert await here.ended() == (0, "")


def new_key(capsys, *arguments):
    """A key that the command has made, and the settings it has printed."""
    assert main(["keys", "new", *arguments]) == 0
    said, _, table = capsys.readouterr().out.partition("\n\n")
    return said.rpartition(" ")[2], table


def test_a_new_key_is_shown_with_what_the_settings_get_of_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    key, table = new_key(capsys, "--user", "alice")
    assert key not in table
    (tmp_path / "agentflow.toml").write_text(table)
    caller = Keys(Settings().server.keys).caller(key.encode())
    assert (caller.user_id, caller.scopes) == ("alice", {"user"})
    assert main(["keys", "new", "--user", "no one"]) == 2
    assert ".user'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "agentflow keys new"),
        (["--port", "70000"], "65535"),
        (["no_such_module:agent"], "module 'no_such_module' cannot be imported"),
        (["agents.py:agent"], "name it as a module: agents:agent"),
        (["served_agents:nothing"], "names no Agent and no list of them"),
        (["served_agents:number"], "names no Agent and no list of them"),
        (["served_agents:missing"], "names no Agent and no list of them"),
        (["served_agents", "--tools", "none"], "leave --tools out"),
        (["--host", "256.1.1.1"], "keys"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(arguments, words, tmp_path, monkeypatch, capsys):
    (tmp_path / "served_agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["serve", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, words in err, err.count("\n")) == ("", True, 1)


async def test_a_port_that_is_taken_is_said_in_a_line(serving, agentflow):
    async with serving() as here:
        port = here.address.rpartition(":")[2]
        async with agentflow("serve", "--port", port) as command:
            finished = await command.finished()
        assert finished.code == 2
        assert f"cannot listen on 127.0.0.1:{port}: " in finished.err
        assert finished.err.count("\n") == 1


async def test_the_log_has_a_line_for_what_happens_and_no_secret_of_any_kind(serving):
    secrets = {"key": "nvapi-canary-0123456789abcdef", "password": "correct-horse", "said": "canary of the user"}
    replies = [
        status(401, {"error": {"message": f"no such key: {secrets['key']}"}}),
        tool_calls(("calculate", {"expression": f"password={secrets['password']}"})),
        text("done"),
        text("really done"),
    ]
    async with (
        FakeProvider(*replies) as provider,
        serving(logs="json", **at(provider) | {"NVIDIA_API_KEY": secrets["key"]}) as here,
    ):
        for _ in range(2):
            await here.post("/api/agent/chat", {"input": secrets["said"], "model": "nv/llama-3.1-8b"})
        async with here.client.get(here.address + "/metrics") as response:
            metrics = await response.text()
        _, said = await here.ended()
    lines = [json.loads(line) for line in said.splitlines()]
    happened = [line["event"] for line in lines if line["logger"] == "agentflow.runs"]
    assert happened.count("run began") == 2
    assert {"run failed", "run ended", "tool failed"} <= set(happened)
    assert 'agentflow_runs_total{agent="agent",outcome="failed"} 1.0' in metrics
    for secret in secrets.values():
        assert secret not in said
        assert secret not in metrics


@pytest.mark.virtual_time
@pytest.mark.parametrize("begun", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
async def test_a_request_whose_headers_do_not_come_is_not_waited_for(begun):
    async with Agent(model=ScriptedModel("hi")) as agent:
        runner = http_runner(create_app([agent]))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        reader, writer = await asyncio.open_connection(*runner.addresses[0])
        writer.write(begun)
        assert await reader.read() == b""
        assert asyncio.get_running_loop().time() == pytest.approx(75.0, abs=1.0)
        writer.close()
        await runner.cleanup()


def test_a_serving_process_is_stopped_by_the_garbage_collector_less_often_and_for_shorter():
    before, kept = gc.get_threshold(), gc.get_freeze_count()
    try:
        spare_the_collector()
        assert gc.get_freeze_count() > kept
        assert gc.get_threshold()[0] > before[0]
    finally:
        gc.set_threshold(*before)
