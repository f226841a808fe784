"""The seam between messages that come in and runs: what somebody may ask for, and the events that come of it.

It knows no socket and no chat service: the WebSocket stands on it, and whatever else brings messages may. What follows
from a command is decided in the chain.
"""

import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias
from uuid import uuid4

from pydantic import Field

from agentflow.chain import AgentChain
from agentflow.errors import NotPendingError
from agentflow.event_log import Reader
from agentflow.events import AgentEvent, ApprovalEvent, QuestionEvent
from agentflow.stores.base import Letter, cancel_letter
from agentflow.transports.auth import Caller
from agentflow.transports.bodies import Amend, Answer, Approve, AskBody, Id, Identity, Reject, validated
from agentflow.transports.refusals import Refused
from agentflow.transports.server import Server
from agentflow.transports.views import RunView

Decision: TypeAlias = Answer | Approve | Reject | Amend
Events: TypeAlias = AsyncGenerator[Sequence[AgentEvent], None]


class _Command(Identity):
    id: Annotated[str | None, Field(max_length=128, description="Comes back with what is told about it.")] = None


class _OfRun(_Command):
    run_id: Id


class RunCommand(_Command, AskBody):
    """Begin a run, and follow it from its first event."""

    type: Literal["run"] = "run"


class FollowCommand(_OfRun):
    """Follow a run after an event, and no longer from where it was followed before."""

    type: Literal["follow"] = "follow"
    after: Annotated[int, Field(ge=0, le=10**15 - 1, description="The number of the last event seen.")] = 0


class CancelCommand(_OfRun):
    """End a run."""

    type: Literal["cancel"] = "cancel"


class AnswerCommand(_OfRun, Answer):
    """Answer a question of a run."""

    type: Literal["answer"] = "answer"


class ApproveCommand(_OfRun, Approve):
    """Let a tool call run that waits for approval."""

    type: Literal["approve"] = "approve"


class RejectCommand(_OfRun, Reject):
    """Do not let a tool call run that waits for approval."""

    type: Literal["reject"] = "reject"


class AmendCommand(_OfRun, Amend):
    """Give a tool call other arguments."""

    type: Literal["amend"] = "amend"


DecisionCommand: TypeAlias = AnswerCommand | ApproveCommand | RejectCommand | AmendCommand
Command: TypeAlias = RunCommand | FollowCommand | CancelCommand | DecisionCommand

COMMANDS: Mapping[str, type[Command]] = {
    "run": RunCommand,
    "follow": FollowCommand,
    "cancel": CancelCommand,
    "answer": AnswerCommand,
    "approve": ApproveCommand,
    "reject": RejectCommand,
    "amend": AmendCommand,
}


def read_command(value: Any) -> Command:
    """The command that a value of JSON is. Raises `Refused` (400)."""
    kind = value.get("type") if isinstance(value, dict) else None
    model = COMMANDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        known = ", ".join(COMMANDS)
        raise Refused(400, "request", f"a command is a JSON object whose type is one of {known}")
    return validated(model, value, strict=True)


def chat_session(service: str, chat: str) -> str:
    """The session of a chat that a service knows by any text: for the same chat always the same."""
    digest = hashlib.sha256(f"{service}\n{chat}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"chat-{digest[:32]}"


class Adapter:
    """What one caller may do with the runs of a server.

    Messages that name no session belong to `session_id`, as those of a chat do; without it each has a new one.
    Unknown runs and those of others are refused alike: `Refused` (404).
    """

    def __init__(self, server: Server, caller: Caller, *, session_id: str | None = None) -> None:
        self._server = server
        self._caller = caller
        self._session_id = session_id

    async def run(self, message: AskBody) -> tuple[str, Events]:
        """Begin a run: its id, and its events page by page from the first, to be read as `follow` says.

        With a `request_id` it is begun once, however often the message comes. Raises what `Server.begin` does.
        """
        if self._session_id is not None and message.session_id is None:
            message = message.model_copy(update={"session_id": self._session_id})
        run_id = await self._server.begin(self._caller, message, message.request_id)
        return run_id, self._read(run_id, self._server.reader(run_id))

    async def follow(self, run_id: str, after: int = 0) -> Events:
        """The run's events after a number, page by page and in order, to its end.

        Whoever reads them counts as a reader, without whom the run is cancelled in time; closing them is leaving.
        Reading raises what the run could not begin for, such as `SessionBusyError`, and `StoreError`.
        """
        await self._server.check_run(self._caller, run_id)
        return self._read(run_id, self._server.reader(run_id, after))

    async def _read(self, run_id: str, reader: Reader) -> Events:
        with self._server.presence.reading(run_id) as saw:
            while events := await reader.page():
                saw(events)
                yield events

    async def cancel(self, run_id: str) -> None:
        """End a run, wherever it is worked on; one that has ended is left as it is."""
        await self._server.check_run(self._caller, run_id)
        chain = self._server.chain(run_id)
        if chain is not None:
            chain.cancel("user")
        else:
            await self._server.store.send_letter(run_id, cancel_letter("user"))

    async def decide(self, run_id: str, decision: Decision) -> None:
        """Tell a run what a person has decided, wherever it is worked on.

        Raises `NotPendingError`, and `ToolArgumentsError` of an amendment. A run that another process works on, or none
        at present, gets a letter: what its log does not say already, such as that arguments do not fit, is then told by
        a `warning` of the run. Raises `LimitError` if too many letters lie there.
        """
        await self._server.check_run(self._caller, run_id)
        chain = self._server.chain(run_id)
        if chain is not None:
            _tell(chain, decision, self._caller.user_id)
        else:
            letter = _letter(decision, await self._server.view(run_id), self._caller.user_id)
            await self._server.store.send_letter(run_id, letter)


def _tell(chain: AgentChain, decision: Decision, by: str | None) -> None:
    match decision:
        case Answer():
            chain.answer(decision.text, decision.question_id, by=by)
        case Approve():
            chain.approve(decision.call_id, decision.arguments_hash, by=by)
        case Reject():
            chain.reject(decision.call_id, decision.why, by=by)
        case Amend():
            chain.amend(decision.call_id, decision.arguments, by=by)


def _letter(decision: Decision, view: RunView, by: str | None) -> Letter:
    """The decision as a letter. Raises `NotPendingError` for what the run's events say that it does not wait for."""
    name = uuid4().hex
    match decision:
        case Answer():
            asked = _question(view, decision.question_id)
            return Letter(id=name, verb="answer", target=asked.question_id, text=decision.text, by=by)
        case Approve():
            approval = _approval(view, decision.call_id, decision.arguments_hash)
            seen = approval.arguments_hash  # also where none was given: the run may have gone on by then
            return Letter(id=name, verb="approve", target=decision.call_id, arguments_hash=seen, by=by)
        case Reject():
            _approval(view, decision.call_id)
            return Letter(id=name, verb="reject", target=decision.call_id, text=decision.why, by=by)
        case Amend():
            if decision.call_id not in view.open_calls:
                raise _not_pending(view, f"no call {decision.call_id[:140]!r} that waits or runs")
            return Letter(id=name, verb="amend", target=decision.call_id, arguments=decision.arguments, by=by)


def _question(view: RunView, question_id: str | None) -> QuestionEvent:
    asked = [event for event in view.pending if isinstance(event, QuestionEvent)]
    found = [event for event in asked if question_id in (None, event.question_id)]
    if len(found) != 1:
        known = ", ".join(event.question_id for event in asked) or "none"
        raise _not_pending(
            view, f"no such question, or for more than one, and the answer names none; these are: {known}"
        )
    return found[0]


def _approval(view: RunView, call_id: str, arguments_hash: str | None = None) -> ApprovalEvent:
    for event in view.pending:
        if isinstance(event, ApprovalEvent) and event.call_id == call_id:
            if arguments_hash in (None, event.arguments_hash):
                return event
            raise _not_pending(view, f"an approval of call {call_id!r} with other arguments; look at its event again")
    raise _not_pending(view, f"no approval of call {call_id[:140]!r}")


def _not_pending(view: RunView, what: str) -> NotPendingError:
    return NotPendingError(f"run {view.run_id!r} ({view.state}) waits for {what}")
