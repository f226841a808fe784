"""Processes that talk in twenty sessions at once until they are killed, each on what the one before it has left.

Run as `python conversations.py STORE FOLDER`, where STORE is a file or the URL of a Redis server. Each line that comes
is the name of a life, for which a process is forked, so that none has to import everything anew. It says "alive PID",
recovers what was left and talks; the one named LAST ends when what was left has ended. Each event that a log has
accepted is said as "RUN SEQ TYPE", and in the end comes "dead CODE". The tools write what they do into FOLDER/done,
the model each word that it gives into FOLDER/given.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SESSIONS = [f"s{number}" for number in range(20)]
LAST = "last"
WORDS = 25  # of the model in one reply
PACE = 0.002  # seconds at least from one word to the next
WINDOW_MS = 20  # in which words are joined


class Lives:
    """One process after another, as whoever kills them sees them."""

    def __init__(self, program):
        self._program = program

    def live(self, name, count=None, kill=os.kill):
        """What a process tells of until it has told of `count` events and is killed; without a count, to its end."""
        self._program.stdin.write(f"{name}\n")
        self._program.stdin.flush()
        told, (alive, pid) = [], self._words()
        assert alive == "alive"
        while True:
            if len(told) == count:
                kill(int(pid), signal.SIGKILL)
            words = self._words()
            if words[0] == "dead":
                assert words[1] == ("0" if count is None else str(-signal.SIGKILL))
                return told
            told.append(words)

    def _words(self):
        return tuple(self._program.stdout.readline().split())


@contextlib.contextmanager
def lives(store, folder):
    """The program that forks them; it is killed in the end, with whom it has forked."""
    command = [sys.executable, str(Path(__file__)), str(store), str(folder)]
    program = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield Lives(program)
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        program.stdin.close()
        program.stdout.close()


def say(*words):
    try:
        os.write(1, (" ".join(map(str, words)) + "\n").encode())  # at once and whole, whenever the process is killed
    except BrokenPipeError:
        os._exit(1)  # there is nobody any more who would kill it


def say_event(event):
    say(event.run_id, event.seq, event.type.value)


def make(store, folder, name):
    """An agent that does something once and something that may be done again, and notes what it does."""
    notes = {what: os.open(Path(folder, what), os.O_CREAT | os.O_WRONLY | os.O_APPEND) for what in ("done", "given")}
    replies = itertools.count()

    def note(what, line):
        os.write(notes[what], f"{line}\n".encode())

    @tool
    async def once(what: str) -> str:
        """Do what must not be done twice."""
        await asyncio.sleep(PACE)
        note("done", f"once {what}")
        await asyncio.sleep(PACE)
        return "done"

    @tool(idempotent=True)
    async def again(what: str):
        """Do what may be done twice, in pieces."""
        note("done", f"again {what}")
        for piece in "abc":
            await asyncio.sleep(PACE)
            yield piece

    @tool(idempotency_key=["what"])
    def keyed(what: str) -> str:
        """Do it in a thread."""
        note("done", f"keyed {what}")
        return "done"

    async def model(request):
        if request.response_format is not None:  # of a summary
            yield ModelChunk(text='{"facts": [], "decisions": [], "questions": [], "pinned": [], "confidence": 1}')
            return
        asked = [message for message in request.messages if message.role == "user"][-1].text
        answered = request.messages[-1].role == "tool"
        reply = f"{name}:{next(replies)}"
        for number in range(WORDS):
            note("given", f"{reply}:{number}")
            yield ModelChunk(text=f"{reply}:{number} ")
            await asyncio.sleep(PACE)
        calls = () if answered else (call("once", what=asked), call("again", what=asked), call("keyed", what=asked))
        yield ModelChunk(calls=calls, finish_reason="tool_calls" if calls else "stop")

    return Agent(model=model, tools=[once, again, keyed], store=store, settings=Settings(flow={"window_ms": WINDOW_MS}))


async def talk(agent, name, session_id, left):
    """Let what was left in the session end, then talk."""
    if left is not None:
        await left
    for number in itertools.count() if name != LAST else ():
        await agent.start(f"{name} {session_id} {number}", session_id=session_id)


async def live(path, folder, name):
    store = RedisStore(path, require_aof=True) if "://" in path else SqliteStore(path)
    async with make(store, folder, name) as agent:
        agent.bus.attach(say_event)
        left = {chain.session_id: chain for chain in await agent.recover()}
        await asyncio.gather(*(talk(agent, name, session_id, left.get(session_id)) for session_id in SESSIONS))
    await store.aclose()


def main(path, folder):
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            say("alive", os.getpid())
            asyncio.run(live(path, folder, line.strip()))
            return
        _, status = os.waitpid(pid, 0)
        say("dead", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from agentflow import Agent, ModelChunk, tool
    from agentflow.settings import Settings
    from agentflow.stores.redis import RedisStore
    from agentflow.stores.sqlite import SqliteStore
    from agentflow.testing import call

    main(*sys.argv[1:])
