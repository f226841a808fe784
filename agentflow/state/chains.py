"""What is known of a run: its chains, their rounds and calls, and the messages these amount to.

Immutable data and readings of it; how events change it is in `reducer`.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from agentflow.events import State, ToolRecord
from agentflow.messages import Message, ToolCall, Usage

TERMINAL_STATES: Final = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})

CallStatus: TypeAlias = Literal["pending", "ready", "running", "retrying", "waiting", "closed"]


class Limits(msgspec.Struct, frozen=True):
    """What the machine decides by for one agent; the budgets of a whole run are its root's.

    `max_parallel_tools` calls of one round run at a time, `max_round_calls` of one reply are run at all. A model is
    corrected in at most `max_corrections` rounds in a row and in `max_all_corrections` of a run. `max_tool_calls` and
    `token_budget` (0 for any number) bound a run with all its children. `degraded` is the answer when every model has
    failed, "" for none: then the run fails. `questions` says whether a reply `{question, options}` asks the user.
    `sequential` tools run beside no other call of their round. `children` are the limits of the agents that are this
    one's tools, by the tool's name.
    """

    max_iterations: int = 15
    max_parallel_tools: int = 16
    max_round_calls: int = 128
    max_tool_calls: int = 100
    token_budget: int = 0
    max_corrections: int = 3
    max_all_corrections: int = 8
    degraded: str = ""
    questions: bool = True
    sequential: frozenset[str] = frozenset()
    children: Mapping[str, "Limits"] = msgspec.field(default_factory=dict)


class Call(msgspec.Struct, frozen=True):
    """A tool call of a round; `outcome` is "success" or the status of its error.

    It is pending until there is room for it, ready once it was asked to run, running between `tool_start` and its
    closing event, retrying between two attempts, waiting for a human (its own, or all of its child chain's calls),
    closed when it has its result. `child` is the chain of the agent that it calls, `amended` the arguments that a
    human gave to a call that was already running, `asks` tells a question to the user.
    """

    call: ToolCall
    status: CallStatus = "pending"
    attempt: int = 0
    arguments: dict[str, Any] | None = None
    outcome: str = ""
    result: str = ""
    duration_ms: float = 0.0
    child: str | None = None
    amended: dict[str, Any] | None = None
    asks: bool = False

    @property
    def started(self) -> bool:
        """Whether an attempt is open: it has its `tool_start` and not yet its closing event."""
        return self.status == "running" or (self.status == "waiting" and self.attempt > 0)


class Round(msgspec.Struct, frozen=True):
    """One turn of the model and what came of it. `complete` once the model's reply is whole.

    `void` from a rollback to the start of the next attempt, in which nothing more can come of this one.
    `reply` is a user's answer to a question the model asked in its text.
    """

    attempt: int = 1
    text: str = ""
    reasoning: str = ""
    complete: bool = False
    void: bool = False
    finish_reason: str | None = None
    calls: tuple[Call, ...] = ()
    provider_data: dict[str, Any] | None = None
    reply: str | None = None

    @property
    def closed(self) -> bool:
        """Whether every call has its result."""
        return all(call.status == "closed" for call in self.calls)


class ChainState(msgspec.Struct, frozen=True):
    """One chain of a run: the root, or an agent that was called as a tool by `call_id` of the chain `parent`.

    `estimate` is what the open model call was expected to read, in tokens; `warnings` are the codes of those told.
    """

    limits: Limits = msgspec.field(default_factory=Limits)
    parent: str | None = None
    call_id: str | None = None
    state: State = State.IDLE
    input: str | None = None
    estimate: int = 0
    warnings: tuple[str, ...] = ()
    rounds: tuple[Round, ...] = ()
    usage: Usage = msgspec.field(default_factory=Usage)
    question: str | None = None
    ending: bool = False

    @property
    def iteration(self) -> int:
        """The model round it is in, from 1; 0 before the first."""
        return len(self.rounds)

    @property
    def round(self) -> Round:
        """The round it is in."""
        return self.rounds[-1]

    def open_calls(self) -> tuple[Call, ...]:
        """The calls of this round that have no result yet."""
        calls = self.rounds[-1].calls if self.rounds else ()
        return tuple(call for call in calls if call.status != "closed")

    def find(self, call_id: str) -> Call | None:
        """The call of this round with that id."""
        calls = self.rounds[-1].calls if self.rounds else ()
        return next((call for call in calls if call.call.call_id == call_id), None)


class RunState(msgspec.Struct, frozen=True):
    """All chains of a run, by chain id. The root's id is the run's."""

    run_id: str
    limits: Limits = msgspec.field(default_factory=Limits)
    chains: Mapping[str, ChainState] = msgspec.field(default_factory=dict)

    def chain(self, chain_id: str) -> ChainState:
        """That chain; a fresh one if nothing is known of it yet."""
        return self.chains.get(chain_id) or ChainState(limits=self.limits)

    @property
    def root(self) -> ChainState:
        """The chain the run is named after."""
        return self.chain(self.run_id)

    @property
    def ended(self) -> bool:
        """Whether the run has its terminal event."""
        return self.root.state in TERMINAL_STATES

    @property
    def usage(self) -> Usage:
        """What the model calls of all chains have used."""
        return sum((chain.usage for chain in self.chains.values()), Usage())

    def depth(self, chain_id: str) -> int:
        """How many chains stand above that one."""
        depth = 0
        while (parent := self.chain(chain_id).parent) is not None:
            chain_id, depth = parent, depth + 1
        return depth

    def open_chains(self) -> tuple[str, ...]:
        """The chains that have not ended, the deepest first."""
        open_ids = (chain_id for chain_id, chain in self.chains.items() if chain.state not in TERMINAL_STATES)
        return tuple(sorted(open_ids, key=self.depth, reverse=True))

    def find_call(self, call_id: str) -> tuple[str, Call] | None:
        """The call of that id in the current round of any chain that is open, with its chain's id."""
        for chain_id in self.open_chains():
            call = self.chains[chain_id].find(call_id)
            if call is not None:
                return chain_id, call
        return None

    def below(self, chain_id: str) -> tuple[str, ...]:
        """That chain and all that it has called which are open, the deepest first."""
        return tuple(found for found in self.open_chains() if chain_id in self._line(found))

    def _line(self, chain_id: str) -> Iterator[str]:
        """That chain and those above it."""
        found: str | None = chain_id
        while found is not None:
            yield found
            found = self.chain(found).parent


Change: TypeAlias = tuple[str, State, State]


def state_changes(before: RunState, after: RunState) -> tuple[list[Change], list[Change]]:
    """The chains whose state an event has changed, as (chain, previous, current), the deepest first.

    First those that end by it, whose `state` events stand before it; then the others, whose stand behind it.
    """
    if len(after.chains) == 1:
        previous, current = before.root.state, after.root.state
        changes = [(after.run_id, previous, current)] if previous is not current else []
    else:
        changes = [
            (chain_id, before.chain(chain_id).state, chain.state)
            for chain_id, chain in sorted(after.chains.items(), key=lambda item: after.depth(item[0]), reverse=True)
            if before.chain(chain_id).state is not chain.state
        ]
    ends = [change for change in changes if change[2] in TERMINAL_STATES]
    return ends, [change for change in changes if change[2] not in TERMINAL_STATES]


def turn_messages(chain: ChainState) -> tuple[Message, ...]:
    """The chain's messages so far, without the history before it: what a provider is shown, and what is kept.

    Paired whenever no call is open. The text of a reply that was broken off is kept as the assistant's.
    """
    if chain.input is None:
        return ()
    messages = [Message(role="user", content=chain.input)]
    for turn in chain.rounds:
        calls = tuple(call.call for call in turn.calls)
        failed = turn.finish_reason == "error" and turn is not chain.rounds[-1]  # a degraded answer took its place
        if (turn.complete or turn.text) and not failed:
            messages.append(
                Message(
                    role="assistant",
                    content=turn.text,
                    tool_calls=calls,
                    reasoning=turn.reasoning,
                    provider_data=turn.provider_data,
                )
            )
        messages += [
            Message(role="tool", content=call.result, call_id=call.call.call_id, name=call.call.name)
            for call in turn.calls
        ]
        if turn.reply is not None:
            messages.append(Message(role="user", content=turn.reply))
    return tuple(messages)


def kept_messages(chain: ChainState) -> tuple[Message, ...]:
    """The chain's messages as a session keeps them once the run has ended.

    A turn that ended without an answer is closed by one that says so: some providers refuse a history in which a
    user's message follows a tool's result or another user's message.
    """
    messages = turn_messages(chain)
    if not messages or messages[-1].role == "assistant":
        return messages
    return (*messages, Message(role="assistant", content=f"[no answer: the run {chain.state}]"))


def tool_records(chain: ChainState) -> tuple[ToolRecord, ...]:
    """Every call of the chain with its outcome, in the order the model asked: `final.tools`."""
    return tuple(
        ToolRecord(
            call_id=call.call.call_id,
            tool=call.call.name,
            arguments=copy.deepcopy(call.arguments),  # it goes to users, and the call may still be to run with them
            status=call.outcome,
            result=call.result,
            duration_ms=call.duration_ms,
        )
        for turn in chain.rounds
        for call in turn.calls
    )
