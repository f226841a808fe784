import asyncio
import sqlite3
import threading

import pytest

from agentflow.errors import StoreError
from agentflow.stores import sqlite_threads
from agentflow.stores.sqlite_file import SqliteFile
from agentflow.stores.sqlite_threads import SqliteThreads
from tests.builders import turns


class Counted(SqliteFile):
    """Tells how large its groups were, and writes none before it is let."""

    def __init__(self, path):
        super().__init__(path)
        self.groups = []
        self.may_write = threading.Event()
        self.may_write.set()

    def write(self, jobs):
        self.may_write.wait()
        self.groups.append(len(jobs))
        return super().write(jobs)


@pytest.fixture
def file(tmp_path):
    file = Counted(tmp_path / "store.db")
    yield file
    file.may_write.set()


@pytest.fixture
async def threads(file):
    threads = SqliteThreads(file)
    yield threads
    file.may_write.set()
    await threads.aclose()


def job(value):
    return lambda _: value


async def test_what_comes_together_or_during_a_write_is_one_group_in_order(file, threads):
    done = []

    async def write(value):
        await threads.write(lambda _: done.append(value))

    file.may_write.clear()
    async with asyncio.TaskGroup() as group:
        for value in range(3):
            group.create_task(write(value))
        await turns()
        for value in range(3, 10):
            group.create_task(write(value))
            await turns(1)
        file.may_write.set()
    assert (file.groups, done) == ([3, 7], [*range(10)])


async def test_a_cancelled_write_that_has_not_begun_is_not_done_and_one_that_has_is(file, threads):
    done = []
    file.may_write.clear()
    async with asyncio.TaskGroup() as group:
        begun = group.create_task(threads.write(lambda _: done.append("begun")))
        await turns()
        waits = group.create_task(threads.write(lambda _: done.append("waits")))
        await turns()
        begun.cancel()
        waits.cancel()
        file.may_write.set()
    await threads.write(lambda _: done.append("after"))
    assert (begun.cancelled(), waits.cancelled(), done) == (True, True, ["begun", "after"])


async def test_each_gets_what_its_own_job_gave(threads):
    results = await asyncio.gather(
        threads.write(job(1)),
        threads.write(lambda db: db.execute("nonsense")),
        threads.write(job(2)),
        threads.read(lambda db: db.execute("SELECT 3").fetchone()[0]),
        return_exceptions=True,
    )
    assert [results[0], type(results[1]), *results[2:]] == [1, StoreError, 2, 3]


async def test_reads_go_on_while_the_writer_stands_still(file, threads):
    await threads.write(job(None))
    file.may_write.clear()
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(threads.write(job("written")))
        for number in range(5):
            assert await threads.read(lambda db, n=number: db.execute("SELECT ?", (n,)).fetchone()) == (number,)
        assert not writing.done()
        file.may_write.set()
    assert writing.result() == "written"


async def test_too_many_waiting_writes_are_refused(file, threads, monkeypatch):
    monkeypatch.setattr(sqlite_threads, "MAX_WAITING_WRITES", 2)
    file.may_write.clear()
    async with asyncio.TaskGroup() as group:
        begun = group.create_task(threads.write(job(0)))
        await turns()
        waiting = [group.create_task(threads.write(job(value))) for value in (1, 2)]
        await turns()
        with pytest.raises(StoreError, match="overloaded: 2 writes wait"):
            await threads.write(job(3))
        file.may_write.set()
    assert [task.result() for task in (begun, *waiting)] == [0, 1, 2]


async def test_closing_finishes_what_was_begun_and_ends_every_thread(file):
    threads = SqliteThreads(file)
    done = []
    async with asyncio.TaskGroup() as group:
        group.create_task(threads.write(lambda _: done.append("waited for")))
        await turns()
        threads.write_later(lambda _: done.append("not waited for"))
        await threads.aclose()
    assert done == ["waited for", "not waited for"]
    await threads.aclose()
    threads.write_later(lambda _: done.append("too late"))
    for call in (threads.write, threads.read):
        with pytest.raises(StoreError, match="is closed"):
            await call(job(1))
    assert len(done) == 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("agentflow-sqlite")]


async def test_closing_what_was_never_used_opens_nothing(file):
    await SqliteThreads(file).aclose()
    assert not file.path.exists()


async def test_what_could_not_be_cleaned_up_is_logged(threads, caplog):
    def fail(_):
        raise sqlite3.OperationalError("the disk is gone")

    threads.write_later(fail)
    await threads.write(job(None))
    assert "could not clean up" in caplog.text
    assert "the disk is gone" in caplog.text


def test_one_loop_after_another_may_use_them_also_when_one_ended_in_the_middle_of_a_write(file):
    threads = SqliteThreads(file)

    async def leave():
        file.may_write.clear()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(threads.write(job("for nobody")))
            await turns()
            task.cancel()

    asyncio.run(leave())
    file.may_write.set()
    assert asyncio.run(threads.write(job("kept"))) == "kept"
    asyncio.run(threads.aclose())
