"""Whether a call of the model's goes round in a circle, or repeats one that was just done.

It reads what a chain has done and judges; what comes of the judgement is up to the chain. Pure.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, Literal, TypeAlias

from agentflow.errors import InvalidTransition
from agentflow.state.chains import Call, ChainState, Round

Verdict: TypeAlias = Literal["run", "loop"] | Call
"""Run the call, refuse it as a loop, or answer it with the result of this earlier call."""

MAX_PERIOD: Final = 16  # calls; a longer cycle is left to the limit of rounds

# Such a call did nothing and learnt nothing: it is no step of a circle, and no step out of one.
_NEVER_RAN: Final = frozenset({"invalid_arguments", "unknown_tool", "rejected", "limit", "cancelled", "amended"})


@dataclass(frozen=True, slots=True)
class _Step:
    """A call that has run: two are equal if they asked for the same and got the same."""

    tool: str
    arguments: str
    result: str
    asked: tuple[str, str] = field(compare=False)


def guard(chain: ChainState, call_id: str, arguments: Mapping[str, Any], *, idempotent: bool) -> Verdict:
    """What to do with this call of the current round, whose arguments are resolved to `arguments`.

    "loop" if the calls of the earlier rounds end with one cycle of up to `MAX_PERIOD` calls twice, results included,
    and this call, with those before it in its round, begins or goes on with a third. While results change, no repeated
    call is a loop.

    Else, if the tool is not `idempotent` and the model repeats all that ran in the round before, the call of that
    round which did just this; a repeated batch is most likely a mistake, a single part of one may be meant. Else "run".

    A call refused with outcome "loop" is taken for the one it would have repeated, so its `Call.arguments` have to be
    the resolved ones too. The cost is linear in the calls of the chain. Raises `InvalidTransition` if no call of the
    current round has that id.
    """
    call = chain.find(call_id)
    if call is None:
        raise InvalidTransition(f"call {call_id!r} cannot be judged: expected the id of a call of the current round")
    *earlier, current = chain.rounds
    before = list(takewhile(lambda other: other is not call, current.calls))
    wanted = _canonical(arguments)
    if _repeated(_steps(earlier), _ran(before), call.call.name, wanted) is not None:
        return "loop"
    first = None if idempotent or not earlier else _done(earlier[-1], current, call.call.name, wanted)
    return first or "run"


def is_stuck(chain: ChainState) -> bool:
    """Whether the model went on after it was told of its loop: two rounds in a row hold a call refused as one."""
    last = chain.rounds[-2:]
    return len(last) == 2 and all(any(call.outcome == "loop" for call in turn.calls) for turn in last)


def _steps(rounds: Iterable[Round]) -> list[_Step]:
    """What the calls of these rounds did, in the order the model asked."""
    steps: list[_Step] = []
    for turn in rounds:
        earlier, calls = tuple(steps), _ran(turn.calls)
        steps += [_step(call, earlier, calls[:position]) for position, call in enumerate(calls)]
    return steps


def _step(call: Call, earlier: Sequence[_Step], before: Sequence[Call]) -> _Step:
    tool, arguments, result = call.call.name, _canonical(call.arguments), call.result
    if call.outcome == "loop":
        repeated = _repeated(earlier, before, tool, arguments)
        result = repeated.result if repeated is not None else result
    return _Step(tool, arguments, result, _asked(call))


def _repeated(earlier: Sequence[_Step], before: Sequence[Call], tool: str, arguments: str) -> _Step | None:
    """The step that a call with these calls `before` it in its round would go round to once more, if any."""
    for period in range(1, min(MAX_PERIOD, len(earlier) // 2) + 1):
        cycle = earlier[-period:]
        step = cycle[len(before) % period]
        if (step.tool, step.arguments) != (tool, arguments) or cycle != earlier[-2 * period : -period]:
            continue
        if all(_asked(call) == cycle[position % period].asked for position, call in enumerate(before)):
            return step
    return None


def _done(previous: Round, current: Round, tool: str, arguments: str) -> Call | None:
    """The call of the previous round that did just this, if all that ran in that round is asked again."""
    ran = _ran(previous.calls)
    for call in ran:
        if call.outcome == "success" and (call.call.name, _canonical(call.arguments)) == (tool, arguments):
            return call if Counter(map(_asked, ran)) <= Counter(map(_asked, current.calls)) else None
    return None


def _ran(calls: Iterable[Call]) -> list[Call]:
    return [call for call in calls if call.outcome not in _NEVER_RAN]


def _asked(call: Call) -> tuple[str, str]:
    """The call in the model's words, which are known before its arguments are resolved."""
    raw = call.call.raw_arguments
    try:
        return call.call.name, _canonical(json.loads(raw))
    except (ValueError, RecursionError):
        return call.call.name, raw  # not readable: compared as the text it is


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
