"""Performs the commands of one run, each in the place that knows how.

It decides nothing: what follows from an event is in `state`, when it counts is up to the writer.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from agentflow.chain.model_calls import ModelCalls
from agentflow.chain.runtime import RunInfo, Runtime
from agentflow.chain.tool_calls import ToolCalls
from agentflow.chain.work import Work
from agentflow.chain.writer import Action, Ending, Writer
from agentflow.errors import ModelOutputError
from agentflow.events import MAX_EVENT_BYTES, AgentEvent, DeltaEvent, FinalEvent, ToolRecord, WarningEvent, encode
from agentflow.messages import Message, Usage
from agentflow.state import (
    CallModel,
    Command,
    CompleteTool,
    Finish,
    Notice,
    RefuseTool,
    RunState,
    RunTool,
    tool_records,
)

Prepared: TypeAlias = tuple[Sequence[AgentEvent | Command], Action | None]


class Performer:
    """The commands of one run, and what its model and tool calls amount to at its end."""

    def __init__(self, runtime: Runtime, info: RunInfo, on_closed: Callable[[], None]) -> None:
        self._runtime = runtime
        self.writer = Writer(runtime, info, self, on_closed)
        self.work = Work(runtime, info, self.writer)
        self._models = ModelCalls(self.work)
        self._tools = ToolCalls(self.work)
        self._corrected = False

    def begin(self, history: tuple[Message, ...]) -> None:
        """What the conversation holds so far."""
        self._models.begin(history)

    def end(self, ending: Ending) -> None:
        """End the run now: stop what runs, keep the text that has come."""
        self.work.post(ending)
        self.work.tasks.cancel()

    def warn(self, code: str, message: str, data: dict[str, Any]) -> None:
        """See `writer.Commands`."""
        self.work.warn(code, message, data)

    def open_usage(self, state: RunState) -> Usage:
        """See `writer.Commands`: also what attempts that are void have used."""
        return self._models.open_usage(state) + self._models.void

    def prepare(self, command: Command, state: RunState) -> Prepared:
        """See `writer.Commands`."""
        match command:
            case CallModel():
                start, action = self._models.prepare(command, state)
                return (start,), action
            case RunTool():
                return self._tools.prepare(command, state)
            case RefuseTool():
                return self._tools.refuse(command, state)
            case CompleteTool():
                return self._tools.complete(command, state)
            case Notice():
                text = DeltaEvent(text=command.text, count=1, **self.work.header(state.root.iteration + 1))
                return (text, Finish(command.chain_id, command.finish_reason)), None
            case Finish():
                return self._finish(command, state)

    def _finish(self, command: Finish, state: RunState) -> Prepared:
        output = self._runtime.output
        if output is not None and state.root.round.finish_reason == "refusal":
            refusal = ModelOutputError(f"the model refused to answer: {state.root.round.text[:500]}")
            return (), lambda: self.work.fail(refusal)
        fault = output.fault(state.root.round.text) if output is not None and command.finish_reason == "stop" else None
        if fault is None:
            return (self._final(command, state),), None
        if self._corrected or state.root.iteration >= self._runtime.limits.max_iterations:
            error = ModelOutputError(f"the answer does not have the form that was asked for: {fault}")
            return (), lambda: self.work.fail(error)
        self._corrected = True
        message = f"Your answer does not have the form that was asked for. {fault} Answer again, with that JSON only."
        header = self.work.header(state.root.iteration)
        return (WarningEvent(code="output_invalid", message=message, **header),), None

    def _final(self, command: Finish, state: RunState) -> FinalEvent:
        chain = state.root
        event = FinalEvent(
            text=chain.round.text,
            finish_reason=command.finish_reason,
            usage=chain.usage + self._models.void,
            iterations=chain.iteration,
            tools=tool_records(chain),
            duration_ms=self.writer.elapsed_ms(),
            **self.work.header(chain.iteration),
        )
        return _fit(event)


def _fit(event: FinalEvent) -> FinalEvent:
    """Cut the tools' results in the terminal event until it fits; the whole texts stand in their events."""
    room = 4096
    while len(encode(event)) > MAX_EVENT_BYTES and room:
        room //= 4
        tools = tuple(_cut(record, room) for record in event.tools)
        event = msgspec.structs.replace(event, tools=tools)
    while len(encode(event)) > MAX_EVENT_BYTES and event.tools:
        event = msgspec.structs.replace(event, tools=event.tools[: len(event.tools) // 2])
    return event


def _cut(record: ToolRecord, room: int) -> ToolRecord:
    arguments = record.arguments
    if arguments is not None and len(msgspec.json.encode(arguments)) > room:
        arguments = None
    return msgspec.structs.replace(record, result=record.result[:room], arguments=arguments)
