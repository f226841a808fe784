"""`POST /agui`: agents for clients of the AG-UI protocol, version 1.0.

A thread is a session, which the server keeps: of the messages that a client sends, which are all of the thread, the
last one counts, if it is the user's. `context`, `forwardedProps` and `state` are in the metadata of the run. Tools of
the client are not offered to the model. Which agent and which model is meant stands in the address's query.

A run that waits for people ends with an interrupt. The next one on the thread has a `resume` for each of them:
approvals are answered as the interrupt's schema says, and `cancelled` rejects them; a question that is `cancelled` ends
the run, as does a new message, where all are `cancelled`. A client that leaves has stopped its run.

How events are told is in `ag_ui_encoding`.
"""

from collections.abc import Set
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from agentflow.chain.request import Input
from agentflow.errors import NotPendingError, RequestError, ToolArgumentsError
from agentflow.events import ApprovalEvent, QuestionEvent
from agentflow.messages import Part, TextPart
from agentflow.stores.base import SessionKey
from agentflow.transports.adapter import Adapter, Decision
from agentflow.transports.ag_ui_encoding import AguiEncoder
from agentflow.transports.auth import CALLER
from agentflow.transports.bodies import Amend, Answer, Approve, Identity, Reject, read_body, read_query, validated
from agentflow.transports.conversation import (
    Telling,
    Waiting,
    asked_id,
    linked_picture,
    picture,
    said,
    session_of,
    stream_error,
    waiting,
)
from agentflow.transports.refusals import Refused
from agentflow.transports.routes import Route
from agentflow.transports.server import SERVER
from agentflow.transports.views import RunView

_Name = Annotated[str, Field(min_length=1, max_length=1024)]


class AguiQuery(Identity):
    """Whom a client of AG-UI talks to."""

    agent: Annotated[str | None, Field(description="The name of an agent; the first one if left out.")] = None
    model: Annotated[str | None, Field(description="A model string, if the server allows it.")] = None


class _Open(BaseModel):
    """Members that later versions add are passed over."""

    model_config = ConfigDict(extra="allow", frozen=True)


class AguiMessage(_Open):
    """A message of the thread."""

    id: str
    role: str
    content: Any = None


class AguiResume(_Open):
    """The answer to an interrupt."""

    interrupt_id: Annotated[str, Field(alias="interruptId")]
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class AguiSource(_Open):
    """Where a picture is."""

    type: str
    value: str
    media_type: Annotated[str, Field(alias="mimeType")] = ""


class AguiPart(_Open):
    """A part of what the user says."""

    type: str
    text: str = ""
    source: AguiSource | None = None


class RunAgentInput(_Open):
    """What AG-UI clients send to run an agent."""

    thread_id: Annotated[_Name, Field(alias="threadId")]
    run_id: Annotated[_Name, Field(alias="runId")]
    messages: list[AguiMessage]
    state: Any = None
    context: Any = None
    forwarded_props: Annotated[Any, Field(alias="forwardedProps")] = None
    resume: list[AguiResume] | None = None

    @property
    def metadata(self) -> dict[str, Any]:
        """What tools see beside the message."""
        given = {"state": self.state, "context": self.context, "forwardedProps": self.forwarded_props}
        return {name: value for name, value in given.items() if value not in (None, {}, [])}


async def run(request: web.Request) -> web.StreamResponse:
    """`POST /agui`: begin a run or go on with the one that waits, and tell it to its end or to its interrupt.

    Raises `Refused` and what beginning a run does; a `resume` that cannot be is told in the stream, as AG-UI has it.
    """
    server, query = request.app[SERVER], read_query(request, AguiQuery)
    given = await read_body(request, RunAgentInput, server.settings.server.max_body)
    caller = request[CALLER].acting_for(query.user_id)
    asked = _asked(given)
    key = SessionKey(session_of("ag-ui", given.thread_id), caller.user_id)
    messages = [message.model_dump() for message in given.messages]
    encoder = AguiEncoder(given.thread_id, given.run_id, state=given.state, messages=messages)
    try:
        waits = await waiting(server, key)
        view, decided = await _go_on(Adapter(server, caller), given, waits, is_asked=asked is not None)
    except (Refused, NotPendingError, RequestError, ToolArgumentsError) as error:
        return await stream_error(request, server, encoder, error)
    if view is not None and waits is not None:
        encoder.replay(waits[1])
    elif asked is None:
        raise RequestError("the last message must be the user's, unless there is something to resume")
    else:
        fields = {"agent": query.agent, "model": query.model, "metadata": given.metadata}
        message = said(asked, session_id=key.session_id, **fields)
        view = RunView(await server.begin(caller, message, None))
    with server.connections.open(request, caller, server.settings.server.ping) as connection:
        reader, chain = server.reader(view.run_id, view.seq), server.chain(view.run_id)
        return await Telling(server, connection, reader, chain, view, decided).stream(request, encoder)


async def _go_on(
    adapter: Adapter, given: RunAgentInput, waits: Waiting | None, *, is_asked: bool
) -> tuple[RunView | None, Set[str]]:
    """Tell the run that waits what was decided: that run, and on what. None where a new one is to begin.

    Answers to what is decided already are passed over, so that the same ones may come again. Raises `RequestError`,
    `NotPendingError` and `ToolArgumentsError` for those that cannot be.
    """
    answers = {entry.interrupt_id: entry for entry in given.resume or ()}
    if waits is None:
        if answers and not is_asked:
            raise NotPendingError(f"nothing of {', '.join(answers)} waits for an answer: its run has ended or gone on")
        return None, frozenset()
    view = waits[0]
    missing = [name for name in map(asked_id, view.pending) if name not in answers]
    if missing:
        raise RequestError(f"this thread waits for {', '.join(missing)}: resume has to answer each")
    entries = [(asked, answers[asked_id(asked)]) for asked in view.pending]
    if is_asked:
        if any(entry.status == "resolved" for _, entry in entries):
            raise RequestError("send a message, or answers to what waits: both at once cannot be")
        await adapter.cancel(view.run_id)
        return None, frozenset()
    decisions = [decision for asked, entry in entries if (decision := _decision(asked, entry)) is not None]
    if len(decisions) < len(entries):
        await adapter.cancel(view.run_id)
    else:
        for decision in sorted(decisions, key=_may_not_fit):
            await adapter.decide(view.run_id, decision)
    return view, frozenset(answers)


def _may_not_fit(decision: Decision) -> int:
    """Arguments that may not fit come first, so that nothing is decided where they do not."""
    return 0 if isinstance(decision, Amend) else 1


def _decision(asked: QuestionEvent | ApprovalEvent, entry: AguiResume) -> Decision | None:
    """What is decided; None where the whole run is given up. Raises `RequestError`."""
    if isinstance(asked, QuestionEvent):
        return None if entry.status == "cancelled" else _answer(asked.question_id, entry.payload)
    if entry.status == "cancelled":
        return Reject(call_id=asked.call_id)
    payload, call = entry.payload, {"call_id": asked.call_id}
    if not isinstance(payload, dict) or not isinstance(payload.get("approved"), bool):
        raise RequestError(f'the payload for call {asked.call_id!r} must be {{"approved": true}}, or false')
    if not payload["approved"]:
        return validated(Reject, call | {"why": payload.get("why") or ""}, strict=True)
    if payload.get("editedArgs") is not None:
        return validated(Amend, call | {"arguments": payload["editedArgs"]}, strict=True)
    return validated(Approve, call | {"arguments_hash": payload.get("arguments_hash")}, strict=True)


def _answer(question_id: str, payload: Any) -> Answer:
    text = payload.get("answer") if isinstance(payload, dict) else payload
    if not isinstance(text, str):
        raise RequestError(f'the payload for question {question_id!r} must be {{"answer": "a text"}}')
    return validated(Answer, {"text": text, "question_id": question_id}, strict=True)


def _asked(given: RunAgentInput) -> Input | None:
    """What the user says; None if the last message is not the user's. Raises `RequestError` and `Refused` (400)."""
    if not given.messages or given.messages[-1].role != "user":
        return None
    content = given.messages[-1].content
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError("the content of the user's message must be a text or a list of parts")
    return tuple(map(_part, content))


def _part(given: Any) -> Part:
    part = validated(AguiPart, given if isinstance(given, dict) else {}, strict=True)
    if part.type == "text":
        return TextPart(part.text)
    if part.type != "image" or part.source is None or part.source.type not in ("data", "url"):
        raise RequestError(f"a part of the type {part.type[:40]!r} is not understood here: send text and images")
    if part.source.type == "data":
        return picture(part.source.value, part.source.media_type)
    return linked_picture(part.source.value)


ROUTES = (
    Route(
        method="POST",
        path="/agui",
        handler=run,
        summary="Run an agent for a client of AG-UI 1.0.",
        query=AguiQuery,
        body=RunAgentInput,
        answer="text/event-stream",
    ),
)
