"""A process that recovers what another has left, and then talks in five sessions at once until it is killed.

Run as `python conversations.py STORE LEDGER [NAME]`; without a NAME it ends where it would begin to talk. It says each
event that its log has accepted as "run seq type", and its tools write what they do into the file LEDGER.
"""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SESSIONS = 5


@contextlib.contextmanager
def process(store, ledger, *name):
    """The process; it is killed in the end."""
    command = [sys.executable, str(Path(__file__)), str(store), str(ledger), *name]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def make(store, ledger):
    """An agent that does something once and something that may be done again, and says so."""

    def note(line):
        with open(ledger, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    @tool
    async def once(what: str) -> str:
        """Do what must not be done twice."""
        await asyncio.sleep(0.002)
        note(f"once {what}")
        await asyncio.sleep(0.002)
        return "done"

    @tool(idempotent=True)
    async def again(what: str):
        """Do what may be done twice, in pieces."""
        note(f"again {what}")
        for piece in "abc":
            await asyncio.sleep(0.002)
            yield piece

    @tool(idempotency_key=["what"])
    def keyed(what: str) -> str:
        """Do it in a thread."""
        note(f"keyed {what}")
        return "done"

    async def model(request):
        asked = [message for message in request.messages if message.role == "user"][-1].text
        answered = [message.role for message in request.messages][-1] == "tool"
        for words in ("Let ", "me ", "see. "):
            yield ModelChunk(text=words)
            await asyncio.sleep(0.002)
        calls = () if answered else (call("once", what=asked), call("again", what=asked), call("keyed", what=asked))
        yield ModelChunk(calls=calls, finish_reason="tool_calls" if calls else "stop")

    return Agent(model=model, tools=[once, again, keyed], store=store, settings=Settings(flow={"window_ms": 1}))


async def talk(agent, name, session_id):
    for number in range(1_000_000):
        await agent.start(f"{name} {session_id} {number}", session_id=session_id)


def say(event):
    print(event.run_id, event.seq, event.type.value, flush=True)  # noqa: T201  the parent reads it


async def main(path, ledger, *name):
    store = SqliteStore(path)
    async with make(store, ledger) as agent:
        agent.bus.attach(say)
        for chain in await agent.recover():
            await chain
        if name:
            await asyncio.gather(*(talk(agent, name[0], f"s{number}") for number in range(SESSIONS)))
    await store.aclose()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from agentflow import Agent, ModelChunk, tool
    from agentflow.settings import Settings
    from agentflow.stores.sqlite import SqliteStore
    from agentflow.testing import call

    asyncio.run(main(*sys.argv[1:]))
