"""Runs the real command as a user's shell would, beside a provider in the test's own event loop."""

import asyncio
import contextlib
import os
import pty
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentflow import Agent, tool
from agentflow.events import decode
from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import ScriptedModel

ENVIRONMENT = {
    "PATH": os.environ["PATH"],  # noqa: TID251  nothing else is passed on
    "AGENTFLOW_MODEL__RETRIES__ATTEMPTS": "1",  # a script has one reply for each request
}


@dataclass
class Finished:
    code: int
    out: str
    err: str

    @property
    def events(self):
        return [decode(line) for line in self.out.splitlines()]


class Command:
    """A running `agentflow`."""

    def __init__(self, process):
        self._process = process

    def interrupt(self, number=signal.SIGINT):
        self._process.send_signal(number)

    async def says(self, words):
        """Wait until standard error has a line with these words."""
        while words not in (line := (await self._process.stderr.readline()).decode()):
            assert line, f"the command ended without saying {words!r}"

    async def line(self):
        """The next event that it writes."""
        return decode(await self._process.stdout.readline())

    async def finished(self, stdin=b""):
        out, err = await self._process.communicate(stdin)
        return Finished(self._process.returncode, out.decode(), err.decode())


class Terminal:
    """A person's terminal: what is typed on it, and what it shows."""

    def __init__(self):
        self._master, self.slave = pty.openpty()
        self._changed = asyncio.Event()
        self.shown = ""

    def __enter__(self):
        asyncio.get_running_loop().add_reader(self._master, self._read)
        return self

    def __exit__(self, *_):
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        os.close(self.slave)

    def _read(self):
        self.shown += os.read(self._master, 4096).decode()
        self._changed.set()

    def type(self, keys):
        os.write(self._master, keys.encode())

    async def shows(self, words, times=1):
        while self.shown.count(words) < times:
            self._changed.clear()
            await self._changed.wait()


async def ended(process):
    """End a process that has not ended by itself, as in a test that failed half-way."""
    if process.returncode is None:
        process.kill()
        await process.communicate()


@pytest.fixture(autouse=True)
def store_path(monkeypatch, tmp_path):
    """The file in which all commands of a test keep their runs: not the one in the home of whoever runs the tests."""
    path = tmp_path / "store.db"
    monkeypatch.setenv("AGENTFLOW_MEMORY__URL", str(path))
    return path


@pytest.fixture(autouse=True)
def ctrl_c_is_heard():
    """Processes inherit an ignored Ctrl-C, as a job in the background of a script has it; the tests send some."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def environment(tmp_path, store_path):
    """`environment(**variables)`: all the variables of a command; one that is None is not set."""

    def make(**variables):
        here = {"HOME": str(tmp_path), "AGENTFLOW_MEMORY__URL": str(store_path)}
        return {name: value for name, value in (ENVIRONMENT | here | variables).items() if value is not None}

    return make


@pytest.fixture
def on_terminal(tmp_path, environment):
    """`async with on_terminal(provider, ...) as (process, terminal)`: a chat that a person types into."""

    @contextlib.asynccontextmanager
    async def start(provider, *arguments, **variables):
        with Terminal() as terminal:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "agentflow", "chat", "--base-url", provider.base_url, "--model", "m"),
                *arguments,
                cwd=tmp_path,
                env=environment(TERM="xterm-256color", **variables),
                stdin=terminal.slave,
                stdout=terminal.slave,
                stderr=terminal.slave,
                start_new_session=True,
            )
            try:
                yield process, terminal
            finally:
                await ended(process)

    return start


@pytest.fixture
def wait_until_asleep():
    """`wait_until_asleep(process)` returns once it waits for something.

    A prompt stands before its read begins, and readline does not hear what comes between.
    """

    def wait(process):
        status = Path(f"/proc/{process.pid}/stat")
        if not status.exists():
            pytest.skip("only Linux says what a process does")
        while status.read_text().rpartition(")")[2].split()[0] != "S":
            pass

    return wait


@pytest.fixture
def agentflow(tmp_path, environment):
    """`async with agentflow("chat", ...) as command`: started in an empty directory, ended with the test."""

    @contextlib.asynccontextmanager
    async def start(*arguments, stdin=asyncio.subprocess.PIPE, **variables):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "agentflow",
            *arguments,
            cwd=tmp_path,
            env=environment(**variables),
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield Command(process)
        finally:
            await ended(process)

    return start


@pytest.fixture
def chat(agentflow):
    """`await chat(provider, "Hello", "--json")`: a whole `agentflow chat` against that provider."""

    async def run(provider, *arguments, stdin=b"", model="fake", **variables):
        flags = ("--base-url", provider.base_url, "--model", model)
        async with agentflow("chat", *arguments, *flags, **variables) as command:
            return await command.finished(stdin)

    return run


@tool
def look(key: str) -> str:
    """Look something up."""
    return f"value of {key}"


@pytest.fixture
def with_store(store_path):
    """`with_store(work)`: what `work(store)` gives, with the store of this test's commands."""

    def run(work):
        async def play():
            store = SqliteStore(store_path)
            try:
                return await work(store)
            finally:
                await store.aclose()

        return asyncio.run(play())

    return run


@pytest.fixture
def talk(with_store):
    """`talk("Hello", session_id="s1")`: a whole run with that script, which is kept; its id."""

    def run(*script, message="Hi", **fields):
        async def play(store):
            async with Agent(model=ScriptedModel(*script), tools=[look], store=store) as agent:
                return (await agent.chat(message, **fields)).run_id

        return with_store(play)

    return run
