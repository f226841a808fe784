"""The tool calls of one run, from the model's words to the event that closes the call.

How a tool is run, and what it may do to us, is in `tools.execution`.
"""

import json
from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

from agentflow.chain.work import Work
from agentflow.chain.writer import Action, readable
from agentflow.errors import ToolArgumentsError
from agentflow.events import (
    AgentEvent,
    ErrorInfo,
    ToolCompleteEvent,
    ToolDeltaEvent,
    ToolErrorEvent,
    ToolStartEvent,
    ToolStatus,
    WarningEvent,
    plain,
)
from agentflow.messages import ToolCall, clean_text
from agentflow.state import CompleteTool, RefuseTool, RunState, RunTool
from agentflow.stores.base import SessionKey
from agentflow.tools.coercion import Correction
from agentflow.tools.execution import ToolContext, ToolOutcome, execute
from agentflow.tools.registry import Tool
from agentflow.tools.resolvers import resolve

_MAX_CORRECTIONS = 20  # told of one call
_MAX_SHOWN = 200  # characters of a value before and after

Prepared: TypeAlias = tuple[Sequence[AgentEvent], Action | None]

# The sessions whose runs wait for the code that is running: a run of one of them would wait for itself.
SESSIONS_IN_USE: ContextVar[frozenset[SessionKey]] = ContextVar("agentflow_sessions_in_use", default=frozenset())


class ToolCalls:
    """Runs, refuses and completes the calls of the run's rounds."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def prepare(self, command: RunTool, state: RunState) -> Prepared:
        """Start the call, or refuse it if the tool or its arguments are not there."""
        call = _call(command, state)
        runtime = self._work.runtime
        tool = runtime.tools.get(call.name)
        if tool is None:
            names = ", ".join(sorted(other.name for other in runtime.tools)) or "none"
            message = f"there is no tool {call.name[:100]!r}; the tools are: {names}"
            return self._refused(command, state, "unknown_tool", "not_found", message), None
        try:
            arguments, corrections = resolve(
                tool, call.raw_arguments, resolvers=runtime.resolvers, mode=runtime.validation
            )
        except ToolArgumentsError as error:
            return self._refused(command, state, "invalid_arguments", error.kind, str(error)), None
        start = self._start_event(command, state, arguments)
        action = partial(self._start, tool, arguments, start)
        return ((self._corrected(start, corrections), start) if corrections else (start,)), action

    def _corrected(self, start: ToolStartEvent, corrections: Sequence[Correction]) -> WarningEvent:
        """What was changed in a model's arguments, told before the call."""
        told = [
            {"field": _short(one.field), "before": _short(one.before), "after": _short(one.after), "rule": one.rule}
            for one in corrections[:_MAX_CORRECTIONS]
        ]
        rules = ", ".join(dict.fromkeys(one.rule for one in corrections))
        return WarningEvent(
            code="arguments_corrected",
            message=f"the arguments of {start.tool} were corrected before the call: {rules}",
            data={"call_id": start.call_id, "tool": start.tool, "corrections": told},
            **self._work.header(start.iteration),
        )

    def refuse(self, command: RefuseTool, state: RunState) -> Prepared:
        """Answer the call with an error."""
        return self._refused(command, state, command.status, command.kind, command.message), None

    def complete(self, command: CompleteTool, state: RunState) -> Prepared:
        """Answer the call with a human's words."""
        call = state.root.find(command.call_id)
        complete = ToolCompleteEvent(
            call_id=command.call_id,
            tool=_call(command, state).name,
            attempt=call.attempt if call is not None else 1,
            result=f"[success]\n{command.result}",
            duration_ms=0.0,
            **self._work.header(state.root.iteration),
        )
        return (complete,), None

    def _start_event(
        self, command: RunTool | RefuseTool, state: RunState, arguments: dict[str, Any] | None
    ) -> ToolStartEvent:
        call = state.root.find(command.call_id)
        return ToolStartEvent(
            call_id=command.call_id,
            tool=_call(command, state).name,
            arguments=arguments,
            raw_arguments=_call(command, state).raw_arguments,
            attempt=(call.attempt if call is not None else 0) + 1,
            **self._work.header(state.root.iteration),
        )

    def _refused(
        self, command: RunTool | RefuseTool, state: RunState, status: ToolStatus, kind: str, message: str
    ) -> Sequence[AgentEvent]:
        """A call that is not run is told as one that failed at once."""
        start = self._start_event(command, state, readable(_call(command, state).raw_arguments))
        error = ToolErrorEvent(
            call_id=start.call_id,
            tool=start.tool,
            attempt=start.attempt,
            status=status,
            error=ErrorInfo(kind=kind, message=message),
            result=f"[{status if status == 'rejected' else f'error: {kind}'}]\n{message}",
            **self._work.header(state.root.iteration),
        )
        return (start, error)

    def _start(self, tool: Tool, arguments: dict[str, Any], start: ToolStartEvent) -> None:
        self._work.spawn(partial(self._run, tool, arguments, start), f"tool {tool.name}")

    async def _run(self, tool: Tool, arguments: dict[str, Any], start: ToolStartEvent) -> None:
        info = self._work.info
        SESSIONS_IN_USE.set(SESSIONS_IN_USE.get() | {info.session})  # in this task's own context
        context = ToolContext(
            run_id=info.run_id,
            session_id=info.session.session_id,
            user_id=info.session.user_id,
            call_id=start.call_id,
            tool=start.tool,
            attempt=start.attempt,
            metadata=info.metadata,
        )
        outcome = await execute(
            tool,
            arguments,
            context,
            on_delta=partial(self._delta, start),
            pools=self._work.runtime.pools,
            ready=self._work.ready,
        )
        self._work.post(self._closing_event(start, outcome))

    def _delta(self, start: ToolStartEvent, data: Any) -> None:
        header = self._work.header(start.iteration)
        self._work.post(
            ToolDeltaEvent(call_id=start.call_id, tool=start.tool, attempt=start.attempt, data=data, **header)
        )

    def _closing_event(self, start: ToolStartEvent, outcome: ToolOutcome) -> AgentEvent:
        fields = self._work.header(start.iteration) | {
            "call_id": start.call_id,
            "tool": start.tool,
            "attempt": start.attempt,
            "result": outcome.result,
            "duration_ms": outcome.duration_ms,
        }
        if outcome.ok:
            return ToolCompleteEvent(truncated=outcome.truncated, **fields)
        error = outcome.error or ErrorInfo(kind="failed", message="the tool failed")
        return ToolErrorEvent(status=outcome.status or "error", error=error, **fields)


def _call(command: RunTool | RefuseTool | CompleteTool, state: RunState) -> ToolCall:
    found = state.chain(command.chain_id).find(command.call_id)
    if found is None:
        raise RuntimeError(f"a command for the call {command.call_id!r}, which is not in this round")
    return found.call


def _short(value: Any) -> Any:
    """A value as it is if it is short, else the beginning of its text or JSON."""
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    if len(text) > _MAX_SHOWN:
        return clean_text(text[:_MAX_SHOWN]) + "..."
    return plain(value)
