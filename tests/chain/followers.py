"""A process that follows all runs of a store, also while others write them and are killed.

Run as `python followers.py STORE`, where STORE is a file or the URL of a Redis server; it writes each event that it
sees as a line of JSON. When the server is gone it goes on, once it is there again, behind what it has seen.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAUSE = 0.02  # seconds between two looks for runs


@contextlib.contextmanager
def follower(store, seen):
    """The process, which writes into the file `seen`; it is killed in the end."""
    with open(seen, "wb") as file:
        child = subprocess.Popen([sys.executable, str(Path(__file__)), str(store)], cwd=ROOT, stdout=file)
    try:
        yield
    finally:
        child.kill()
        child.wait()


async def follow_one(store, run_id):
    """Write its events until it has ended."""
    after, ended = 0, False
    while not ended:
        try:
            async for event in follow(store, run_id, after):
                os.write(1, encode(event) + b"\n")
                after = event.seq
            ended = True
        except StoreError:
            await asyncio.sleep(PAUSE)


async def main(path):
    store, known = RedisStore(path) if "://" in path else SqliteStore(path), set()
    async with asyncio.TaskGroup() as group:
        while True:
            with contextlib.suppress(StoreError):
                async for record in open_runs(store):
                    if record.last and record.run_id not in known:
                        known.add(record.run_id)
                        group.create_task(follow_one(store, record.run_id))
            await asyncio.sleep(PAUSE)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from agentflow.chain.recovery import open_runs
    from agentflow.errors import StoreError
    from agentflow.event_log import follow
    from agentflow.events import encode
    from agentflow.stores.redis import RedisStore
    from agentflow.stores.sqlite import SqliteStore

    asyncio.run(main(*sys.argv[1:]))
