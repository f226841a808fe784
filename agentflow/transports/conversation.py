"""A conversation as clients of other protocols hold it: its session, the run in it that waits for people, and a run as
it is told to the one client that asked for it.

Such a client cannot come back to a run, and its one way to stop it is to leave. It knows no protocol and no frame.
"""

import base64
import binascii
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pydantic import ConfigDict

from agentflow.chain import AgentChain
from agentflow.chain.request import AgentRequest, Input
from agentflow.errors import RequestError
from agentflow.event_log import PAGE, Reader
from agentflow.events import AgentEvent, ApprovalEvent, QuestionEvent
from agentflow.messages import ImagePart, text_of
from agentflow.stores.base import SessionKey
from agentflow.transports.adapter import chat_session
from agentflow.transports.bodies import AskBody, validated
from agentflow.transports.connections import Connection
from agentflow.transports.server import Server
from agentflow.transports.views import RunView

Waiting: TypeAlias = tuple[RunView, Sequence[AgentEvent]]

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Said(AskBody):
    """A message to an agent, with its pictures."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    content: Input

    def request(self, user_id: str | None) -> AgentRequest:
        """See `Ask`."""
        return replace(super().request(user_id), input=self.content)


def said(content: Input, **fields: Any) -> Said:
    """The message with the fields of an `AskBody` but its input. Raises `Refused` (400)."""
    text = content if isinstance(content, str) else text_of(content) or "(picture)"
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


@dataclass(frozen=True, slots=True)
class Telling:
    """A run that is told to one client: its cursor, and its chain if it is alive in this process."""

    server: Server
    reader: Reader
    chain: AgentChain | None

    async def pages(
        self,
        connection: Connection,
        view: RunView,
        *,
        decided: Set[str] = frozenset(),
        idle: Callable[[], Awaitable[None]] | None = None,
    ) -> AsyncGenerator[Sequence[AgentEvent], None]:
        """The events page by page, to the run's end or until it waits for people; `view` takes them first.

        What was just `decided` is not waited for. Leaving before the end cancels the run (`disconnect`). Raises what
        `Connection.wait` and the reader do.
        """
        over = False
        with self.server.presence.reading(view.run_id):
            try:
                while not over:
                    events = await connection.wait(self.reader.page, idle)
                    view.take(events)
                    over = not events or view.end is not None or await self._waits(view, decided)
                    yield events
            finally:
                if not over and self.chain is not None:
                    self.chain.cancel("disconnect")

    async def _waits(self, view: RunView, decided: Set[str]) -> bool:
        pending = {asked_id(asked) for asked in view.pending}
        if not view.is_suspended or not pending or pending & decided:
            return False
        return await self.server.is_at_end(view.run_id, view.seq)
