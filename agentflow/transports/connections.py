"""The clients that wait for a run: each can be told to go, and none is waited for when it has gone.

What is written to them, and in which form, is the business of each transport.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from aiohttp import web

from agentflow.transports.auth import Caller

T = TypeVar("T")

SEND_BUFFER = 64 * 1024  # bytes of a stream that the system holds for its client, which Linux doubles; else megabytes


class ConnectionEnded(Exception):  # noqa: N818  the server's decision, not a fault
    """The server has ended this connection: it shuts down, or the caller's key is good no more."""


def hold_little(request: web.Request, stall: float) -> None:
    """Let the system hold little for the client of a stream that begins, and cut one that is silent for `stall`.

    That is one which acknowledges nothing of what is on its way, such as a machine that was switched off: without this
    it would be given up after a quarter of an hour.
    """
    sock = request.transport.get_extra_info("socket") if request.transport is not None else None
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(stall * 1000)))


class Connection:
    """One open response. `wait` is where its handler spends its time; `end` may be called meanwhile."""

    def __init__(self, request: web.Request, caller: Caller, interval: float) -> None:
        self._request = request
        self._interval = interval
        self._ended = False
        self._waiting: asyncio.Timeout | None = None
        self.caller = caller

    async def wait(self, step: Callable[[], Awaitable[T]], idle: Callable[[], Awaitable[None]] | None = None) -> T:
        """What `step` gives, which is begun again every `interval` seconds, with a call of `idle` in between.

        So `step` must bear a cancel. Raises `ConnectionEnded` once it is ended, `ConnectionResetError` where the client
        has gone, and what `step` and `idle` raise.
        """
        while True:
            if self._ended:
                raise ConnectionEnded
            if self._request.transport is None:
                raise ConnectionResetError("the client has gone")
            limit = self._waiting = asyncio.timeout(self._interval)
            try:
                async with limit:
                    return await step()
            except TimeoutError:
                if not limit.expired():
                    raise
            finally:
                self._waiting = None
            if idle is not None and not self._ended:
                await idle()

    def end(self) -> None:
        """Let `wait` raise `ConnectionEnded`, now and from now on."""
        self._ended = True
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())


class Connections:
    """All that are open; `sockets` counts the WebSockets of each user."""

    def __init__(self) -> None:
        self._open: set[Connection] = set()
        self._closed = asyncio.Event()
        self.sockets: Counter[str | None] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def open(self, request: web.Request, caller: Caller, interval: float) -> Iterator[Connection]:
        """One more, for as long as this lasts."""
        connection = Connection(request, caller, interval)
        self._open.add(connection)
        try:
            yield connection
        finally:
            self._open.discard(connection)
            self._closed.set()

    async def closed(self) -> None:
        """Wait until none is open."""
        while self._open:
            self._closed.clear()
            await self._closed.wait()

    def end(self, key_ids: frozenset[str] | None = None) -> None:
        """End all, or those of callers with one of these keys."""
        for connection in tuple(self._open):
            if key_ids is None or connection.caller.key_id in key_ids:
                connection.end()
