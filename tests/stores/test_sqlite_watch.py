"""Looks are taken only while somebody waits, and wake whom they must."""

import asyncio
import threading

import pytest

from agentflow.errors import StoreError
from agentflow.stores.sqlite import SqliteStore
from agentflow.stores.sqlite_file import SqliteFile
from agentflow.stores.sqlite_sessions import line_of
from agentflow.stores.sqlite_threads import SqliteThreads
from agentflow.stores.sqlite_watch import POLL, Watch
from agentflow.testing.store_probe import KEY, clients, log
from tests.builders import turns


class Looked(SqliteFile):
    """Counts how often it is looked at and what is then asked, fails if told to, and stands still at a held `look`."""

    looks = 0
    seen = 0
    asked = 0
    error = None

    def __init__(self, path):
        super().__init__(path)
        self.look = threading.Lock()

    def version(self):
        self.looks += 1
        with self.look:
            self.seen += 1
            if self.error is not None:
                raise self.error
            return super().version()

    def read(self, call):
        self.asked += 1
        return super().read(call)


@pytest.fixture
async def watch(tmp_path):
    file = Looked(tmp_path / "store.db")
    threads = SqliteThreads(file)
    watch = Watch(file, threads)
    watch.file = file
    yield watch
    watch.close()
    await threads.aclose()


@pytest.fixture
async def other(watch):
    async with clients(lambda: SqliteStore(watch.file.path), 1) as (store,):
        yield store


async def wait(watch, waiters, key):
    with waiters.join(key) as woken:
        watch.arm()
        await woken


async def stay(watch, waiters, key):
    while True:
        await wait(watch, waiters, key)


@pytest.mark.virtual_time
async def test_the_file_is_looked_at_while_somebody_waits_and_not_before_or_after(watch, other):
    await asyncio.sleep(10 * POLL)
    assert watch.file.looks == 0
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait(watch, watch.cancels, "r"))
        await asyncio.sleep(10 * POLL)
        assert 5 <= watch.file.looks <= 10
        assert watch.file.asked == 1  # nothing has changed
        waiting.cancel()
    await asyncio.sleep(2 * POLL)
    looks = watch.file.looks
    await asyncio.sleep(10 * POLL)
    assert watch.file.looks == looks


@pytest.mark.virtual_time
async def test_each_is_woken_for_what_it_waits_for(watch, other):
    for run_id in ("a", "b"):
        await other.append(run_id, log(run_id))
    await other.open_session(KEY, "c")
    async with asyncio.TaskGroup() as group:
        await turns()
        tasks = {
            name: group.create_task(wait(watch, waiters, key))
            for name, waiters, key in (
                ("append", watch.appends, "b"),
                ("cancel", watch.cancels, "a"),
                ("other cancel", watch.cancels, "b"),
                ("line", watch.lines, line_of(KEY)),
            )
        }
        await asyncio.sleep(3 * POLL)
        assert [name for name, task in tasks.items() if task.done()] == ["append"]  # it may have come just before
        await other.request_cancel("a", "user")
        await tasks["cancel"]
        await other.close_session(KEY, "c", None)
        await tasks["line"]
        again = group.create_task(wait(watch, watch.appends, "b"))
        await other.append("b", log("b", 2))
        await again
        tasks["other cancel"].cancel()


@pytest.mark.virtual_time
async def test_a_follower_is_not_woken_for_another_run(watch, other):
    for run_id in ("mine", "another"):
        await other.append(run_id, log(run_id))
    async with asyncio.TaskGroup() as group:
        keeps_it_looked_at = group.create_task(stay(watch, watch.appends, "mine"))
        await asyncio.sleep(2 * POLL)
        follower = group.create_task(wait(watch, watch.appends, "mine"))
        for seq in range(2, 5):
            await other.append("another", log("another", seq))
            await asyncio.sleep(2 * POLL)
        assert not follower.done()
        await other.append("mine", log("mine", 2))
        await follower
        keeps_it_looked_at.cancel()


@pytest.mark.virtual_time
async def test_who_began_to_wait_during_a_look_misses_nothing_that_it_has_counted(watch, other):
    await other.append("r", log("r"))
    async with asyncio.TaskGroup() as group:
        keeps_it_looked_at = group.create_task(stay(watch, watch.cancels, "x"))
        await asyncio.sleep(2 * POLL)
        with watch.file.look:
            while watch.file.looks == watch.file.seen:  # until there is one that knows for whom it looks
                await asyncio.get_running_loop().advance(POLL)
            follower = group.create_task(wait(watch, watch.appends, "r"))
            await turns()
            await other.append("r", log("r", 2))
        async with asyncio.timeout(100 * POLL):
            await follower
        keeps_it_looked_at.cancel()


@pytest.mark.virtual_time
async def test_many_runs_are_asked_for_at_once(watch, other):
    run_ids = [f"r{number}" for number in range(1100)]
    await asyncio.gather(*(other.append(run_id, log(run_id)) for run_id in run_ids))
    await asyncio.gather(*(wait(watch, watch.appends, run_id) for run_id in run_ids))


@pytest.mark.virtual_time
async def test_after_an_error_everybody_looks_for_himself(watch, other):
    watch.file.error = StoreError("it cannot be read")
    await asyncio.gather(wait(watch, watch.appends, "r"), wait(watch, watch.lines, line_of(KEY)))


async def test_closing_wakes_all_and_ends_the_looks(watch):
    async with asyncio.TaskGroup() as group:
        group.create_task(wait(watch, watch.appends, "r"))
        await turns()
        watch.close()
    await asyncio.gather(turns(), turns())
    watch.arm()
    assert watch.file.looks == 0
