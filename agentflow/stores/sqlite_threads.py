"""The threads of a SQLite store: one that writes in groups, and a few that read.

It hands calls over and results back; what they do is not its business. Its threads are its own, so that neither hung
tools nor look-ups on the loop's default executor stand in the way.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar

from agentflow.errors import StoreError
from agentflow.stores.sqlite_file import Job, SqliteFile

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WAITING_WRITES = 10_000  # calls that may wait for the writer; more are refused
READERS = 2

_Waiting: TypeAlias = tuple[Job, asyncio.Future[Any]]


class SqliteThreads:
    """Runs what reads and what writes `file`, for one event loop at a time.

    Writes that come while others are under way are done together, in the order they came. A cancelled write that has
    not begun is not done.
    """

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="agentflow-sqlite-writer")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="agentflow-sqlite-reader")
        self._waiting: list[_Waiting] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy = False
        self._closed = False

    async def write(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `job`, once it is committed. Raises what it raises, and `StoreError`."""
        result: T = await self._submit(job)
        return result

    def write_later(self, job: Job) -> None:
        """Do `job` after those that came before, for nobody who waits: not if it is closed, and logged if it fails."""
        if not self._closed:
            self._submit(job).add_done_callback(_log_failure)

    async def read(self, call: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `call`, which only reads. Raises what it raises, and `StoreError`."""
        return await self.start(partial(self._file.read, call))

    def start(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Run `call` in a reader's thread."""
        self._check_open()
        return asyncio.get_running_loop().run_in_executor(self._readers, call)

    async def aclose(self) -> None:
        """Finish what was begun, close the file, end the threads. Doing it again is allowed."""
        if self._closed:
            return
        written = self._submit(lambda _: None) if self._waiting or self._busy else None
        self._closed = True
        if written is not None:
            await asyncio.wait([written])
            written.exception()  # whoever waits for those before it is told as well
        closed = asyncio.get_running_loop().run_in_executor(self._writer, self._close)
        self._writer.shutdown(wait=False)
        await closed
        self._writer.shutdown()  # its thread has nothing left to do

    def _close(self) -> None:
        self._readers.shutdown()
        self._file.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {str(self._file.path)!r} is closed")

    def _submit(self, job: Job) -> "asyncio.Future[Any]":
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # what an earlier loop has left waits for nobody
            self._loop, self._waiting, self._busy = loop, [], False
        if len(self._waiting) >= MAX_WAITING_WRITES:
            raise StoreError(
                f"the store {str(self._file.path)!r} is overloaded: {len(self._waiting)} writes wait; try again later"
            )
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((job, future))
        if not self._busy:
            self._busy = True
            loop.call_soon(self._begin, loop)  # together with all that comes in this turn of the loop
        return future

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        group = [(job, future) for job, future in self._waiting if not future.done()]
        self._waiting = []
        if not group:
            self._busy = False
            return
        written = loop.run_in_executor(self._writer, self._file.write, [job for job, _ in group])
        written.add_done_callback(partial(self._written, loop, group))

    def _written(
        self, loop: asyncio.AbstractEventLoop, group: Sequence[_Waiting], written: "asyncio.Future[list[Any]]"
    ) -> None:
        for (_, future), result in zip(group, written.result(), strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._begin(loop)


def _log_failure(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.warning("a store could not clean up: %s", error)
