"""A real Prometheus that scrapes a server of the tests, and promtool."""

import asyncio
import json
import shutil
import socket
import subprocess
from contextlib import asynccontextmanager

CONFIG = """
global: {{scrape_interval: 200ms, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: agentflow
    static_configs: [{{targets: ["{target}"]}}]
"""


def is_installed():
    return all(shutil.which(program) for program in ("prometheus", "promtool"))


def promtool(*arguments, text=""):
    """Its exit code, and all that it said."""
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


class Scrapes:
    """Counts what Prometheus has read, so that tests wait for it rather than for a time."""

    def __init__(self, server):
        self._text = server.exposition
        self._count = 0
        self._more = asyncio.Event()
        server.exposition = self._read

    def _read(self, accept):
        self._count += 1
        self._more.set()
        return self._text(accept)

    async def wait(self, count):
        """Until so many more have begun."""
        wanted = self._count + count
        while self._count < wanted:
            self._more.clear()
            await self._more.wait()


class Prometheus:
    """One that runs, and how it is asked."""

    def __init__(self, base, client):
        self._base = base
        self._client = client

    async def get(self, path, **parameters):
        async with self._client.get(self._base + path, params=parameters) as response:
            return json.loads(await response.text())["data"]

    async def query(self, expression):
        """The values of what it finds, as texts."""
        return [found["value"][1] for found in (await self.get("/api/v1/query", query=expression))["result"]]


@asynccontextmanager
async def prometheus(folder, target, rules, client):
    """It scrapes `target` five times a second, with the rules in a file; ready when this begins."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "prometheus.yml").write_text(CONFIG.format(target=target, rules=rules))
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stderr=asyncio.subprocess.PIPE,
    )
    lines = []
    try:
        while not any("ready to receive web requests" in line for line in lines):
            line = (await process.stderr.readline()).decode()
            assert line, "".join(lines)
            lines.append(line)
        reading = asyncio.create_task(process.stderr.read())  # noqa: TID251  so that it never waits for us
        yield Prometheus(f"http://127.0.0.1:{port}", client)
    finally:
        process.kill()
        await process.wait()
        await reading
