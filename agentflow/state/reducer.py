"""The pure state machine of a run: what an event means, and what is to be done next.

`reduce(state, event) -> (state, commands)` has no clock, no await and no I/O: the same events always give the
same decisions, which is what replay and recovery stand on. It does not perform commands; the chain does, and
their results come back as events. What a round asks for is decided in `rounds`.
"""

import copy
from collections.abc import Callable
from typing import Final

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
    WarningEvent,
)
from agentflow.state.chains import Call, ChainState, Limits, Round, RunState
from agentflow.state.commands import CallModel, CompleteTool, Finish, RunTool, StopTool, Warn
from agentflow.state.rounds import Commands, Context, Step, judge, refuse, settle
from agentflow.state.table import TABLE

# How calls are closed whose run ends, or whose chain does because the call that called it was amended.
_OF_ENDING_CHAINS: Final = ("cancelled", "amended")
_NOT_AGAIN = "the call was not begun again with other arguments: it came to its end first, or could not be stopped"
CORRECTIONS: Final = frozenset({"output_invalid", "unsupported_success"})  # warnings that the model answers to


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
    after, commands = _HANDLERS[event.type](Context(state, event.chain_id, chain), event)
    if after.state not in allowed:
        raise InvalidTransition(f"{event.type} must not lead from {chain.state} to {after.state}")
    if after is chain:
        return state, commands
    run = replace(state, chains={**state.chains, event.chain_id: after})
    if isinstance(event, ToolStartEvent | ToolCompleteEvent | ToolErrorEvent):
        run = _with_child(run, chain, event)
    if after.parent is not None and (after.state is State.SUSPENDED) is not (chain.state is State.SUSPENDED):
        run, more = _tell_parents(run, event.chain_id)
        commands += more
    return run, commands


def _follows_a_cancelled_call(event: AgentEvent) -> bool:
    if isinstance(event, ToolErrorEvent):
        return event.status in _OF_ENDING_CHAINS
    return event.type in (EventType.TOOL_START, EventType.WARNING, EventType.FAILED, EventType.CANCELLED)


# -- chains that call chains ---------------------------------------------------------------------------------


def _with_child(
    run: RunState, before: ChainState, event: ToolStartEvent | ToolCompleteEvent | ToolErrorEvent
) -> RunState:
    """The run with the chain begun, or ended, whose agent this call calls."""
    if isinstance(event, ToolStartEvent):
        if event.child_chain_id is None:
            return run
        if event.child_chain_id in run.chains:
            raise InvalidTransition(f"the child chain {event.child_chain_id!r} of {event.call_id!r} has begun before")
        limits = before.limits.children.get(event.tool, Limits())
        child = ChainState(limits=limits, parent=event.chain_id, call_id=event.call_id)
        return replace(run, chains={**run.chains, event.child_chain_id: child})
    call = before.find(event.call_id)
    if call is None or call.child is None:
        return run
    child = run.chain(call.child)
    if child.rounds and not child.round.closed:
        raise InvalidTransition(f"{event.type} of call {event.call_id!r} while calls of its agent are open")
    ended = replace(child, state=_end_of_child(event), estimate=0, ending=True)
    return replace(run, chains={**run.chains, call.child: ended})


def _end_of_child(event: ToolCompleteEvent | ToolErrorEvent) -> State:
    if isinstance(event, ToolErrorEvent):
        if event.status in ("cancelled", "amended", "unknown_outcome"):
            return State.CANCELLED
        if event.status == "error":
            return State.FAILED
    return State.COMPLETED  # also where a limit ended it: then with a text of the framework's


def _tell_parents(run: RunState, chain_id: str) -> tuple[RunState, Commands]:
    """A chain that waits for humans only makes the call that called it wait, and so on to the root; or no longer."""
    commands: Commands = ()
    while True:
        child = run.chain(chain_id)
        parent_id = child.parent
        parent = run.chain(parent_id) if parent_id is not None else None
        call = parent.find(child.call_id) if parent is not None and child.call_id is not None else None
        if parent_id is None or parent is None or call is None or call.status not in ("running", "waiting"):
            return run, commands
        context = Context(run, parent_id, parent)
        waits = child.state is State.SUSPENDED
        after, started = settle(context, context.with_call(call, status="waiting" if waits else "running"))
        run = replace(run, chains={**run.chains, parent_id: after})
        commands += started
        if (after.state is State.SUSPENDED) is (parent.state is State.SUSPENDED):
            return run, commands
        chain_id = parent_id


# -- events --------------------------------------------------------------------------------------------------


def _on_input(context: Context, event: InputEvent) -> Step:
    chain = replace(context.chain, state=State.THINKING, input=event.text)
    return chain, (CallModel(context.chain_id, iteration=1),)


def _on_model_start(context: Context, event: ModelStartEvent) -> Step:
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
    estimate = event.input_tokens_estimate
    return replace(chain, state=State.AWAITING_MODEL, rounds=rounds, estimate=estimate), ()


def _on_delta(context: Context, event: DeltaEvent) -> Step:
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


def _on_rollback(context: Context, event: RollbackEvent) -> Step:
    if context.chain.round.void or event.attempt != context.chain.round.attempt:
        raise context.refuse(f"rollback of attempt {event.attempt}, which is not the current")
    command = CallModel(context.chain_id, iteration=context.chain.iteration, attempt=event.attempt + 1)
    return context.with_round(text="", reasoning="", void=True), (command,)


def _on_model_complete(context: Context, event: ModelCompleteEvent) -> Step:
    if context.chain.round.void or event.iteration != context.chain.iteration:
        raise context.refuse(f"model_complete of round {event.iteration}, which has no open call")
    calls = tuple(Call(call) for call in event.tool_calls)
    chain = replace(
        context.with_round(
            complete=True, finish_reason=event.finish_reason, calls=calls, provider_data=event.provider_data
        ),
        state=State.THINKING,
        estimate=0,
        usage=context.chain.usage + event.usage,
    )
    return judge(context, chain)


def _on_tool_start(context: Context, event: ToolStartEvent) -> Step:
    call = context.call(event.call_id, "pending", "ready", "retrying", "waiting")
    if event.attempt != call.attempt + 1:
        raise context.refuse(f"tool_start of attempt {event.attempt} for call {event.call_id!r}")
    chain = context.with_call(
        call,
        status="running",
        attempt=event.attempt,
        arguments=copy.deepcopy(event.arguments),
        child=event.child_chain_id,
        amended=None,
    )
    ending = chain.state is State.SUSPENDED
    return replace(chain, state=chain.state if ending else State.EXECUTING_TOOLS), ()


def _on_tool_delta(context: Context, event: ToolDeltaEvent) -> Step:
    call = context.call(event.call_id, "running")
    if event.attempt != call.attempt:
        raise context.refuse(f"tool_delta of attempt {event.attempt} for call {event.call_id!r}")
    return context.chain, ()


def _on_tool_complete(context: Context, event: ToolCompleteEvent) -> Step:
    return _close(context, event, "success")


def _on_tool_error(context: Context, event: ToolErrorEvent) -> Step:
    if not event.will_retry:
        return _close(context, event, event.status)
    call = _open_attempt(context, event)
    again = () if call.amended is None else (_run_again(context, call),)
    chain = context.with_call(call, status="retrying", child=None, duration_ms=call.duration_ms + event.duration_ms)
    return replace(chain, state=State.EXECUTING_TOOLS), again


def _run_again(context: Context, call: Call) -> RunTool:
    return RunTool(context.chain_id, call.call.call_id, approved=True, arguments=call.amended)


def _open_attempt(context: Context, event: ToolCompleteEvent | ToolErrorEvent) -> Call:
    call = context.call(event.call_id, "running", "waiting")
    if event.attempt != call.attempt:
        raise context.refuse(f"{event.type} of attempt {event.attempt} for call {event.call_id!r}")
    return call


def _close(context: Context, event: ToolCompleteEvent | ToolErrorEvent, outcome: str) -> Step:
    call = _open_attempt(context, event)
    chain = context.with_call(
        call,
        status="closed",
        outcome=outcome,
        result=event.result,
        duration_ms=call.duration_ms + event.duration_ms,
    )
    if outcome in _OF_ENDING_CHAINS:  # nothing follows from it any more
        return replace(chain, ending=True), ()
    after, commands = settle(context, chain)
    if call.amended is not None:
        data = {"target": event.call_id, "decision": "amended"}
        commands = (Warn(context.chain_id, "decision_too_late", _NOT_AGAIN, data), *commands)
    return after, commands


def _on_approval(context: Context, event: ApprovalEvent) -> Step:
    call = context.call(event.call_id, "ready")
    # A copy, as with all arguments here: whoever else is shown the event must not change what is run.
    return settle(context, context.with_call(call, status="waiting", arguments=copy.deepcopy(event.arguments)))


def _on_question(context: Context, event: QuestionEvent) -> Step:
    call = context.chain.find(event.question_id)
    if call is None:  # asked in the reply's text
        if not context.chain.rounds or not context.chain.round.closed:
            raise context.refuse("a question in a reply's text is asked after its calls have run")
        return replace(context.chain, state=State.SUSPENDED, question=event.question_id), ()
    call = context.call(event.question_id, "running")
    return settle(context, context.with_call(call, status="waiting", asks=True))


def _on_resolved(context: Context, event: ResolvedEvent) -> Step:
    chain, chain_id = context.chain, context.chain_id
    if event.target == chain.question:
        chain = replace(context.with_round(reply=event.text or ""), state=State.THINKING, question=None)
        return chain, (CallModel(chain_id, iteration=chain.iteration + 1),)
    if event.decision == "amended":
        return _amend(context, event)
    call = context.call(event.target, "waiting")
    if call.child is not None:
        raise context.refuse(f"call {event.target!r} waits for calls of its own agent")
    if event.decision == "answered":
        return replace(chain, state=State.EXECUTING_TOOLS), (CompleteTool(chain_id, event.target, event.text or ""),)
    if call.attempt:
        raise context.refuse(f"call {event.target!r} waits for an answer, not for a decision")
    chain = replace(context.with_call(call, status="ready"), state=State.EXECUTING_TOOLS)
    if event.decision == "approved":
        return chain, (RunTool(chain_id, event.target, approved=True, arguments=call.arguments),)
    why = f": {event.text}" if event.text else ""
    message = f"a human rejected this call{why}" if event.decision == "rejected" else "the approval expired"
    return chain, (refuse(chain_id, call, "rejected", event.decision, message),)


def _amend(context: Context, event: ResolvedEvent) -> Step:
    """Other arguments: of a call that waits for approval, or of one that is running and is begun again with them."""
    call = context.call(event.target, "waiting", "running", "retrying")
    if call.status == "waiting" and not call.attempt:
        chain = replace(context.with_call(call, status="ready"), state=State.EXECUTING_TOOLS)
        return chain, (RunTool(context.chain_id, event.target, approved=True, arguments=event.arguments),)
    amended = copy.deepcopy(event.arguments)
    chain = replace(context.with_call(call, amended=amended), state=State.EXECUTING_TOOLS)
    if call.status == "retrying":  # its next attempt will have them
        return chain, ()
    return chain, (StopTool(context.chain_id, event.target),)


def _on_warning(context: Context, event: WarningEvent) -> Step:
    chain = context.chain
    if event.code not in chain.warnings:
        chain = replace(chain, warnings=(*chain.warnings, event.code))
    answered = chain.state is State.THINKING and chain.rounds and chain.round.complete and not chain.round.calls
    if event.code not in CORRECTIONS or not answered:
        return chain, ()
    if chain.iteration >= chain.limits.max_iterations:
        return chain, (Finish(context.chain_id, "stop"),)
    # Something is wrong with the answer; the model is told so as by its user, and answers again.
    chain = replace(chain, rounds=(*chain.rounds[:-1], replace(chain.round, reply=event.message)))
    return chain, (CallModel(context.chain_id, iteration=chain.iteration + 1),)


def _on_note(context: Context, event: AgentEvent) -> Step:
    return context.chain, ()


_END_STATES: Final = {
    EventType.FINAL: State.COMPLETED,
    EventType.FAILED: State.FAILED,
    EventType.CANCELLED: State.CANCELLED,
}


def _on_end(context: Context, event: AgentEvent) -> Step:
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
