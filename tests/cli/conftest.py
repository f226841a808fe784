"""Runs the real command as a user's shell would, beside a provider in the test's own event loop."""

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass

import pytest

from agentflow.events import decode


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

    async def finished(self, stdin=b""):
        out, err = await self._process.communicate(stdin)
        return Finished(self._process.returncode, out.decode(), err.decode())


@pytest.fixture
def agentflow(tmp_path):
    """`async with agentflow("chat", ...) as command`: started in an empty directory, ended with the test."""

    @contextlib.asynccontextmanager
    async def start(*arguments, stdin=asyncio.subprocess.PIPE, **variables):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "agentflow",
            *arguments,
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **variables},  # noqa: TID251  only PATH is passed on
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield Command(process)
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()

    return start


@pytest.fixture
def chat(agentflow):
    """`await chat(provider, "Hello", "--json")`: a whole `agentflow chat` against that provider."""

    async def run(provider, *arguments, stdin=b"", model="fake", **variables):
        flags = ("--base-url", provider.base_url, "--model", model)
        async with agentflow("chat", *arguments, *flags, **variables) as command:
            return await command.finished(stdin)

    return run
