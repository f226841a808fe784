"""What is known of a run: its chains, their rounds and calls, and the messages these amount to.

Immutable data and readings of it; how events change it is in `reducer`.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from agentflow.events import State, ToolRecord
from agentflow.messages import Message, ToolCall, Usage

TERMINAL_STATES: Final = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})

CallStatus: TypeAlias = Literal["pending", "ready", "running", "retrying", "waiting", "closed"]


class Limits(msgspec.Struct, frozen=True):
    """What the machine decides by.

    `max_parallel_tools` calls of one round run at a time; `degraded` is the answer when every model has failed, ""
    for none: then the run fails.
    """

    max_iterations: int = 15
    max_parallel_tools: int = 16
    degraded: str = ""


class Call(msgspec.Struct, frozen=True):
    """A tool call of a round; `outcome` is "success" or the status of its error.

    It is pending until there is room for it, ready once it was asked to run, running between `tool_start` and its
    closing event, retrying between two attempts, waiting for a human, closed when it has its result.
    """

    call: ToolCall
    status: CallStatus = "pending"
    attempt: int = 0
    arguments: dict[str, Any] | None = None
    outcome: str = ""
    result: str = ""
    duration_ms: float = 0.0

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
    """One chain of a run: the root, or an agent that was called as a tool."""

    state: State = State.IDLE
    input: str | None = None
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
        return self.chains.get(chain_id) or ChainState()

    @property
    def root(self) -> ChainState:
        """The chain the run is named after."""
        return self.chain(self.run_id)

    @property
    def ended(self) -> bool:
        """Whether the run has its terminal event."""
        return self.root.state in TERMINAL_STATES


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
            arguments=call.arguments,
            status=call.outcome,
            result=call.result,
            duration_ms=call.duration_ms,
        )
        for turn in chain.rounds
        for call in turn.calls
    )
