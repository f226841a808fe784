"""What other processes do to a Redis store in the tests. Run as `python redis_children.py URL PREFIX WHAT NAME`; each
says when it is ready, and begins when a line comes.
"""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


@contextlib.contextmanager
def started(url, prefix, what, *names):
    """Child processes, one for each name, that have all begun in the same moment."""
    command = [sys.executable, str(Path(__file__)), url, prefix, what]
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


async def converse(store, name):
    """25 turns in one session, each of the version that it found."""
    for number in range(25):
        session = await store.open_session(KEY, f"{name}-{number}")
        words = Message(role="user", content=str(session.version))
        turn = Turn(run_id=f"{name}-{number}", outcome="final", messages=(words,))
        await store.close_session(KEY, f"{name}-{number}", turn)


async def append(store, name):
    """Append to 20 runs for ever, and say what was done."""

    async def write(number):
        for seq in range(1, 1_000_000):
            await store.append(f"{name}-{number}", log(f"{name}-{number}", seq, text="x" * 500))
            say(f"{name}-{number}", seq)

    await asyncio.gather(*(write(number) for number in range(20)))


async def main(url, prefix, what, name):
    store = RedisStore(url, prefix=prefix)
    await store.last(name)
    say("ready")
    sys.stdin.readline()
    await {"append": append, "converse": converse}[what](store, name)
    await store.aclose()
    say("done")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from agentflow.messages import Message
    from agentflow.stores.base import Turn
    from agentflow.stores.redis import RedisStore
    from agentflow.testing.store_probe import KEY, log

    asyncio.run(main(*sys.argv[1:]))
