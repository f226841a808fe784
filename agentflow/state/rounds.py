"""What a round of a chain asks for: which calls run, which are refused, and how the chain goes on after them.

Decisions over data. How events change that data is in `reducer`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from agentflow.errors import InvalidTransition
from agentflow.events import FinishReason, State, ToolStatus
from agentflow.state.chains import Call, CallStatus, ChainState, Limits, Round, RunState
from agentflow.state.claims import claims_success
from agentflow.state.commands import Ask, CallModel, Command, Finish, Notice, RefuseTool, RunTool, Warn
from agentflow.state.loops import is_stuck
from agentflow.state.questions import question_of

Commands: TypeAlias = tuple[Command, ...]
Step: TypeAlias = tuple[ChainState, Commands]

# How replies that are whole end. One that ends for any other reason may be cut, and its calls too, even if they parse.
_WHOLE_REASONS: Final = frozenset(
    {None, "", "stop", "tool_calls", "function_call", "tool_use", "end_turn", "stop_sequence", "eos", "refusal"}
)
_OPEN: Final = frozenset({"ready", "running", "retrying"})
_TO_CORRECT: Final = frozenset({"invalid_arguments", "unknown_tool"})

_CUT = "the reply was cut short ({reason}), so this call may be incomplete and was not run; send it again, shorter"
_NO_ROUND_LEFT = "the limit of {limit} model rounds is reached, so this call was not run"
_TOO_MANY_AT_ONCE = (
    "at most {limit} calls of one reply are run, so this one was not; ask again for what is still needed"
)
_NO_CALL_LEFT = "the limit of {limit} tool calls in a run is reached, so this call was not run"

_ROUNDS_NOTICE = (
    "I stopped here because this request reached its limit of {limit} model rounds. "
    "What was found so far stands above; a narrower question may get further."
)
_CALLS_NOTICE = (
    "I stopped here because this request reached its limit of {limit} tool calls. "
    "What was found so far stands above; a narrower question may get further."
)
_CORRECTIONS_NOTICE = (
    "I stopped here because the tool calls for this request were still not valid after several corrections, "
    "so they were not carried out. Please put the request in other words, or give the missing details."
)
_LOOP_NOTICE = (
    "I stopped here because the same tool calls with the same results were repeated over and over. "
    "What was found so far stands above."
)
TOKENS_NOTICE: Final = (
    "I stopped here because this request used up its budget of {limit} tokens. What was found so far stands above."
)
_RECONSIDER = (
    "Your last tool calls have all failed, as their results say, yet your answer does not say so. Correct it: tell the "
    "user plainly what could not be done and why. Do not claim anything that no successful tool result shows."
)


@dataclass(frozen=True, slots=True)
class Context:
    """The chain that an event is about, in its run."""

    run: RunState
    chain_id: str
    chain: ChainState

    @property
    def limits(self) -> Limits:
        """What this chain's agent sets."""
        return self.chain.limits

    def refuse(self, reason: str) -> InvalidTransition:
        """The error for an event that does not fit what is known."""
        return InvalidTransition(f"{reason} (chain {self.chain_id!r}, state {self.chain.state})")

    def call(self, call_id: str, *statuses: CallStatus) -> Call:
        """The call of this round, which must have one of these statuses."""
        call = self.chain.find(call_id)
        if call is None or call.status not in statuses:
            known = "is unknown" if call is None else f"is {call.status}"
            raise self.refuse(f"call {call_id!r} {known}, expected {' or '.join(statuses)}")
        return call

    def with_round(self, **changes: Any) -> ChainState:
        """The chain with its round changed."""
        return _with_round(self.chain, **changes)

    def with_call(self, call: Call, **changes: Any) -> ChainState:
        """The chain with one call of its round changed."""
        return _with_calls(self.chain, {call.call.call_id}, **changes)


def _with_round(chain: ChainState, **changes: Any) -> ChainState:
    return replace(chain, rounds=(*chain.rounds[:-1], replace(chain.round, **changes)))


def _with_calls(chain: ChainState, ids: Collection[str], **changes: Any) -> ChainState:
    return _with_round(
        chain, calls=tuple(replace(c, **changes) if c.call.call_id in ids else c for c in chain.round.calls)
    )


# -- the model's whole reply ---------------------------------------------------------------------------------


def judge(context: Context, chain: ChainState) -> Step:
    """What the model's whole reply asks for: an answer, a question, or calls."""
    reason, calls, limits = chain.round.finish_reason, chain.round.calls, chain.limits
    if reason == "error" and limits.degraded:
        return chain, (Notice(context.chain_id, limits.degraded, "degraded"),)
    if not calls:
        return chain, (_judge_answer(context.chain_id, chain),)
    if reason not in _WHOLE_REASONS:
        return _refuse_calls(context, chain, calls, "invalid_arguments", "truncated", _CUT.format(reason=reason))
    if chain.iteration >= limits.max_iterations:
        message = _NO_ROUND_LEFT.format(limit=limits.max_iterations)
        return _refuse_calls(context, chain, calls, "limit", "limit", message)
    return _start_round(context, chain)


def _judge_answer(chain_id: str, chain: ChainState) -> Command:
    round_ = chain.round
    question = question_of(round_.text) if chain.limits.questions else None
    if question is not None and chain.iteration < chain.limits.max_iterations:
        return Ask(chain_id, question.text, question.options)
    if _hides_failure(chain):
        return Warn(chain_id, "unsupported_success", _RECONSIDER)
    return Finish(chain_id, "length" if round_.finish_reason == "length" else "stop")


def _hides_failure(chain: ChainState) -> bool:
    """Whether the answer does not say that nothing has worked; asked once of a chain."""
    if "unsupported_success" in chain.warnings or chain.round.finish_reason == "refusal":
        return False
    return last_calls_failed(chain) and claims_success(chain.round.text)


def last_calls_failed(chain: ChainState) -> bool:
    """Whether the last calls of the chain have all failed, so that nothing supports its answer.

    A call that the loop guard refused has its result from before, so it neither failed nor succeeded; and a user who
    answers a question has done nothing.
    """
    for turn in reversed(chain.rounds):
        outcomes = {call.outcome for call in turn.calls if not call.asks} - {"loop"}
        if outcomes:
            return "success" not in outcomes
    return False


def _start_round(context: Context, chain: ChainState) -> Step:
    """Run the calls of a reply as far as the limits allow, refuse the others."""
    calls, at_once, in_all = chain.round.calls, chain.limits.max_round_calls, context.run.limits.max_tool_calls
    left = max(in_all - calls_used(context.run), 0)
    over = calls[min(left, at_once) :]
    chain, refused = (
        _refuse_calls(context, chain, over, "limit", "limit", _TOO_MANY_AT_ONCE.format(limit=at_once))
        if left > at_once
        else _refuse_calls(context, chain, over, "limit", "budget", _NO_CALL_LEFT.format(limit=in_all))
    )
    chain, started = _start_next(context.chain_id, chain)
    return chain, (*started, *refused)


def calls_used(run: RunState) -> int:
    """The calls of all chains that were, or will be, more than refused for a limit."""
    calls = (call for chain in run.chains.values() for turn in chain.rounds for call in turn.calls)
    return sum(call.outcome != "limit" or call.child is not None for call in calls)


def _refuse_calls(
    context: Context, chain: ChainState, calls: Sequence[Call], status: ToolStatus, kind: str, message: str
) -> Step:
    commands = tuple(refuse(context.chain_id, call, status, kind, message) for call in calls)
    return _with_calls(chain, {call.call.call_id for call in calls}, status="ready"), commands


def refuse(chain_id: str, call: Call, status: ToolStatus, kind: str, message: str) -> RefuseTool:
    """The command that answers `call` with an error."""
    return RefuseTool(chain_id, call.call.call_id, status=status, kind=kind, message=message)


def resume(run: RunState, chain_id: str) -> Commands:
    """What a chain in `thinking` was about to do when its process died: the log holds what it knew, not what it did."""
    chain = run.chain(chain_id)
    if not chain.rounds or chain.round.reply is not None:
        return (CallModel(chain_id, iteration=chain.iteration + 1),)
    if chain.round.calls:
        return _go_on(Context(run, chain_id, chain), chain)[1]
    return (_judge_answer(chain_id, chain),)


# -- while its calls run -------------------------------------------------------------------------------------


def settle(context: Context, chain: ChainState) -> Step:
    """After a call of the round has changed: start what there is room for, or wait, or go on with the chain."""
    if chain.round.closed:
        return _go_on(context, replace(chain, state=State.THINKING))
    chain, commands = _start_next(context.chain_id, chain)
    works = any(call.status in _OPEN for call in chain.round.calls)
    return replace(chain, state=State.EXECUTING_TOOLS if works else State.SUSPENDED), commands


def _start_next(chain_id: str, chain: ChainState) -> Step:
    """Ask for the calls there is room for, in the model's order; a sequential one only when it is alone."""
    limits = chain.limits
    ids: list[str] = []
    room = limits.max_parallel_tools - sum(call.status in _OPEN for call in chain.round.calls)
    alone = True  # whether no call before this one is open
    for call in chain.round.calls:
        sequential = call.call.name in limits.sequential
        if call.status == "pending":
            if room <= 0 or (sequential and not alone):
                break
            ids.append(call.call.call_id)
            room -= 1
        if call.status != "closed":
            alone = False
            if sequential:
                break
    commands = tuple(RunTool(chain_id, call_id) for call_id in ids)
    return (_with_calls(chain, ids, status="ready") if ids else chain), commands


# -- when all of its calls have their results ----------------------------------------------------------------


def _go_on(context: Context, chain: ChainState) -> Step:
    """Ask the user or the model again, or end the chain where it must not go on."""
    stopped = _stopped(context, chain)
    if stopped is not None:
        return chain, (Notice(context.chain_id, *stopped),)
    question = question_of(chain.round.text) if chain.limits.questions else None
    if question is not None:
        return chain, (Ask(context.chain_id, question.text, question.options),)
    return chain, (CallModel(context.chain_id, iteration=chain.iteration + 1),)


def _stopped(context: Context, chain: ChainState) -> tuple[str, FinishReason] | None:
    """The text and the reason of the end, if the chain has come to one of its limits."""
    limits, run = chain.limits, context.run
    if chain.iteration >= limits.max_iterations:
        return _ROUNDS_NOTICE.format(limit=limits.max_iterations), "max_iterations"
    if is_stuck(chain):
        return _LOOP_NOTICE, "loop"
    refused = any(call.outcome == "limit" for call in chain.round.calls)
    if refused and calls_used(run) >= run.limits.max_tool_calls:
        return _CALLS_NOTICE.format(limit=run.limits.max_tool_calls), "budget"
    if _is_uncorrectable(context, chain):
        return _CORRECTIONS_NOTICE, "budget"
    return None


def _is_uncorrectable(context: Context, chain: ChainState) -> bool:
    """Whether this round's calls need a correction that no budget is left for.

    A correction is a round with calls that were refused for their arguments or names, however many: the model hears of
    them at once. A round in which another call succeeded ends a row.
    """
    if not _needs_correction(chain.round):
        return False
    others = (other for key, other in context.run.chains.items() if key != context.chain_id)
    in_all = sum(_needs_correction(turn) for other in (*others, chain) for turn in other.rounds)
    row = takewhile(_is_all_wrong, reversed(chain.rounds))
    return sum(1 for _ in row) > chain.limits.max_corrections or in_all > context.run.limits.max_all_corrections


def _is_all_wrong(turn: Round) -> bool:
    return _needs_correction(turn) and all(call.outcome != "success" for call in turn.calls)


def _needs_correction(turn: Round) -> bool:
    return any(call.outcome in _TO_CORRECT for call in turn.calls)
