"""A conversation as clients of other protocols hold it: its session, the run in it that waits for people, and a run as
it is told to the one client that asked for it.

Such a client cannot come back to a run, and its one way to stop it is to leave. How a protocol tells of events is its
encoder's business.
"""

import base64
import binascii
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, TypeAlias

import msgspec
from aiohttp import web
from pydantic import ConfigDict

from agentflow.chain import AgentChain
from agentflow.chain.request import AgentRequest, Input
from agentflow.errors import AgentflowError, RequestError
from agentflow.event_log import PAGE, Reader
from agentflow.events import AgentEvent, ApprovalEvent, QuestionEvent
from agentflow.messages import ImagePart, text_of
from agentflow.stores.base import SessionKey
from agentflow.transports.adapter import chat_session
from agentflow.transports.bodies import AskBody, validated
from agentflow.transports.connections import Connection, ConnectionEnded
from agentflow.transports.encoding import frame, writes
from agentflow.transports.server import Server
from agentflow.transports.sse import Stream
from agentflow.transports.views import RunView

logger = logging.getLogger(__name__)

Told: TypeAlias = dict[str, Any]
Waiting: TypeAlias = tuple[RunView, Sequence[AgentEvent]]

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


# -- what is said ----------------------------------------------------------------------------------------------


class Said(AskBody):
    """A message to an agent, with its pictures."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    content: Input

    def request(self, user_id: str | None) -> AgentRequest:
        """See `Ask`."""
        return replace(super().request(user_id), input=self.content)


def said(content: Input, **fields: Any) -> Said:
    """The message with the fields of an `AskBody` but its input. Raises `Refused` (400)."""
    text = content if isinstance(content, str) else text_of(content) or "(picture)" * bool(content)
    return validated(Said, {"input": text, "content": content, **fields}, strict=True)


def picture(data: str, media_type: str) -> ImagePart:
    """A picture that came as base64. Raises `RequestError`."""
    try:
        return ImagePart(data=base64.b64decode(data, validate=True), media_type=media_type)
    except (binascii.Error, ValueError):
        raise RequestError("the data of an image must be base64, with its media type such as image/png") from None


def linked_picture(url: str) -> ImagePart:
    """A picture by its address, which may hold its data. Raises `RequestError`."""
    if url.startswith("data:"):
        kind, _, data = url.removeprefix("data:").partition(";base64,")
        return picture(data, kind)
    if not url.startswith(("http://", "https://")):
        raise RequestError("an image is named by an http or https address, or has its data as data:image/...;base64,")
    return ImagePart(url=url)


# -- what waits ------------------------------------------------------------------------------------------------


def session_of(service: str, name: str) -> str:
    """The session of a conversation that a client knows by this name: the name itself, where it can be an id."""
    return name if _ID.fullmatch(name) else chat_session(service, name)


def asked_id(asked: QuestionEvent | ApprovalEvent) -> str:
    """What a decision names."""
    return asked.question_id if isinstance(asked, QuestionEvent) else asked.call_id


async def waiting(server: Server, key: SessionKey) -> Waiting | None:
    """The run that holds the session, and its events, if it waits for people: until they decide, no other gets it."""
    session = await server.store.find_session(key)
    if session is None or session.active_run is None:
        return None
    view, events = RunView(session.active_run), list[AgentEvent]()
    while page := await server.store.read(view.run_id, view.seq, PAGE):
        view.take(page)
        events += page
    return (view, events) if view.is_suspended and view.pending else None


# -- what is told ----------------------------------------------------------------------------------------------


class Encoder(Protocol):
    """How a protocol tells of a run; what it gives are JSON objects, each for a frame of its own."""

    def start(self) -> Iterable[Told]:
        """Before any event."""
        ...

    def encode(self, event: AgentEvent) -> Iterable[Told]:
        """Of the next event."""
        ...

    def end(self, view: RunView) -> Iterable[Told]:
        """After the last event of a run that has ended or waits for people."""
        ...

    def error(self, kind: str, message: str) -> Iterable[Told]:
        """Of a run that cannot be told further."""
        ...


@dataclass(frozen=True, slots=True)
class Telling:
    """A run as it is told to one client: its cursor, its chain if it is alive in this process, what is known of it.

    What was just `decided` is not waited for.
    """

    server: Server
    connection: Connection
    reader: Reader
    chain: AgentChain | None
    view: RunView
    decided: Set[str] = frozenset()

    async def pages(
        self, idle: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncGenerator[Sequence[AgentEvent], None]:
        """The events after those that the view has, to the run's end or until it waits for people.

        The view has taken them when they come. Leaving before the end cancels the run (`disconnect`). Raises what
        `Connection.wait` and the reader do.
        """
        over = False
        with self.server.presence.reading(self.view.run_id) as saw:
            try:
                while not over:
                    events = await self.connection.wait(self.reader.page, idle)
                    self.view.take(events)
                    saw(events)
                    over = not events or self.view.end is not None or await self._waits()
                    yield events
            finally:
                if not over and self.chain is not None:
                    self.chain.cancel("disconnect")

    async def _waits(self) -> bool:
        pending = {asked_id(asked) for asked in self.view.pending}
        if not self.view.is_suspended or not pending or pending & self.decided:
            return False
        return await self.server.is_at_end(self.view.run_id, self.view.seq)

    async def stream(self, request: web.Request, encoder: Encoder, *, done: bytes = b"") -> web.StreamResponse:
        """Answer with frames, of which the last always says how it ended; `done` follows the end of a run."""
        stream = Stream(request, self.server.settings.server)
        try:
            async with aclosing(self.pages(stream.ping)) as pages:
                await stream.response.prepare(request)
                await _send(stream, encoder.start())
                async for page in pages:
                    await _send(stream, chain.from_iterable(map(encoder.encode, page)))
            await _send(stream, encoder.end(self.view), done)
        except ConnectionEnded:
            await _send_last(stream, encoder.error("unavailable", "the server ends this connection"))
        except ConnectionError:
            pass
        except AgentflowError as error:
            logger.warning("run %s is told no further: %s", self.view.run_id, error)
            await _send_last(stream, encoder.error(error.kind, str(error)))
        return stream.response


async def stream_error(
    request: web.Request, server: Server, encoder: Encoder, error: AgentflowError
) -> web.StreamResponse:
    """Answer with a stream that tells of nothing but the error."""
    stream = Stream(request, server.settings.server)
    await stream.response.prepare(request)
    await _send_last(stream, encoder.error(error.kind, str(error)))
    return stream.response


async def _send(stream: Stream, told: Iterable[Told], done: bytes = b"") -> None:
    frames = (frame(msgspec.json.encode(one)) for one in told)
    for piece in writes(chain(frames, [frame(done)] if done else [])):
        await stream.send(piece)


async def _send_last(stream: Stream, told: Iterable[Told]) -> None:
    with contextlib.suppress(ConnectionError):
        await _send(stream, told)
