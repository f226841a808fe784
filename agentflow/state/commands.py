"""What the state machine asks the chain to do. Plain data; the chain performs it, and the results are events."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agentflow.events import FinishReason, ToolStatus


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model: the request is the history, the instructions, and `turn_messages` of the chain."""

    chain_id: str
    iteration: int
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class RunTool:
    """Resolve the call's arguments and run it. `arguments` stand in for the model's after an amendment."""

    chain_id: str
    call_id: str
    approved: bool = False
    arguments: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RefuseTool:
    """Answer the call with an error, without running it."""

    chain_id: str
    call_id: str
    status: ToolStatus
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class CompleteTool:
    """Answer the call with `result`: a human gave it."""

    chain_id: str
    call_id: str
    result: str


@dataclass(frozen=True, slots=True)
class StopTool:
    """Stop the call where it runs: it is to be started again with the arguments that it was amended to."""

    chain_id: str
    call_id: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the user what the model asked in its reply's text."""

    chain_id: str
    text: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Warn:
    """Note something under a warning's code; what is wrong with the model's answer it is told, as by its user."""

    chain_id: str
    code: str
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notice:
    """End the chain with a text of the framework's own, told as one more iteration."""

    chain_id: str
    text: str
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class FailChild:
    """End a chain that is no root with an error: asked for by what it is made of, not by the machine."""

    chain_id: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Finish:
    """End the chain: the text of its last round is the answer."""

    chain_id: str
    finish_reason: FinishReason


Command: TypeAlias = (
    CallModel | RunTool | RefuseTool | CompleteTool | StopTool | Ask | Warn | Notice | FailChild | Finish
)
Commands: TypeAlias = tuple[Command, ...]
