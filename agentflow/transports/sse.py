"""Server-Sent Events: a run from a cursor on, written at the reader's own pace.

How events become frames is in `encoding`. Nothing waits here for a slow reader but the write itself: one that takes
nothing for `server.stall` is dropped, and comes back with the last id it has seen.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial

from aiohttp import web
from reactivex import Observable

from agentflow.errors import AgentflowError
from agentflow.event_log import Reader
from agentflow.events import TERMINAL_TYPES, AgentEvent, State, StateEvent
from agentflow.settings import ServerSettings
from agentflow.streams import TaskOwner, iterate
from agentflow.transports.auth import CALLER, Caller
from agentflow.transports.bodies import (
    AskBody,
    EventsQuery,
    StreamQuery,
    path_id,
    read_body,
    read_query,
    request_id,
)
from agentflow.transports.connections import Connection, ConnectionEnded, hold_little
from agentflow.transports.encoding import (
    PING,
    Form,
    event_id,
    frames,
    object_frame,
    opening,
    read_event_id,
    simple_content,
    simple_done,
    simple_error,
    simple_pending,
    writes,
)
from agentflow.transports.refusals import Refused, unknown_run
from agentflow.transports.routes import Route
from agentflow.transports.server import SERVER, Server
from agentflow.transports.visits import Saw

logger = logging.getLogger(__name__)

RETRY_MS = 1000  # after which a client that was cut off comes back
_SMALL = 16 * 1024  # bytes that an empty buffer takes at once: a quarter of where writers begin to wait
_PATIENCE = 0.25  # seconds in which a run that is refused at once is answered with a status instead of a stream

HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}


async def stream_query(request: web.Request) -> web.StreamResponse:
    """`GET /api/agent/stream`: begin a run, or go on with the one that `Last-Event-ID` names."""
    query = read_query(request, StreamQuery)
    return await _begin_or_resume(request, query, query.format)


async def stream_body(request: web.Request) -> web.StreamResponse:
    """`POST /api/agent/stream`: the same with a body, as the union of events."""
    return await _begin_or_resume(request, await read_body(request, AskBody), "events")


async def run_events(request: web.Request) -> web.StreamResponse:
    """`GET /api/runs/{id}/events`: a run from a cursor on."""
    query = read_query(request, EventsQuery)
    caller = request[CALLER].acting_for(query.user_id)
    run_id, last = path_id(request), _last_seen(request)
    await request.app[SERVER].check_run(caller, run_id)
    if last is not None and last[0] != run_id:
        raise unknown_run(last[0])
    return await follow(request, caller, run_id, last[1] if last is not None else query.after or 0, query.format)


async def _begin_or_resume(request: web.Request, ask: StreamQuery | AskBody, form: Form) -> web.StreamResponse:
    server, caller, last = request.app[SERVER], request[CALLER].acting_for(ask.user_id), _last_seen(request)
    if last is not None:
        await server.check_run(caller, last[0])
        return await follow(request, caller, *last, form)
    run_id = await server.begin(caller, ask, request_id(request, ask))
    return await follow(request, caller, run_id, 0, form)


async def follow(request: web.Request, caller: Caller, run_id: str, after: int, form: Form) -> web.StreamResponse:
    """Answer with the run's events after a number, in order, to its end; for a run the caller may see.

    A cursor beyond the last event waits for the run to get there. 204, upon which an EventSource stops, where there is
    nothing after the cursor and will be nothing. With `simple` a run that waits for people is at an end, for now.
    Raises what the run could not begin for, such as `SessionBusyError`.
    """
    server = request.app[SERVER]
    settings = server.settings.server
    with (
        server.presence.reading(run_id) as saw,
        server.connections.open(request, caller, settings.ping) as connection,
    ):
        if form == "simple" and after and await _suspended_at(server, run_id, after) is not None:
            return web.Response(status=204)
        reader = server.reader(run_id, after)
        first: Sequence[AgentEvent] | None = None
        try:
            async with asyncio.timeout(_PATIENCE):
                first = await reader.page()
        except TimeoutError:
            pass
        if first is not None and not first:
            return web.Response(status=204)
        stream = Stream(request, settings)
        with suppress(ConnectionEnded, ConnectionError):
            await stream.open(f"{run_id}:{after}")
            try:
                await _pump(server, connection, stream, reader, saw, first or (), form)
            except AgentflowError as error:  # the store failed: there is more, which the client can ask for again
                logger.warning("the stream of run %s breaks off: %s", run_id, error)
                if form == "simple":
                    await stream.send(object_frame(simple_error(error.kind, str(error))))
        return stream.response


async def _pump(
    server: Server,
    connection: Connection,
    stream: "Stream",
    reader: Reader,
    saw: Saw,
    events: Sequence[AgentEvent],
    form: Form,
) -> None:
    batch = server.settings.flow.mode == "batch"
    window = server.settings.flow.window_ms / 1000
    while True:
        saw(events)
        for piece in writes(frames(events, form, batch=batch)):
            await stream.send(piece)
        if events and events[-1].type in TERMINAL_TYPES:
            return
        if form == "simple" and any(map(_is_suspension, events)):
            told = await _suspended_at(server, events[-1].run_id, reader.after)
            if told is not None:
                await stream.send(object_frame(told, event_id(events[-1]), batch=batch))
                return
        if batch and events:
            await asyncio.sleep(window)
        events = await connection.wait(reader.page, stream.ping)
        if not events:
            return


def _is_suspension(event: AgentEvent) -> bool:
    return isinstance(event, StateEvent) and event.current is State.SUSPENDED and event.chain_id == event.run_id


async def _suspended_at(server: Server, run_id: str, seq: int) -> dict[str, str] | None:
    """What a simple reader is told last, if the run waits for people and has nothing after this event."""
    view = await server.view(run_id)
    if not view.is_suspended or view.seq > seq:
        return None
    return simple_pending(view.text, view.pending, view.run_id, view.session_id)


class Stream:
    """An open response with frames. A reader that takes nothing for `stall` seconds is cut off."""

    def __init__(self, request: web.Request, settings: ServerSettings) -> None:
        self._request = request
        self._stall = settings.stall
        server = request.app.get(SERVER)  # another application's answers may be streamed too
        self._readings = server.readings if server is not None else None
        self.response = web.StreamResponse(headers=HEADERS)

    async def open(self, name: str) -> None:
        """Send the headers, and the id with which a client that is cut off now comes back."""
        hold_little(self._request, self._stall)
        await self.response.prepare(self._request)
        await self.send(opening(RETRY_MS, name))

    async def send(self, data: bytes) -> None:
        """Write, and wait until the reader has taken most of what was written. Raises `ConnectionError`."""
        if self._readings is not None:
            self._readings.bytes += len(data)
        transport = self._request.transport
        if transport is not None and len(data) <= _SMALL and not transport.get_write_buffer_size():
            await self.response.write(data)  # there is room for it, so that it has nothing to wait for
            return
        try:
            async with asyncio.timeout(self._stall):
                await self.response.write(data)
        except TimeoutError:
            if self._readings is not None:
                self._readings.dropped += 1
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the client takes nothing") from None

    async def ping(self) -> None:
        """A sign of life."""
        await self.send(PING)


async def respond(request: web.Request, answers: Observable[str]) -> web.StreamResponse:
    """Answer any request with texts as they come, such as `chain.answers()`, as frames of `format=simple`.

    The end is a frame of the type done, an error one of the type error. An EventSource that comes back is told that
    there is nothing more: an Observable cannot be gone on with. When the client leaves, the subscription is disposed.
    Should it fall 1,024 texts behind, it is cut off.
    """
    if "Last-Event-ID" in request.headers:
        return web.Response(status=204)
    settings = ServerSettings()
    stream, connection = Stream(request, settings), Connection(request, Caller(), settings.ping)
    owner, texts = TaskOwner(), iterate(answers)
    told: str | dict[str, str] = ""
    try:
        with suppress(ConnectionError):
            await stream.open("answers:1")
            while isinstance(told, str):
                following = owner.spawn(_next(texts), name="agentflow respond")
                # Shielded from the sign of life in between: an iterator that is cancelled has ended.
                told = await connection.wait(partial(asyncio.shield, following), stream.ping)
                await stream.send(object_frame(simple_content(told) if isinstance(told, str) else told))
    finally:
        await owner.aclose()
        await texts.aclose()
    return stream.response


async def _next(texts: AsyncIterator[str]) -> str | dict[str, str]:
    """The next text, or what is told instead at the end."""
    try:
        return await anext(texts)
    except StopAsyncIteration:
        return simple_done()
    except AgentflowError as error:
        return simple_error(error.kind, str(error))
    except Exception:  # an Observable of the user's may raise anything
        logger.exception("the answers of a response broke off")
        return simple_error("internal", "the answer broke off")


def _last_seen(request: web.Request) -> tuple[str, int] | None:
    text = request.headers.get("Last-Event-ID")
    if not text:
        return None
    last = read_event_id(text)
    if last is None:
        raise Refused(400, "request", "Last-Event-ID is not an id of this server: a run, a colon, and a number")
    return last


ROUTES = (
    Route(
        method="GET",
        path="/api/agent/stream",
        handler=stream_query,
        summary="Ask an agent, and get the answer as Server-Sent Events: for EventSource and curl.",
        query=StreamQuery,
        answer="text/event-stream",
    ),
    Route(
        method="POST",
        path="/api/agent/stream",
        handler=stream_body,
        summary="Ask an agent, and get all events as Server-Sent Events.",
        body=AskBody,
        answer="text/event-stream",
    ),
    Route(
        method="GET",
        path="/api/runs/{id}/events",
        handler=run_events,
        summary="The events of a run from a cursor on, as Server-Sent Events.",
        query=EventsQuery,
        answer="text/event-stream",
    ),
)
