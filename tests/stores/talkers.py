"""Agents in processes of their own, on one store. Run as `python talkers.py PATH WHAT NAME` by `children.started`."""

import asyncio
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LEASE = 0.5  # seconds, so that a dead process is noticed soon


def say(*words):
    print(*words, flush=True)  # noqa: T201  the parent reads it


async def answer(request):
    """Tells what was said, and what was said before that."""
    said = [message.text for message in request.messages if message.role == "user"]
    yield ModelChunk(text=f"{said[-1]} after {said[-2] if len(said) > 1 else 'nothing'}", finish_reason="stop")


async def talk(store, name, count):
    """Say `count` things in the session."""
    async with Agent(model=answer, store=store) as agent:
        for number in range(int(count)):
            await agent.chat(f"{name}-{number}", session_id="s")
    say("done")


async def freeze(store, name, _):
    """Stand still in the middle of an answer until a line comes, then go on with it, and say how that ended."""
    thawed = asyncio.Event()

    async def model(request):
        yield ModelChunk(text="half, ")
        await thawed.wait()
        yield ModelChunk(text="whole", finish_reason="stop")

    async with Agent(model=model, store=store) as agent:
        chain = agent.start(name, session_id="s")
        async for event in chain:
            if event.type is EventType.DELTA:
                break
        say(chain.run_id)
        sys.stdin.readline()  # the whole loop stands still
        thawed.set()
        try:
            say((await chain).type)
        except StoreError as error:
            say(type(error).__name__)


async def main(path, what, name):
    say("ready")
    sys.stdin.readline()
    kind, _, count = what.partition(" ")
    store = SqliteStore(path)
    await {"talk": talk, "freeze": freeze}[kind](store, name, count)
    await store.aclose()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from agentflow import Agent, ModelChunk
    from agentflow.chain import leases
    from agentflow.errors import StoreError
    from agentflow.events import EventType
    from agentflow.stores.sqlite import SqliteStore

    leases.LEASE_SECONDS = LEASE
    asyncio.run(main(*sys.argv[1:]))
