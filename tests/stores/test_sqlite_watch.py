"""Looks are taken only while somebody waits, and wake whom they must."""

import asyncio
import threading
from functools import partial

import pytest

from agentflow.errors import StoreError
from agentflow.stores.base import Letter, SessionKey
from agentflow.stores.sqlite import SqliteStore
from agentflow.stores.sqlite_file import SqliteFile
from agentflow.stores.sqlite_sessions import line_of
from agentflow.stores.sqlite_threads import SqliteThreads
from agentflow.stores.sqlite_watch import LISTENING, POLL, Watch
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
        waiting = group.create_task(wait(watch, watch.appends, "r"))
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
                ("other append", watch.appends, "x"),
                ("line", watch.lines, line_of(KEY)),
            )
        }
        await asyncio.sleep(3 * POLL)
        assert [name for name, task in tasks.items() if task.done()] == ["append"]  # it may have come just before
        await other.close_session(KEY, "c", None)
        await tasks["line"]
        again = group.create_task(wait(watch, watch.appends, "b"))
        await other.append("b", log("b", 2))
        await again
        tasks["other append"].cancel()


@pytest.mark.virtual_time
async def test_who_listens_hears_of_each_letter_once_and_only_of_those_to_his_run(watch, other):
    for run_id in ("a", "b"):
        await other.append(run_id, log(run_id))
    heard = []
    leave = [watch.inboxes.join(run_id, partial(heard.append, run_id)) for run_id in ("a", "b")]
    watch.arm()
    for run_id, name in (("a", "1"), ("b", "1"), ("a", "2")):
        await other.send_letter(run_id, Letter(id=name, verb="answer"))
        await asyncio.sleep(3 * LISTENING)
        await other.append(f"{run_id}-{name}", log(f"{run_id}-{name}"))
        await asyncio.sleep(3 * LISTENING)
    assert heard == ["a", "b", "a"]
    for one in leave:
        one()
    await asyncio.sleep(2 * LISTENING)
    looks = watch.file.looks
    await asyncio.sleep(10 * POLL)
    assert watch.file.looks == looks


@pytest.mark.virtual_time
async def test_who_listens_is_not_told_of_errors_and_hears_again_after_them(watch, other):
    await other.append("r", log("r"))
    heard = []
    leave = watch.inboxes.join("r", lambda: heard.append("r"))
    watch.arm()
    watch.file.error = StoreError("it cannot be read")
    await other.send_letter("r", Letter(id="1", verb="answer"))
    await asyncio.sleep(10 * LISTENING)
    assert heard == []
    watch.file.error = None
    await asyncio.sleep(3 * LISTENING)
    assert heard == ["r"]
    leave()


@pytest.mark.virtual_time
async def test_the_file_is_looked_at_less_often_while_somebody_only_listens(watch, other):
    leave = watch.inboxes.join("r", lambda: None)
    watch.arm()
    await asyncio.sleep(10 * LISTENING)
    assert 5 <= watch.file.looks <= 10
    for name in ("a", "b"):  # who begins to wait need not wait for the next of these looks
        async with asyncio.timeout(3 * POLL):
            await wait(watch, watch.lines, line_of(SessionKey(name)))
        await turns()
    leave()


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
        keeps_it_looked_at = group.create_task(stay(watch, watch.lines, line_of(SessionKey("x"))))
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
