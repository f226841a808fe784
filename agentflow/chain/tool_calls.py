"""The tool calls of one chain, from the model's words to the event that closes the call.

How a tool is run, and what it may do to us, is in `tools.execution`; what its author declares is read in
`tools.retries`, `tools.approval` and `tools.effects`.
"""

import asyncio
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias

from agentflow.chain.gates import execute_behind
from agentflow.chain.nesting import MAX_DEPTH, AgentTool
from agentflow.chain.outcomes import Outcomes, attempt_of, unknown_outcome
from agentflow.chain.recovery import Past
from agentflow.chain.work import Work, text_of
from agentflow.chain.writer import Action, readable
from agentflow.errors import AgentflowError, ToolArgumentsError
from agentflow.events import (
    AgentEvent,
    ApprovalEvent,
    ErrorInfo,
    QuestionEvent,
    ToolCompleteEvent,
    ToolDeltaEvent,
    ToolErrorEvent,
    ToolStartEvent,
    ToolStatus,
    WarningEvent,
    plain,
)
from agentflow.messages import clean_text
from agentflow.state import Call, CompleteTool, RefuseTool, RunState, RunTool
from agentflow.state.loops import guard
from agentflow.stores.base import SessionKey
from agentflow.streams import Timer
from agentflow.tools.approval import arguments_hash, reason_to_ask
from agentflow.tools.coercion import Correction
from agentflow.tools.effects import key_of
from agentflow.tools.execution import ToolContext, ToolOutcome, capped, execute
from agentflow.tools.registry import Tool
from agentflow.tools.resolvers import resolve
from agentflow.tools.retries import wait_before_retry

_MAX_CORRECTIONS = 20  # told of one call
_MAX_SHOWN = 200  # characters of a value before and after

_LOOP = (
    "you have made this call with these arguments before, again and again with the same result, which stands above; it "
    "was not run again. Use that result, do something else, or tell the user what you cannot do"
)
_TOO_DEEP = "agents call each other at most {limit} deep, so this one was not called; do the task without it"
_UNSTOPPABLE = (
    "the call was to begin again with other arguments, but it could not be stopped; it may have had its effect, so it "
    "was not begun again"
)

Prepared: TypeAlias = tuple[Sequence[AgentEvent], Action | None]
Nest: TypeAlias = Callable[[Work, AgentTool, ToolStartEvent], Sequence[AgentEvent]]
Stop: TypeAlias = "asyncio.Future[None]"

# The sessions whose runs wait for the code that is running: a run of one of them would wait for itself.
SESSIONS_IN_USE: ContextVar[frozenset[SessionKey]] = ContextVar("agentflow_sessions_in_use", default=frozenset())


class ToolCalls:
    """Runs, refuses and completes the calls of the chain's rounds.

    `nest` begins the chain of an agent that is called, `expire` takes back an approval that nobody gave in time.
    """

    def __init__(self, work: Work, *, nest: Nest, expire: Callable[[str], None]) -> None:
        self._work = work
        self._nest = nest
        self._expire = expire
        self._outcomes = Outcomes(work)
        self._stops: dict[str, Stop] = {}  # of the last attempt of the calls that have been started
        self._expiries: dict[str, Timer] = {}  # of the calls that wait for approval

    # -- commands ----------------------------------------------------------------------------------------

    def prepare(self, command: RunTool, state: RunState) -> Prepared:
        """Begin the call, or what has to come before it: an approval, a question, or a refusal."""
        call = self._call(command.call_id, state)
        if call is None or call.status not in ("ready", "retrying"):
            return (), None  # a further attempt, of a call that was closed while it waited
        runtime, name = self._work.runtime, call.call.name
        tool = runtime.tools.get(name)
        if tool is None:
            names = ", ".join(sorted(other.name for other in runtime.tools)) or "none"
            return self._refused(
                call, "unknown_tool", "not_found", f"there is no tool {name[:100]!r}; the tools are: {names}"
            )
        if command.arguments is not None:  # resolved before, or given by a human
            arguments = command.arguments if call.amended is None else call.amended
            return self._begin(tool, call, arguments, state, approved=command.approved)
        try:
            arguments, corrections = resolve(
                tool, call.call.raw_arguments, resolvers=runtime.resolvers, mode=runtime.validation
            )
        except ToolArgumentsError as error:
            return self._refused(call, "invalid_arguments", error.kind, str(error))
        events, action = self._check(tool, call, arguments, state)
        return ((self._corrected(tool, call, corrections), *events) if corrections else events), action

    def refuse(self, command: RefuseTool, state: RunState) -> Sequence[AgentEvent]:
        """Answer the call with an error."""
        call = self._known(command.call_id, state)
        self._forget(command.call_id)
        return self._refused(call, command.status, command.kind, command.message)[0]

    def complete(self, command: CompleteTool, state: RunState) -> Sequence[AgentEvent]:
        """Answer the call with a human's words."""
        call = self._known(command.call_id, state)
        result, truncated = capped("[success]", command.result)
        return (ToolCompleteEvent(result=result, truncated=truncated, duration_ms=0.0, **self._fields(call)),)

    async def recover(self, past: Past) -> Sequence[ToolCompleteEvent]:
        """After the death of the process that ran them: the calls whose outcome was kept under their key.

        Approvals that were asked for expire when they were to.
        """
        found: list[ToolCompleteEvent] = []
        for call in self._work.chain(past.state).open_calls():
            call_id = call.call.call_id
            tool, start = self._work.runtime.tools.get(call.call.name), past.starts.get(call_id)
            if call.status == "waiting" and call_id in past.expiries:
                expires_at = datetime.fromisoformat(past.expiries[call_id]).timestamp()
                self._expire_later(call_id, max(expires_at - self._work.runtime.clock.wall(), 0.0))
            elif tool is not None and start is not None:
                self._outcomes.doubt(start)
                event = await self._outcomes.recall(tool, start) if call.status == "running" else None
                if isinstance(event, ToolCompleteEvent):
                    found.append(event)
        return found

    def stop(self, call_id: str) -> None:
        """Stop the call where it runs, so that it can begin again."""
        stop = self._stops.get(call_id)
        if stop is not None and not stop.done():
            stop.set_result(None)

    def close(self) -> None:
        """The chain is over: nothing expires any more."""
        for timer in self._expiries.values():
            timer.cancel()
        self._expiries.clear()

    # -- before a call -----------------------------------------------------------------------------------

    def _check(self, tool: Tool, call: Call, arguments: dict[str, Any], state: RunState) -> Prepared:
        """What may keep a call with valid arguments from being run: that it goes round in a circle, or a human."""
        call_id = call.call.call_id
        verdict = guard(self._work.chain(state), call_id, arguments, idempotent=tool.idempotent)
        if verdict == "loop":
            warning = self._warning("loop_guard", f"{tool.name} was called again and again with the same result", call)
            return (warning, *self._refused(call, "loop", "loop", _LOOP, arguments)[0]), None
        if isinstance(verdict, Call):
            return self._reused(call, arguments, verdict.call.call_id, verdict.result, truncated=False), None
        return self._begin(tool, call, arguments, state, approved=False)

    def _begin(self, tool: Tool, call: Call, arguments: dict[str, Any], state: RunState, *, approved: bool) -> Prepared:
        reason = None if approved else reason_to_ask(tool, arguments)
        if reason is not None:
            return self._ask_for_approval(call, arguments, reason)
        start = self._start_event(call, arguments)
        if tool.kind == "question":
            options = tuple(arguments.get("options", ()))
            header = self._work.header()
            text = clean_text(arguments["question"])
            return (start, QuestionEvent(question_id=start.call_id, text=text, options=options, **header)), None
        try:
            if isinstance(tool, AgentTool):
                if state.depth(self._work.info.chain_id) >= MAX_DEPTH:
                    return self._refused(call, "limit", "limit", _TOO_DEEP.format(limit=MAX_DEPTH), arguments)
                return self._nest(self._work, tool, start), None
            key = key_of(tool, arguments)
        except AgentflowError as error:
            return self._refused(call, "error", error.kind, text_of(error), arguments)
        if key is not None:
            start = self._start_event(call, arguments, key)
        # The event is seen by others before the call runs, and what they do to its arguments must not reach the tool.
        return (start,), partial(self._start, tool, copy.deepcopy(arguments), start)

    def _ask_for_approval(self, call: Call, arguments: dict[str, Any], reason: str) -> Prepared:
        runtime, call_id = self._work.runtime, call.call.call_id
        patience = runtime.approval_timeout
        expires_at = datetime.fromtimestamp(runtime.clock.wall() + patience, UTC)
        event = ApprovalEvent(
            call_id=call_id,
            tool=call.call.name,
            arguments=arguments,
            arguments_hash=arguments_hash(call_id, call.call.name, arguments),
            reason=reason,
            expires_at=expires_at.isoformat(timespec="microseconds")[:-6] + "Z",
            **self._work.header(),
        )
        return (event,), lambda: self._expire_later(call_id, patience)

    def _expire_later(self, call_id: str, patience: float) -> None:
        self._expiries[call_id] = self._work.runtime.clock.call_later(patience, partial(self._expire, call_id))

    def _forget(self, call_id: str) -> None:
        timer = self._expiries.pop(call_id, None)
        if timer is not None:
            timer.cancel()

    # -- events ------------------------------------------------------------------------------------------

    def _call(self, call_id: str, state: RunState) -> Call | None:
        return self._work.chain(state).find(call_id)

    def _known(self, call_id: str, state: RunState) -> Call:
        call = self._call(call_id, state)
        if call is None:
            raise RuntimeError(f"a command for the call {call_id!r}, which is not in this round")
        return call

    def _fields(self, call: Call, *, start: bool = False) -> dict[str, Any]:
        """What the events of a call's open attempt, or of the one that starts, have in common."""
        named = {"call_id": call.call.call_id, "tool": call.call.name, "attempt": call.attempt + start}
        return self._work.header() | named

    def _start_event(self, call: Call, arguments: dict[str, Any] | None, key: str | None = None) -> ToolStartEvent:
        raw = call.call.raw_arguments
        return ToolStartEvent(
            arguments=arguments, raw_arguments=raw, idempotency_key=key, **self._fields(call, start=True)
        )

    def _refused(
        self, call: Call, status: ToolStatus, kind: str, message: str, arguments: dict[str, Any] | None = None
    ) -> Prepared:
        """A call that is not run is told as one that failed at once."""
        shown = arguments or call.arguments or readable(call.call.raw_arguments)
        error = ToolErrorEvent(
            status=status,
            error=ErrorInfo(kind=kind, message=message),
            result=capped(f"[{status if status == 'rejected' else f'error: {kind}'}]", message).text,
            **self._fields(call, start=True),
        )
        return (self._start_event(call, shown), error), None

    def _reused(
        self, call: Call, arguments: dict[str, Any], first: str, result: str, *, truncated: bool
    ) -> Sequence[AgentEvent]:
        """A call that is answered from an earlier one."""
        complete = ToolCompleteEvent(
            result=result, truncated=truncated, reused_from=first, duration_ms=0.0, **self._fields(call, start=True)
        )
        return self._start_event(call, arguments), complete

    def _warning(self, code: str, message: str, call: Call, **data: Any) -> WarningEvent:
        named = {"call_id": call.call.call_id, "tool": call.call.name}
        return WarningEvent(code=code, message=message, data=named | data, **self._work.header())

    def _corrected(self, tool: Tool, call: Call, corrections: Sequence[Correction]) -> WarningEvent:
        """What was changed in a model's arguments, told before the call."""
        told = [
            {"field": _short(one.field), "before": _short(one.before), "after": _short(one.after), "rule": one.rule}
            for one in corrections[:_MAX_CORRECTIONS]
        ]
        rules = ", ".join(dict.fromkeys(one.rule for one in corrections))
        message = f"the arguments of {tool.name} were corrected before the call: {rules}"
        return self._warning("arguments_corrected", message, call, corrections=told)

    # -- running -----------------------------------------------------------------------------------------

    def _start(self, tool: Tool, arguments: dict[str, Any], start: ToolStartEvent) -> None:
        # Here and not in the task: an amendment may come before its first step.
        stop = self._stops[start.call_id] = asyncio.get_running_loop().create_future()
        context = self._work.info.trace.in_call(start.call_id)
        self._work.spawn(partial(self._run, tool, arguments, start, stop), f"tool {tool.name}", context=context)

    async def _run(self, tool: Tool, arguments: dict[str, Any], start: ToolStartEvent, stop: Stop) -> None:
        """One attempt, and the wait before the next."""
        SESSIONS_IN_USE.set(SESSIONS_IN_USE.get() | {self._work.info.session})  # in this task's own context
        event = await self._outcomes.recall(tool, start)
        wait = None
        if event is None:
            outcome = await self._execute(tool, arguments, start, stop)
            wait = None if outcome.status == "amended" else wait_before_retry(tool, outcome, start.attempt)
            await self._outcomes.keep(tool, start, outcome)
            event = self._closing_event(tool, start, outcome, will_retry=wait is not None)
        self._work.post(event)
        if wait is not None:
            await asyncio.sleep(wait)
            if self._stops[start.call_id] is stop:  # else an amendment has begun the next attempt meanwhile
                chain_id = self._work.info.chain_id
                self._work.post(RunTool(chain_id, start.call_id, approved=True, arguments=arguments))

    async def _execute(
        self, tool: Tool, arguments: Mapping[str, Any], start: ToolStartEvent, stop: Stop
    ) -> ToolOutcome:
        info = self._work.info
        context = ToolContext(
            run_id=info.run_id,
            session_id=info.session.session_id,
            user_id=info.session.user_id,
            call_id=start.call_id,
            tool=start.tool,
            attempt=start.attempt,
            metadata=info.metadata,
            idempotency_key=start.idempotency_key,
        )
        runtime = self._work.runtime
        run = partial(
            execute,
            arguments=arguments,
            context=context,
            on_delta=partial(self._delta, start),
            pools=runtime.pools,
            ready=self._work.ready,
            stop=stop,
        )
        if runtime.gate is None:
            return await run(tool)
        step = self._work.step("tool", tool=tool.name, timeout=tool.timeout)
        return await execute_behind(runtime.gate, step, tool, runtime.clock, run)

    def _delta(self, start: ToolStartEvent, data: Any) -> None:
        header = self._work.header(start.iteration)
        self._work.post(
            ToolDeltaEvent(call_id=start.call_id, tool=start.tool, attempt=start.attempt, data=data, **header)
        )

    def _closing_event(
        self, tool: Tool, start: ToolStartEvent, outcome: ToolOutcome, *, will_retry: bool
    ) -> AgentEvent:
        fields = attempt_of(start) | self._work.header(start.iteration) | {"duration_ms": outcome.duration_ms}
        if outcome.ok:
            return ToolCompleteEvent(result=outcome.result, truncated=outcome.truncated, **fields)
        status: ToolStatus = outcome.status or "error"
        error = outcome.error or ErrorInfo(kind="failed", message="the tool failed")
        if status != "amended":
            return ToolErrorEvent(status=status, error=error, result=outcome.result, will_retry=will_retry, **fields)
        if outcome.abandoned and not tool.idempotent:
            return unknown_outcome(_UNSTOPPABLE, fields)
        return ToolErrorEvent(status=status, error=error, result=outcome.result, will_retry=True, **fields)


def _short(value: Any) -> Any:
    """A value as it is if it is short, else the beginning of its text or JSON."""
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    if len(text) > _MAX_SHOWN:
        return clean_text(text[:_MAX_SHOWN]) + "..."
    return plain(value)
