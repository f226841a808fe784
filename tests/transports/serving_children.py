"""A process that serves an agent on a store that others share. Run as `python serving_children.py STORE`, a file or the
URL of a Redis server. It says its port, and serves until it is killed; what nobody reads it ends after `GRACE`.
"""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GRACE = 0.5  # seconds
PAUSE = 0.02  # seconds between two words of the model


@contextlib.contextmanager
def serving(store):
    """The process, and where it serves."""
    command = [sys.executable, str(Path(__file__)), str(store)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield child, f"http://127.0.0.1:{int(child.stdout.readline())}"
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


class Talker:
    """Says words for ever, or has something paid when that is asked for."""

    provider = name = "talker"

    async def stream(self, request):
        if request.messages[-1].role == "tool":
            yield ModelChunk(text="So it is.", finish_reason="stop")
        elif request.messages[-1].text == "pay":
            yield ModelChunk(calls=(call("pay", amount=5),), finish_reason="tool_calls")
        else:
            for number in range(1_000_000):
                yield ModelChunk(text=f"{number} ")
                await asyncio.sleep(PAUSE)


def talking(store):
    """The agent."""

    @tool(approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    return Agent(model=Talker(), tools=[pay], store=store)


def store_at(path):
    """The store at a file or a server."""
    return RedisStore(path) if "://" in path else SqliteStore(path)


async def main(path):
    async with served(talking(store_at(path)), grace=GRACE) as here:
        print(here.port, flush=True)  # noqa: T201  the parent reads it
        await asyncio.get_running_loop().create_future()


sys.path.insert(0, str(ROOT))
from agentflow import Agent, tool  # noqa: E402  the path is set for the child first
from agentflow.models.base import ModelChunk  # noqa: E402
from agentflow.stores.redis import RedisStore  # noqa: E402
from agentflow.stores.sqlite import SqliteStore  # noqa: E402
from agentflow.testing import call  # noqa: E402
from tests.transports.served import served  # noqa: E402

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
