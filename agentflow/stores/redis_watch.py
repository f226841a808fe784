"""Waiting for new entries in Redis streams: one blocked connection for all who wait in this process.

It only wakes; whoever was woken reads for itself.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from agentflow.errors import StoreError
from agentflow.stores.redis_runs import asked_key, asked_since
from agentflow.stores.redis_server import RedisServer
from agentflow.stores.waiting import Listeners
from agentflow.streams import TaskOwner

logger = logging.getLogger(__name__)

BLOCK = 1.0  # seconds until the blocked call is made again: without an answer by then, the server is gone

_Waiter: TypeAlias = asyncio.Future[StoreError | None]
_Id: TypeAlias = tuple[int, int]


class Watch:
    """Blocks in one XREAD on all streams that somebody waits for; who comes meanwhile interrupts it.

    A connection that was lost is replaced, once. When that does not help, or the server does not answer, everybody who
    waits gets the `StoreError`, and the next who comes begins anew.
    """

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._owner = TaskOwner()
        self._waiting: dict[str, dict[_Waiter, _Id]] = {}
        self._asked = asyncio.Event()
        self._stale = False  # somebody has come since the blocked call was made
        self._blocked = False
        self._number = 0  # of the connection, as the server counts them
        self._reader: asyncio.Task[None] | None = None
        self._interrupter: asyncio.Task[None] | None = None

    async def entry(self, stream: str, after: str) -> None:
        """Return once `stream` has an entry with an id over `after`, at once if it has. May return early."""
        future: _Waiter = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(stream, {})
        waiting[future] = _id(after)
        self._arm()
        try:
            error = await future
        finally:
            waiting.pop(future, None)
            if not waiting and self._waiting.get(stream) is waiting:
                del self._waiting[stream]
        if error is not None:
            raise error

    async def aclose(self) -> None:
        """End, and let go of the connection. Who still waits gets a `StoreError`."""
        await self._owner.aclose()
        self._end(list(self._waiting), StoreError("the store was closed while its event was waited for"))

    def _arm(self) -> None:
        self._stale = True
        if not _runs(self._reader):
            self._asked = asyncio.Event()
            self._reader = self._owner.spawn(self._read(), name="watch of Redis streams")
        elif self._blocked and not _runs(self._interrupter):
            self._interrupter = self._owner.spawn(self._interrupt(), name="interrupt of the watch")
        self._asked.set()

    async def _read(self) -> None:
        connection: Any = None
        failed = False
        try:
            while True:
                await self._asked.wait()
                try:
                    if connection is None:
                        connection = self._server.make_connection()
                        self._number = int(await self._ask(connection, "CLIENT", "ID"))
                    await self._round(connection)
                    failed = False
                except StoreError as error:
                    # The connection may have been lost while it was idle, or with a server that is there again.
                    if failed or isinstance(error.__cause__, TimeoutError):
                        raise
                    failed = True
                    if connection is not None:
                        await connection.disconnect(nowait=True)
                        connection = None
        except StoreError as error:
            self._reader = None  # who comes while the connection is being closed begins anew
            self._end(list(self._waiting), error)
        finally:
            if connection is not None:
                await connection.disconnect(nowait=True)

    async def _round(self, connection: Any) -> None:
        """Block once, and wake those whose streams have grown."""
        self._stale = False
        after = {stream: min(ids.values()) for stream, ids in self._waiting.items()}
        if not after:
            self._asked.clear()
            return
        ids = (f"{time}-{count}" for time, count in after.values())
        self._blocked = True
        try:
            grown = await self._ask(
                connection, "XREAD", "COUNT", 1, "BLOCK", int(BLOCK * 1000), "STREAMS", *after, *ids
            )
        finally:
            self._blocked = False
        self._end([stream.decode() for stream, _ in grown or ()])

    async def _ask(self, connection: Any, *command: str | int) -> Any:
        with self._server.translated():
            async with asyncio.timeout(BLOCK + self._server.call_timeout):
                await connection.send_command(*command)
                return await connection.read_response()

    async def _interrupt(self) -> None:
        try:
            # Again until it has worked: it may overtake the call that it is to interrupt.
            while self._stale and self._blocked:
                await self._server.call("CLIENT", "UNBLOCK", self._number)
        except StoreError as error:
            self._end(list(self._waiting), error)

    def _end(self, streams: list[str], error: StoreError | None = None) -> None:
        """The end of all waits for `streams`."""
        for stream in streams:
            for future in self._waiting.pop(stream, ()):
                if not future.done():
                    future.set_result(error)


class Letterbox:
    """Who listens for letters to runs: all wait for one stream, which names the runs that were sent any."""

    def __init__(self, server: RedisServer, watch: Watch) -> None:
        self._server = server
        self._watch = watch
        self._owner = TaskOwner()
        self._listeners: Listeners[str] = Listeners()
        self._hearing: asyncio.Task[None] | None = None

    def listen(self, run_id: str, heard: Callable[[], None]) -> Callable[[], None]:
        """See `RunStore.listen`."""
        leave = self._listeners.join(run_id, heard)
        if not _runs(self._hearing):
            self._hearing = self._owner.spawn(self._hear(), name="letters of Redis")

        def left() -> None:
            leave()
            if not self._listeners.keys and self._hearing is not None:
                self._hearing.cancel()
                self._hearing = None

        return left

    async def aclose(self) -> None:
        """Hear nothing any more."""
        await self._owner.aclose()

    async def _hear(self) -> None:
        after: str | None = None
        while True:
            try:
                if after is None:
                    after, _ = await asked_since(self._server, None)
                    asked = self._listeners.keys  # of what came meanwhile
                else:
                    await self._watch.entry(asked_key(self._server), after)
                    after, asked = await asked_since(self._server, after)
                for run_id in asked:
                    self._listeners.wake(run_id)
            except StoreError as error:
                logger.warning("letters to runs are not heard at once for a while: %s", error)
                after = None
                await asyncio.sleep(BLOCK)


def _runs(task: asyncio.Task[None] | None) -> bool:
    """Whether the task has not ended, and is one of this loop."""
    return task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()


def _id(text: str) -> _Id:
    time, _, count = text.partition("-")
    return int(time), int(count)
