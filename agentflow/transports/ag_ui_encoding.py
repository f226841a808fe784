"""The events of a run as those of the AG-UI protocol, version 1.0. Pure.

It forwards what happened and decides nothing; requests and streams are the business of `ag_ui`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from agentflow.events import (
    AgentEvent,
    ApprovalEvent,
    CancelledEvent,
    DeltaEvent,
    FailedEvent,
    FinalEvent,
    InputEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    QuestionEvent,
    RollbackEvent,
    State,
    StateEvent,
    ToolCompleteEvent,
    ToolDeltaEvent,
    ToolErrorEvent,
    ToolStartEvent,
    WarningEvent,
)
from agentflow.messages import Usage
from agentflow.transports.views import RunView

Told: TypeAlias = dict[str, Any]
Asked: TypeAlias = QuestionEvent | ApprovalEvent

# How an approval is answered; `editedArgs` replace all arguments, and the hash says which were looked at.
APPROVAL: Told = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {"type": "object"},
        "why": {"type": "string"},
        "arguments_hash": {"type": "string"},
    },
    "required": ["approved"],
}

_ENDS = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
_LOCAL = ("reasoning", "activity")  # messages that a snapshot without any of their kind leaves alone


class AguiEncoder:
    """One AG-UI run: our run from its first event on, or from where it had waited for people.

    `messages` and `state` are the client's own. Ids of messages are unique in the thread, and those of calls and
    subagents are ours; a subagent is the chain of an agent that another one calls. An answer that is made again is
    taken back by a snapshot of the messages. Our part of the state is `agentflow`: a client that shares an object keeps
    the rest of it, one that shares anything else is told nothing.
    """

    def __init__(
        self, thread_id: str, run_id: str, *, state: Any = None, messages: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self._run = {"threadId": thread_id, "runId": run_id}
        self._state: dict[str, Any] | None = dict(state or {}) if isinstance(state, dict | None) else None
        self._own: dict[str, Any] = {}  # our part of the state
        self._messages: dict[str, Told] = {
            str(message.get("id")): dict(message) for message in messages if message.get("role") not in _LOCAL
        }
        self._calls: set[str] = set()  # those that have no result
        self._voices: dict[str, _Voice] = {}  # by chain
        self._open: dict[str, None] = {}  # the subagents that go on, in the order in which they began
        self._usage: dict[tuple[str, str], Usage] = {}

    # -- the run -------------------------------------------------------------------------------------------

    def start(self) -> Iterator[Told]:
        """The beginning, before any event."""
        yield {"type": "RUN_STARTED", **self._run, "protocolVersion": "1.0"}
        if self._own:
            yield from self._snapshot()

    def replay(self, events: Iterable[AgentEvent]) -> None:
        """Events that were told in an earlier AG-UI run; before `start`."""
        for _ in chain.from_iterable(map(self.encode, events)):
            pass
        for _ in self._hush():
            pass
        self._open.clear()  # each is announced again when it goes on
        self._usage.clear()

    def encode(self, event: AgentEvent) -> Iterator[Told]:
        """What is told of the next event, which may be nothing."""
        voice = self._voices.setdefault(event.chain_id, _Voice(event))
        match event:
            case FinalEvent():
                yield from self._finish({"type": "success"})
            case CancelledEvent():
                yield from self._finish({"type": "cancelled"})
            case FailedEvent():
                yield from self.error(event.error.kind, event.error.message)
            case InputEvent() | StateEvent() if voice.is_root:
                yield from self._moves(event)
            case StateEvent() if event.current in _ENDS:
                yield from self._leave(voice, event)
            case _:
                yield from self._announce(voice)
                yield from self._happens(voice, event)

    def _happens(self, voice: "_Voice", event: AgentEvent) -> Iterator[Told]:
        match event:
            case DeltaEvent() | ModelStartEvent() | RollbackEvent() | ModelCompleteEvent():
                yield from self._speaks(voice, event)
            case ToolStartEvent(child_chain_id=str(child)):
                self._voices[child] = _Voice(event, child=child)
            case ToolDeltaEvent():
                told = {"toolCallId": event.call_id, "attempt": event.attempt, "data": event.data}
                yield _custom(voice, "tool_delta", told)
            case ToolCompleteEvent() | ToolErrorEvent(will_retry=False):
                yield from self._answers(voice, event)
            case WarningEvent():
                yield _custom(voice, "warning", {"code": event.code, "message": event.message, "data": event.data})
            case _:
                pass

    def end(self, view: RunView) -> Iterator[Told]:
        """The end of a run that waits for people; one that has ended has said so."""
        if view.end is not None:
            return
        yield from self._snapshot()
        yield self._messages_snapshot()
        told = [self._interrupt(asked) for asked in view.pending]
        yield from self._finish({"type": "interrupt", "interrupts": told}, view.pending)

    def error(self, kind: str, message: str) -> Iterator[Told]:
        """The end that needs nothing closed."""
        yield {"type": "RUN_ERROR", "message": message, "code": kind, "usage": self._told_usage()}

    def _finish(self, outcome: Told, pending: Sequence[Asked] = ()) -> Iterator[Told]:
        yield from self._hush()
        for chain_id in reversed(self._open):  # who was called before who called
            if pending:
                own = [_id(asked) for asked in pending if asked.chain_id == chain_id]
                suspended = {"type": "suspended", "interruptIds": own}
                yield {"type": "SUBAGENT_FINISHED", "subagentRunId": chain_id, "outcome": suspended}
            else:
                yield {"type": "SUBAGENT_ERROR", "subagentRunId": chain_id, "message": "the run has ended"}
        yield {"type": "RUN_FINISHED", **self._run, "outcome": outcome, "usage": self._told_usage()}

    def _hush(self) -> Iterator[Told]:
        for voice in self._voices.values():
            yield from voice.close()

    def _interrupt(self, asked: Asked) -> Told:
        told: Told = {"id": _id(asked), **self._voices[asked.chain_id].whose}
        if _id(asked) in self._calls:
            told["toolCallId"] = _id(asked)
        if isinstance(asked, QuestionEvent):
            answer = {"type": "string", **({"enum": list(asked.options)} if asked.options else {})}
            schema = {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}
            return told | {"reason": "input_required", "message": asked.text, "responseSchema": schema}
        if asked.expires_at is not None:
            told["expiresAt"] = asked.expires_at
        about = {"tool": asked.tool, "arguments": asked.arguments, "arguments_hash": asked.arguments_hash}
        message = asked.reason or f"May {asked.tool} be called?"
        return told | {"reason": "tool_call", "message": message, "responseSchema": APPROVAL, "metadata": about}

    def _told_usage(self) -> list[Told]:
        """What was used by each model in this AG-UI run."""
        return [
            {
                "provider": provider,
                "model": model,
                "inputTokens": usage.input_tokens,
                "outputTokens": usage.output_tokens,
                "totalTokens": usage.input_tokens + usage.output_tokens,
            }
            for (provider, model), usage in self._usage.items()
        ]

    # -- state and subagents -------------------------------------------------------------------------------

    def _moves(self, event: InputEvent | StateEvent) -> Iterator[Told]:
        if isinstance(event, InputEvent):
            self._own = {
                "run_id": event.run_id,
                "session_id": event.session_id,
                "agent": event.path[0],
                "model": event.model,
                "state": State.IDLE.value,
            }
            yield from self._snapshot()
            return
        self._own["state"] = event.current.value
        if self._state is not None and "run_id" in self._own:  # a run may end before it has begun
            change = {"op": "replace", "path": "/agentflow/state", "value": event.current.value}
            yield {"type": "STATE_DELTA", "delta": [change]}

    def _snapshot(self) -> Iterator[Told]:
        if self._state is not None:
            yield {"type": "STATE_SNAPSHOT", "snapshot": {**self._state, "agentflow": dict(self._own)}}

    def _announce(self, voice: "_Voice") -> Iterator[Told]:
        """Begin a subagent, and those that called it, unless they have begun."""
        if voice.is_root or voice.over or voice.chain_id in self._open:
            return
        parent = self._voices.get(voice.parent)
        told = {"type": "SUBAGENT_STARTED", "subagentRunId": voice.chain_id, "name": voice.name}
        if voice.call_id:
            told["parentToolCallId"] = voice.call_id
        if parent is not None and not parent.is_root:
            yield from self._announce(parent)
            told["parentSubagentRunId"] = parent.chain_id
        self._open[voice.chain_id] = None
        yield told

    def _leave(self, voice: "_Voice", event: StateEvent) -> Iterator[Told]:
        yield from voice.close()
        voice.over = True
        if voice.chain_id not in self._open:  # it has said nothing since the run goes on
            return
        del self._open[voice.chain_id]
        if event.current is State.COMPLETED:
            yield {"type": "SUBAGENT_FINISHED", **voice.whose, "outcome": {"type": "success"}}
        else:
            message = f"the agent {voice.name!r} has ended {event.current.value}: {event.reason}"
            yield {"type": "SUBAGENT_ERROR", **voice.whose, "message": message, "code": event.current.value}

    # -- messages ------------------------------------------------------------------------------------------

    def _speaks(
        self, voice: "_Voice", event: DeltaEvent | ModelStartEvent | RollbackEvent | ModelCompleteEvent
    ) -> Iterator[Told]:
        match event:
            case ModelStartEvent():
                voice.attempt, voice.model = event.attempt, (event.provider, event.model)
            case DeltaEvent(channel="reasoning"):
                yield from voice.thinks(event)
            case DeltaEvent():
                yield from voice.says(event)
                message = self._message(voice, voice.text_id)
                message["content"] = message.get("content", "") + event.text
            case ModelCompleteEvent():
                self._usage[voice.model] = self._usage.get(voice.model, Usage()) + event.usage
                yield from voice.close()
                yield from self._asks(voice, event)
            case RollbackEvent():
                yield from voice.close()
                if self._messages.pop(voice.message_id(event.iteration, event.attempt), None) is not None:
                    yield self._messages_snapshot()

    def _messages_snapshot(self) -> Told:
        return {"type": "MESSAGES_SNAPSHOT", "messages": [dict(message) for message in self._messages.values()]}

    def _message(self, voice: "_Voice", message_id: str) -> Told:
        """An assistant's message as the client has it by now."""
        return self._messages.setdefault(message_id, {"id": message_id, "role": "assistant", **voice.whose})

    def _asks(self, voice: "_Voice", event: ModelCompleteEvent) -> Iterator[Told]:
        """The calls of a reply, which hang on the message that has its text, also where there is none."""
        message_id = voice.message_id(event.iteration, voice.attempt)
        for call in event.tool_calls:
            self._calls.add(call.call_id)
            function = {"name": call.name, "arguments": call.raw_arguments}
            calls = self._message(voice, message_id).setdefault("toolCalls", [])
            calls.append({"id": call.call_id, "type": "function", "function": function})
            about = {"toolCallId": call.call_id, **voice.whose}
            yield {"type": "TOOL_CALL_START", "toolCallName": call.name, "parentMessageId": message_id, **about}
            yield {"type": "TOOL_CALL_ARGS", "delta": call.raw_arguments, **about}
            yield {"type": "TOOL_CALL_END", **about}

    def _answers(self, voice: "_Voice", event: ToolCompleteEvent | ToolErrorEvent) -> Iterator[Told]:
        self._calls.discard(event.call_id)
        message_id = f"{event.call_id}-result"
        result = {"role": "tool", "toolCallId": event.call_id, "content": event.result, **voice.whose}
        self._messages[message_id] = {"id": message_id, **result}
        yield {"type": "TOOL_CALL_RESULT", "messageId": message_id, **result}


class _Voice:
    """What one chain is saying; `whose` is how its events name it. Of the root everything is said without a name."""

    def __init__(self, event: AgentEvent, *, child: str | None = None) -> None:
        """The chain of an event, or that of the agent which the event's call asks for."""
        self.chain_id = child or event.chain_id
        self.is_root = self.chain_id == event.run_id
        self.whose = {} if self.is_root else {"subagentRunId": self.chain_id}
        self.parent = event.chain_id if child else event.parent_chain_id or ""
        self.name = event.tool if isinstance(event, ToolStartEvent) else event.path[-1]
        self.call_id = event.call_id if child and isinstance(event, ToolStartEvent) else ""
        self.attempt = 1
        self.model = ("", "")
        self.over = False
        self.text_id = ""  # of the message that is open
        self._thought_id = ""
        self._thoughts = 0

    def message_id(self, iteration: int, attempt: int) -> str:
        """The message of an attempt at a round; no other in the thread has its id."""
        return f"{self.chain_id}-{iteration}-{attempt}"

    def says(self, event: DeltaEvent) -> Iterator[Told]:
        """A piece of the answer."""
        message_id = self.message_id(event.iteration, event.attempt)
        if self.text_id != message_id:
            yield from self.close()
            self.text_id = message_id
            yield {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "assistant", **self.whose}
        yield from self._stop_thinking()
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": event.text, **self.whose}

    def thinks(self, event: DeltaEvent) -> Iterator[Told]:
        """A piece of reasoning."""
        if not self._thought_id:
            self._thoughts += 1
            self._thought_id = f"{self.chain_id}-reasoning-{self._thoughts}"
            about = {"messageId": self._thought_id, **self.whose}
            yield {"type": "REASONING_START", **about}
            yield {"type": "REASONING_MESSAGE_START", "role": "reasoning", **about}
        about = {"messageId": self._thought_id, **self.whose}
        yield {"type": "REASONING_MESSAGE_CONTENT", "delta": event.text, **about}

    def _stop_thinking(self) -> Iterator[Told]:
        if self._thought_id:
            about = {"messageId": self._thought_id, **self.whose}
            self._thought_id = ""
            yield {"type": "REASONING_MESSAGE_END", **about}
            yield {"type": "REASONING_END", **about}

    def close(self) -> Iterator[Told]:
        """End what is being said."""
        yield from self._stop_thinking()
        if self.text_id:
            about = {"messageId": self.text_id, **self.whose}
            self.text_id = ""
            yield {"type": "TEXT_MESSAGE_END", **about}


def _id(asked: Asked) -> str:
    return asked.question_id if isinstance(asked, QuestionEvent) else asked.call_id


def _custom(voice: _Voice, name: str, value: Told) -> Told:
    """Something that the protocol has no event for."""
    return {"type": "CUSTOM", "name": f"agentflow.{name}", "value": value, **voice.whose}
