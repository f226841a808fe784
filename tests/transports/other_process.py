"""A second server, in a process of its own, on a store that it shares with the tests: `python other_process.py URL`."""

import asyncio
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


class Other:
    """The server of another process: where it listens, and a client."""

    def __init__(self, port, client):
        self.base = f"http://127.0.0.1:{port}"
        self.client = client


@contextmanager
def other_process(url, client):
    """Another process that serves what is in the store at `url`: `redis://`, `unix://` or a path of SQLite's."""
    command = [sys.executable, str(Path(__file__)), url]
    child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Other(int(child.stdout.readline()), client)
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


async def main(url):
    store = RedisStore(url) if "://" in url else SqliteStore(url)
    async with aclosing(store), served(Agent(model=ScriptedModel(), store=store)) as here:
        print(here.port, flush=True)  # noqa: T201  the parent reads it
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from contextlib import aclosing

    from agentflow import Agent
    from agentflow.stores.redis import RedisStore
    from agentflow.stores.sqlite import SqliteStore
    from agentflow.testing import ScriptedModel
    from tests.transports.served import served

    asyncio.run(main(*sys.argv[1:]))
