"""The WebSocket: commands come in, events of any number of runs go out, each run from a cursor of its own.

What commands mean is the business of `adapter`. A client that was cut off loses nothing: it connects again and follows
each run after the last event it has seen.

The client sends `run, follow, cancel, answer, approve, reject, amend`, each a JSON object with its name as `type`, and
if it likes an `id`. Each is told `ack` with the `run_id`, or `refused` with the `error`, both with that `id`; the
events of a run follow the `ack` of its `run` or `follow`. A run that cannot be read on is told as `refused`, with its
`run_id`, too.

Who may not come in is refused before the upgrade, by a status. Later the server closes with one of these codes:

1000  nothing was asked for 60 s, by a client without a key that follows no run
1001  the server shuts down
1002  what came is no WebSocket frame, or one that is not masked
1003  a binary message
1007  a text that is no UTF-8
1008  over 20 messages a second, or the key is good no more
1009  a message of over 256 KiB
1011  no answer to a ping within 20 s
1013  the client has taken nothing for `server.stall`
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

import msgspec
from aiohttp import WSMessage, WSMsgType, web

from agentflow.errors import AgentflowError
from agentflow.events import AgentEvent, encode
from agentflow.streams import Clock, TaskOwner
from agentflow.transports.adapter import (
    Adapter,
    CancelCommand,
    Command,
    Events,
    FollowCommand,
    RunCommand,
    read_command,
)
from agentflow.transports.auth import CALLER
from agentflow.transports.bodies import Identity, parse_json, read_query
from agentflow.transports.connections import Connection, ConnectionEnded, Connections, hold_little
from agentflow.transports.encoding import writes
from agentflow.transports.masking import check_masks
from agentflow.transports.refusals import RETRY_AFTER, Refused, error_body
from agentflow.transports.routes import Route
from agentflow.transports.server import SERVER, Server

logger = logging.getLogger(__name__)

MAX_MESSAGE = 256 * 1024  # bytes of a message that comes in
MAX_SOCKETS = 5  # of one user
MAX_FOLLOWED = 32  # runs that one socket follows at once
RATE = 20.0  # messages a second that one socket may send
BURST = 40.0  # of which so many may come at once
HEARTBEAT = 20.0  # seconds of silence after which a client is pinged, and then given up
IDLE = 60.0  # seconds in which a client without a key has to ask for something or to follow a run
CLOSE_SECONDS = 5.0  # for a close in all, then the connection is cut

_REASONS = {
    1002: b"not a WebSocket frame",
    1007: b"a text must be UTF-8",
    1009: b"a message may have 262144 bytes",
}


class SocketQuery(Identity):
    """Who connects, where the header cannot say it."""

    ticket: str | None = None


class _Close(Exception):  # noqa: N818  a decision, not a fault
    """The server has had enough of this client."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class _Socket(web.WebSocketResponse):
    """A WebSocket whose every close has an end: one that takes longer than `CLOSE_SECONDS` is cut."""

    def __init__(self, request: web.Request) -> None:
        # Pings are answered in turn with all else that is sent. Nothing is compressed: that costs each client memory
        # and each message time, and a small message could become a large one.
        super().__init__(
            timeout=CLOSE_SECONDS, autoping=False, compress=False, max_msg_size=MAX_MESSAGE + 1, writer_limit=0
        )
        self._request = request

    async def close(self, *, code: int = 1000, message: bytes = b"", drain: bool = True) -> bool:
        """Say why, and wait for the client's own close; of what the protocol forbids aiohttp says only the code."""
        transport = self._request.transport
        if transport is not None and not self.closed:
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, transport.abort)
        return await super().close(code=code, message=message or _REASONS.get(code, b""), drain=drain)


async def websocket(request: web.Request) -> web.StreamResponse:
    """`GET /api/agent/ws`: serve one client until one of both closes.

    Raises `Refused`: 400 for a bad handshake, 429 for a user who has five open, 503 while the server shuts down.
    """
    server, query = request.app[SERVER], read_query(request, SocketQuery)
    if not request.headers.get("Sec-WebSocket-Key", "").isascii():  # over which aiohttp would stumble
        raise Refused(400, "request", "Sec-WebSocket-Key is not base64")
    caller = request[CALLER].acting_for(query.user_id)
    if server.draining:
        raise Refused(503, "unavailable", "the server shuts down; ask again", {"Retry-After": str(RETRY_AFTER)})
    socket = _Socket(request)
    with (
        _place(server.connections, caller.user_id),
        server.connections.open(request, caller, HEARTBEAT) as connection,
    ):
        if socket.can_prepare(request):
            check_masks(request)
        hold_little(request, server.settings.server.stall)
        await socket.prepare(request)
        why = await _Client(server, connection, socket).serve()
        if why is not None:
            await socket.close(code=why.code, message=why.reason.encode())
    return socket


@contextmanager
def _place(connections: Connections, user_id: str | None) -> Iterator[None]:
    """One of the user's sockets, for as long as this lasts."""
    sockets = connections.sockets
    if sockets[user_id] >= MAX_SOCKETS:
        message = f"there are {MAX_SOCKETS} WebSockets of this user; close one"
        raise Refused(429, "limit", message, {"Retry-After": str(RETRY_AFTER)})
    sockets[user_id] += 1
    try:
        yield
    finally:
        sockets[user_id] -= 1
        if not sockets[user_id]:
            del sockets[user_id]


class _Allowance:
    """How many messages may still come."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = BURST
        self._at = clock.monotonic()

    def take(self) -> bool:
        """Whether one more may."""
        now = self._clock.monotonic()
        self._left = min(BURST, self._left + (now - self._at) * RATE) - 1
        self._at = now
        return self._left >= 0


class _Client:
    """One client: its commands are done one after another, while a task for each run it follows tells the events."""

    def __init__(self, server: Server, connection: Connection, socket: _Socket) -> None:
        self._server = server
        self._connection = connection
        self._socket = socket
        self._stall = server.settings.server.stall
        self._allowance = _Allowance(server.clock)
        self._owner = TaskOwner()
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()  # one frame at a time, so that what waits to be sent stays bounded
        self._why: _Close | None = None  # it takes nothing, and nothing more is sent
        self._active_at = server.clock.monotonic()
        self._pinged = False

    async def serve(self) -> _Close | None:
        """Do what the client asks for; why it is to be closed, None if it has closed or gone."""
        try:
            while True:
                message = await self._connection.wait(self._socket.receive, self._silent)
                if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
                    return None
                await self._take(message)
        except ConnectionEnded:
            return self._why or self._ended()
        except _Close as why:
            return why
        except ConnectionError:
            return None
        finally:
            await self._owner.aclose()

    def _ended(self) -> _Close:
        if self._server.draining:
            return _Close(1001, "the server shuts down")
        return _Close(1008, "the key is good no more")

    async def _silent(self) -> None:
        """Nothing has come for the time of a heartbeat."""
        if self._pinged:
            raise _Close(1011, "no answer to a ping")
        idle = self._server.clock.monotonic() - self._active_at
        if self._connection.caller.key_id is None and not self._followers and idle >= IDLE:
            raise _Close(1000, f"nothing was asked for {IDLE:g} s")
        self._pinged = True
        await self._send(b"", WSMsgType.PING)

    # -- coming in -----------------------------------------------------------------------------------------

    async def _take(self, message: WSMessage) -> None:
        self._pinged = False
        if not self._allowance.take():
            raise _Close(1008, f"over {RATE:g} messages a second")
        if message.type is WSMsgType.PING:
            await self._send(message.data, WSMsgType.PONG)
        elif message.type is WSMsgType.TEXT:
            self._active_at = self._server.clock.monotonic()
            await self._obey(message.data)
        elif message.type is WSMsgType.BINARY:
            raise _Close(1003, "commands are texts")

    async def _obey(self, text: str) -> None:
        name: str | None = None
        try:
            value = parse_json(text.encode())
            name = _name(value)
            await self._perform(read_command(value))
        except AgentflowError as error:
            await self._refuse(name, error)
        except (_Close, ConnectionError):
            raise
        except Exception:  # a fault of ours ends the command, not the socket
            logger.exception("a command failed")
            await self._refuse(name, _internal())

    async def _perform(self, command: Command) -> None:
        if self._server.quotas is not None:
            await self._server.quotas.command(self._connection.caller)
        adapter = Adapter(self._server, self._connection.caller.acting_for(command.user_id))
        events: Events | None = None
        if isinstance(command, RunCommand):
            self._check_room()
            run_id, events = await adapter.run(command)
        else:
            run_id = command.run_id
            if isinstance(command, FollowCommand):
                self._check_room(run_id)
                events = await adapter.follow(run_id, command.after)
            elif isinstance(command, CancelCommand):
                await adapter.cancel(run_id)
            else:
                await adapter.decide(run_id, command)
        if events is not None:
            self._leave(run_id)
        await self._tell({"type": "ack", "id": command.id, "run_id": run_id})
        if events is not None:
            self._followers[run_id] = self._owner.spawn(
                self._follow(command.id, run_id, events), name=f"agentflow socket of {run_id}"
            )

    def _check_room(self, run_id: str | None = None) -> None:
        if len(self._followers) >= MAX_FOLLOWED and run_id not in self._followers:
            raise Refused(429, "limit", f"this socket follows {MAX_FOLLOWED} runs; wait for one to end")

    def _leave(self, run_id: str) -> None:
        task = self._followers.pop(run_id, None)
        if task is not None:
            self._owner.cancel({task})

    # -- going out -----------------------------------------------------------------------------------------

    async def _follow(self, name: str | None, run_id: str, events: Events) -> None:
        try:
            await self._send_all(name, run_id, events)
        except _Close:
            self._connection.end()  # who receives closes, and says why
        except ConnectionError:
            pass  # who receives sees it too
        finally:
            if self._followers.get(run_id) is asyncio.current_task():
                del self._followers[run_id]
                self._active_at = self._server.clock.monotonic()

    async def _send_all(self, name: str | None, run_id: str, events: Events) -> None:
        window = self._server.settings.flow.window_ms / 1000
        batch = self._server.settings.flow.mode == "batch"
        try:
            async with aclosing(events):
                async for page in events:
                    for message in _messages(page, batch=batch):
                        await self._send(message)
                    if batch:
                        await asyncio.sleep(window)
        except AgentflowError as error:
            await self._refuse(name, error, run_id=run_id)
        except (_Close, ConnectionError):
            raise
        except Exception:  # nor do those of one run end the others on this socket
            logger.exception("the events of run %s break off", run_id)
            await self._refuse(name, _internal(), run_id=run_id)

    async def _refuse(self, name: str | None, error: AgentflowError, **more: Any) -> None:
        await self._tell({"type": "refused", "id": name, **error_body(error.kind, str(error), **more)})

    async def _tell(self, told: dict[str, Any]) -> None:
        await self._send(msgspec.json.encode(told))

    async def _send(self, data: bytes, kind: WSMsgType = WSMsgType.TEXT) -> None:
        """Send one frame, and wait until the client has taken most of what was sent.

        Raises `_Close` where it takes nothing for `server.stall`, `ConnectionError` where it has gone.
        """
        async with self._turn:
            if self._why is not None:
                raise self._why
            try:
                async with asyncio.timeout(self._stall):
                    await self._socket.send_frame(data, kind)
                self._server.readings.bytes += len(data)
            except TimeoutError:
                self._server.readings.dropped += 1
                self._why = _Close(1013, "the client takes nothing")
                raise self._why from None


def _messages(events: Sequence[AgentEvent], *, batch: bool) -> Iterator[bytes]:
    """Each event as a message, with `batch` one array for all, or several where they would be over 256 KiB together."""
    if not batch:
        return map(encode, events)
    return (b"[" + piece[:-1] + b"]" for piece in writes(encode(event) + b"," for event in events))


def _name(value: Any) -> str | None:
    """The `id` of a command that may be none."""
    name = value.get("id") if isinstance(value, dict) else None
    return name[:128] if isinstance(name, str) else None


def _internal() -> Refused:
    return Refused(500, "internal", "the server failed; its log says why")


ROUTES = (
    Route(
        method="GET",
        path="/api/agent/ws",
        handler=websocket,
        summary="A WebSocket: begin runs, follow them, and decide what they wait for.",
        query=SocketQuery,
    ),
)
