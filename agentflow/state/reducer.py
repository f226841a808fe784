"""The pure state machine of a run: what an event means, and what is to be done next.

`reduce(state, event) -> (state, commands)` has no clock, no await and no I/O: the same events always give the
same decisions, which is what replay and recovery stand on. It does not perform commands; the chain does, and
their results come back as events.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from agentflow.errors import InvalidTransition
from agentflow.events import (
    TERMINAL_TYPES,
    AgentEvent,
    ApprovalEvent,
    DeltaEvent,
    EventType,
    InputEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    QuestionEvent,
    ResolvedEvent,
    RollbackEvent,
    State,
    ToolCompleteEvent,
    ToolDeltaEvent,
    ToolErrorEvent,
    ToolStartEvent,
    ToolStatus,
    WarningEvent,
)
from agentflow.state.chains import Call, CallStatus, ChainState, Limits, Round, RunState
from agentflow.state.commands import CallModel, Command, CompleteTool, Finish, Notice, RefuseTool, RunTool
from agentflow.state.table import TABLE

Commands: TypeAlias = tuple[Command, ...]
Step: TypeAlias = tuple[ChainState, Commands]


def reduce(state: RunState, event: AgentEvent) -> tuple[RunState, Commands]:
    """The state after `event`, and what is to be done because of it, in order.

    Raises `InvalidTransition` if the event is not allowed now; `state` is then still right. A `state` event is
    an output of the machine, so reducing it changes nothing.
    """
    if event.type is EventType.STATE:
        return state, ()
    chain = state.chain(event.chain_id)
    if event.type in TERMINAL_TYPES and event.chain_id != state.run_id:
        raise InvalidTransition(f"{event.type} of chain {event.chain_id!r}: only the root chain ends a run")
    allowed = TABLE[chain.state].get(event.type)
    if allowed is None:
        raise InvalidTransition(f"{event.type} is not allowed in state {chain.state} (chain {event.chain_id!r})")
    if chain.ending and not _follows_a_cancelled_call(event):
        raise InvalidTransition(f"{event.type} after a cancelled call: the run is ending (chain {event.chain_id!r})")
    after, commands = _HANDLERS[event.type](_Context(state.limits, event.chain_id, chain), event)
    if after.state not in allowed:
        raise InvalidTransition(f"{event.type} must not lead from {chain.state} to {after.state}")
    if after is chain:
        return state, commands
    return replace(state, chains={**state.chains, event.chain_id: after}), commands


def _follows_a_cancelled_call(event: AgentEvent) -> bool:
    if isinstance(event, ToolErrorEvent):
        return event.status == "cancelled"
    return event.type in (EventType.TOOL_START, EventType.WARNING, EventType.FAILED, EventType.CANCELLED)


@dataclass(frozen=True, slots=True)
class _Context:
    """What a handler looks at besides the event."""

    limits: Limits
    chain_id: str
    chain: ChainState

    def refuse(self, reason: str) -> InvalidTransition:
        return InvalidTransition(f"{reason} (chain {self.chain_id!r}, state {self.chain.state})")

    def call(self, call_id: str, *statuses: CallStatus) -> Call:
        call = self.chain.find(call_id)
        if call is None or call.status not in statuses:
            known = "is unknown" if call is None else f"is {call.status}"
            raise self.refuse(f"call {call_id!r} {known}, expected {' or '.join(statuses)}")
        return call

    def with_round(self, **changes: Any) -> ChainState:
        chain = self.chain
        return replace(chain, rounds=(*chain.rounds[:-1], replace(chain.round, **changes)))

    def with_call(self, call: Call, **changes: Any) -> ChainState:
        calls = tuple(replace(c, **changes) if c is call else c for c in self.chain.round.calls)
        return self.with_round(calls=calls)


def _on_input(context: _Context, event: InputEvent) -> Step:
    chain = replace(context.chain, state=State.THINKING, input=event.text)
    return chain, (CallModel(context.chain_id, iteration=1),)


def _on_model_start(context: _Context, event: ModelStartEvent) -> Step:
    chain = context.chain
    if chain.state is State.THINKING:
        expected, rounds = (chain.iteration + 1, 1), (*chain.rounds, Round())
    else:
        attempt = chain.round.attempt + 1
        expected, rounds = (chain.iteration, attempt), (*chain.rounds[:-1], Round(attempt=attempt))
        if chain.round.text or chain.round.reasoning:
            raise context.refuse(f"model_start of attempt {attempt} before the one with text was rolled back")
    if (event.iteration, event.attempt) != expected:
        raise context.refuse(f"model_start of round {event.iteration}, attempt {event.attempt}, not {expected}")
    return replace(chain, state=State.AWAITING_MODEL, rounds=rounds), ()


def _on_delta(context: _Context, event: DeltaEvent) -> Step:
    chain = context.chain
    if chain.state is State.THINKING:
        if event.iteration != chain.iteration + 1:
            raise context.refuse(f"delta of round {event.iteration}, whose reply is whole")
        return replace(chain, rounds=(*chain.rounds, Round(text=event.text, complete=True))), ()
    if chain.round.void or (event.iteration, event.attempt) != (chain.iteration, chain.round.attempt):
        raise context.refuse(f"delta of round {event.iteration}, attempt {event.attempt}, which is not the current")
    if event.channel == "reasoning":
        return context.with_round(reasoning=chain.round.reasoning + event.text), ()
    return context.with_round(text=chain.round.text + event.text), ()


def _on_rollback(context: _Context, event: RollbackEvent) -> Step:
    if context.chain.round.void or event.attempt != context.chain.round.attempt:
        raise context.refuse(f"rollback of attempt {event.attempt}, which is not the current")
    command = CallModel(context.chain_id, iteration=context.chain.iteration, attempt=event.attempt + 1)
    return context.with_round(text="", reasoning="", void=True), (command,)


# How replies that are whole end. One that ends for any other reason may be cut, and its calls too, even if they parse.
_WHOLE_REASONS: Final = frozenset(
    {None, "", "stop", "tool_calls", "function_call", "tool_use", "end_turn", "stop_sequence", "eos", "refusal"}
)
_CUT_MESSAGE: Final = (
    "the reply was cut short ({reason}), so this call may be incomplete and was not run; send it again, shorter"
)
_LIMIT_MESSAGE: Final = "the limit of {limit} model rounds is reached, so this call was not run"
_LIMIT_NOTICE: Final = (
    "I stopped here because this request reached its limit of {limit} model rounds. "
    "What was found so far stands above; a narrower question may get further."
)


def _on_model_complete(context: _Context, event: ModelCompleteEvent) -> Step:
    if context.chain.round.void or event.iteration != context.chain.iteration:
        raise context.refuse(f"model_complete of round {event.iteration}, which has no open call")
    calls = tuple(Call(call) for call in event.tool_calls)
    chain = replace(
        context.with_round(
            complete=True, finish_reason=event.finish_reason, calls=calls, provider_data=event.provider_data
        ),
        state=State.THINKING,
        usage=context.chain.usage + event.usage,
    )
    return _judge(context, chain)


def _judge(context: _Context, chain: ChainState) -> Step:
    """What the model's whole reply asks for."""
    reason, calls = chain.round.finish_reason, chain.round.calls
    if reason == "error" and context.limits.degraded:
        return chain, (Notice(context.chain_id, context.limits.degraded, "degraded"),)
    if not calls:
        return chain, (Finish(context.chain_id, "length" if reason == "length" else "stop"),)
    if reason not in _WHOLE_REASONS:
        return _refuse_all(context, chain, "invalid_arguments", "truncated", _CUT_MESSAGE.format(reason=reason))
    limit = context.limits.max_iterations
    if chain.iteration >= limit:
        return _refuse_all(context, chain, "limit", "limit", _LIMIT_MESSAGE.format(limit=limit))
    return _start_next(context, chain, context.limits.max_parallel_tools)


def _refuse_all(context: _Context, chain: ChainState, status: ToolStatus, kind: str, message: str) -> Step:
    commands = tuple(_refuse(context, call, status, kind, message) for call in chain.round.calls)
    return _with_calls(chain, {call.call.call_id for call in chain.round.calls}, status="ready"), commands


def _with_calls(chain: ChainState, ids: Collection[str], **changes: Any) -> ChainState:
    calls = tuple(replace(c, **changes) if c.call.call_id in ids else c for c in chain.round.calls)
    return replace(chain, rounds=(*chain.rounds[:-1], replace(chain.round, calls=calls)))


def _refuse(context: _Context, call: Call, status: ToolStatus, kind: str, message: str) -> RefuseTool:
    return RefuseTool(context.chain_id, call.call.call_id, status=status, kind=kind, message=message)


def _start_next(context: _Context, chain: ChainState, room: int) -> Step:
    """Ask for up to `room` of the calls that were not asked for yet, in the model's order."""
    ids = [call.call.call_id for call in chain.round.calls if call.status == "pending"][:room]
    if not ids:
        return chain, ()
    return _with_calls(chain, ids, status="ready"), tuple(RunTool(context.chain_id, call_id) for call_id in ids)


def _on_tool_start(context: _Context, event: ToolStartEvent) -> Step:
    call = context.call(event.call_id, "pending", "ready", "retrying", "waiting")
    if event.attempt != call.attempt + 1:
        raise context.refuse(f"tool_start of attempt {event.attempt} for call {event.call_id!r}")
    chain = context.with_call(call, status="running", attempt=event.attempt, arguments=event.arguments)
    ending = chain.state is State.SUSPENDED
    return replace(chain, state=chain.state if ending else State.EXECUTING_TOOLS), ()


def _on_tool_delta(context: _Context, event: ToolDeltaEvent) -> Step:
    call = context.call(event.call_id, "running")
    if event.attempt != call.attempt:
        raise context.refuse(f"tool_delta of attempt {event.attempt} for call {event.call_id!r}")
    return context.chain, ()


def _on_tool_complete(context: _Context, event: ToolCompleteEvent) -> Step:
    return _close(context, event, "success")


def _on_tool_error(context: _Context, event: ToolErrorEvent) -> Step:
    if event.will_retry:
        call = context.call(event.call_id, "running")
        return context.with_call(call, status="retrying"), ()
    return _close(context, event, event.status)


def _close(context: _Context, event: ToolCompleteEvent | ToolErrorEvent, outcome: str) -> Step:
    call = context.call(event.call_id, "running", "waiting")
    if event.attempt != call.attempt:
        raise context.refuse(f"{event.type} of attempt {event.attempt} for call {event.call_id!r}")
    chain = context.with_call(
        call,
        status="closed",
        outcome=outcome,
        result=event.result,
        duration_ms=call.duration_ms + event.duration_ms,
    )
    if outcome == "cancelled":  # the run is ending: nothing follows from it any more
        return replace(chain, ending=True), ()
    return _after_close(context, chain)


def _after_close(context: _Context, chain: ChainState) -> Step:
    if chain.round.closed:
        chain = replace(chain, state=State.THINKING)
        if chain.iteration < context.limits.max_iterations:
            return chain, (CallModel(context.chain_id, iteration=chain.iteration + 1),)
        text = _LIMIT_NOTICE.format(limit=context.limits.max_iterations)
        return chain, (Notice(context.chain_id, text, "max_iterations"),)
    chain, commands = _start_next(context, chain, room=1)
    return replace(chain, state=_state_of_open(chain)), commands


def _state_of_open(chain: ChainState) -> State:
    """A round with open calls is suspended once all of them wait for a human."""
    waits = all(call.status in ("waiting", "closed") for call in chain.round.calls)
    return State.SUSPENDED if waits else State.EXECUTING_TOOLS


def _on_approval(context: _Context, event: ApprovalEvent) -> Step:
    call = context.call(event.call_id, "ready")
    chain = context.with_call(call, status="waiting", arguments=event.arguments)
    return replace(chain, state=_state_of_open(chain)), ()


def _on_question(context: _Context, event: QuestionEvent) -> Step:
    call = context.chain.find(event.question_id)
    if call is None:  # asked in the reply's text
        if not context.chain.rounds or not context.chain.round.closed:
            raise context.refuse("a question in a reply's text is asked after its calls have run")
        return replace(context.chain, state=State.SUSPENDED, question=event.question_id), ()
    call = context.call(event.question_id, "running")
    chain = context.with_call(call, status="waiting")
    return replace(chain, state=_state_of_open(chain)), ()


def _on_resolved(context: _Context, event: ResolvedEvent) -> Step:
    if event.target == context.chain.question:
        chain = replace(context.with_round(reply=event.text or ""), state=State.THINKING, question=None)
        return chain, (CallModel(context.chain_id, iteration=chain.iteration + 1),)
    call = context.call(event.target, "waiting")
    if event.decision == "answered":
        chain = replace(context.chain, state=State.EXECUTING_TOOLS)
        return chain, (CompleteTool(context.chain_id, event.target, event.text or ""),)
    chain = replace(context.with_call(call, status="ready"), state=State.EXECUTING_TOOLS)
    if event.decision in ("approved", "amended"):
        return chain, (RunTool(context.chain_id, event.target, approved=True, arguments=event.arguments),)
    why = f": {event.text}" if event.text else ""
    message = f"a human {event.decision} this call{why}" if event.decision == "rejected" else "the approval expired"
    return chain, (_refuse(context, call, "rejected", event.decision, message),)


def _on_warning(context: _Context, event: WarningEvent) -> Step:
    if event.code != "output_invalid" or context.chain.state is not State.THINKING or not context.chain.rounds:
        return context.chain, ()
    # The answer lacks the form that was asked for; the model is told so as by its user, and answers again.
    return context.with_round(reply=event.message), (
        CallModel(context.chain_id, iteration=context.chain.iteration + 1),
    )


def _on_note(context: _Context, event: AgentEvent) -> Step:
    return context.chain, ()


_END_STATES: Final = {
    EventType.FINAL: State.COMPLETED,
    EventType.FAILED: State.FAILED,
    EventType.CANCELLED: State.CANCELLED,
}


def _on_end(context: _Context, event: AgentEvent) -> Step:
    if context.chain.rounds and not context.chain.round.closed:
        raise context.refuse(f"{event.type} while calls of the round are open")
    return replace(context.chain, state=_END_STATES[event.type], ending=True), ()


_HANDLERS: Final[dict[EventType, Callable[..., Step]]] = {
    EventType.INPUT: _on_input,
    EventType.MODEL_START: _on_model_start,
    EventType.DELTA: _on_delta,
    EventType.ROLLBACK: _on_rollback,
    EventType.MODEL_COMPLETE: _on_model_complete,
    EventType.TOOL_START: _on_tool_start,
    EventType.TOOL_DELTA: _on_tool_delta,
    EventType.TOOL_COMPLETE: _on_tool_complete,
    EventType.TOOL_ERROR: _on_tool_error,
    EventType.QUESTION: _on_question,
    EventType.APPROVAL: _on_approval,
    EventType.RESOLVED: _on_resolved,
    EventType.SUMMARY: _on_note,
    EventType.WARNING: _on_warning,
    EventType.FINAL: _on_end,
    EventType.FAILED: _on_end,
    EventType.CANCELLED: _on_end,
}
