"""What other processes do to a store in the tests. Run as `python children.py PATH WHAT [NAME]`; each says when it is
ready, and begins when a line comes.
"""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


@contextlib.contextmanager
def started(path, what, *names, script=__file__):
    """Child processes, one for each name, that have all begun in the same moment."""
    command = [sys.executable, str(script), str(path), what]
    children = [
        subprocess.Popen([*command, name], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    try:
        for child in children:
            assert child.stdout.readline() == "ready\n"
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        yield children
    finally:
        for child in children:
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()


def say(*words):
    print(*words, flush=True)  # noqa: T201  the parent reads it


async def append(store, name):
    """Append to 20 runs for ever, and say what was done."""

    async def write(number):
        for seq in range(1, 1_000_000):
            await store.append(f"{name}-{number}", log(f"{name}-{number}", seq, text="x" * 500))
            say(f"{name}-{number}", seq)

    await asyncio.gather(*(write(number) for number in range(20)))


async def converse(store, name):
    """25 turns in one session, each of the version that it found."""
    for number in range(25):
        session = await store.open_session(KEY, f"{name}-{number}")
        words = Message(role="user", content=str(session.version))
        turn = Turn(run_id=f"{name}-{number}", outcome="final", messages=(words,))
        await store.close_session(KEY, f"{name}-{number}", turn)


async def hold(store, name):
    """Hold the session, own the run, wait in another session's line, and hang."""
    await store.acquire_lease(name, name, 0.2)
    await store.open_session(KEY, name)
    await store.append(name, log(name))
    waiting = asyncio.get_running_loop().create_task(store.open_session(SessionKey("other"), f"{name} waits"))
    await in_line(store, f"{name} waits")
    say("holds")
    await waiting


async def follow(store, name):
    """Say the events of a run as they come."""
    after, ended = 0, False
    while not ended:
        await store.wait(name, after)
        for event in await store.read(name, after, 100):
            after, ended = event.seq, event.type in TERMINAL_TYPES
            say(after)


async def hear(store, name):
    """Say why a run is to end."""
    heard = asyncio.Event()
    leave = store.listen(name, heard.set)
    say("listens")
    await heard.wait()
    leave()
    (letter,) = await store.list_letters(name)
    say(letter.text)


async def main(path, what, name):
    say("ready")
    sys.stdin.readline()
    if what == "open":
        for number in range(20):
            store = SqliteStore(f"{path}-{number}")
            await store.append(name, log(name))
            await store.aclose()
        say("opened")
        return
    store = SqliteStore(path)
    await {"append": append, "converse": converse, "hold": hold, "follow": follow, "hear": hear}[what](store, name)
    await store.aclose()
    say("done")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from agentflow.events import TERMINAL_TYPES
    from agentflow.messages import Message
    from agentflow.stores.base import SessionKey, Turn
    from agentflow.stores.sqlite import SqliteStore
    from agentflow.testing.store_probe import KEY, in_line, log

    asyncio.run(main(*sys.argv[1:]))
