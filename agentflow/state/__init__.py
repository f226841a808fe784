"""The state machine of a run: its table, its data, its commands, and `reduce`. Pure: no clock, await or I/O."""

from agentflow.state.chains import (
    TERMINAL_STATES,
    Call,
    ChainState,
    Limits,
    Round,
    RunState,
    kept_messages,
    tool_records,
    turn_messages,
)
from agentflow.state.commands import CallModel, Command, CompleteTool, Finish, Notice, RefuseTool, RunTool
from agentflow.state.reducer import reduce
from agentflow.state.table import TABLE, diagram

__all__ = [
    "TABLE",
    "TERMINAL_STATES",
    "Call",
    "CallModel",
    "ChainState",
    "Command",
    "CompleteTool",
    "Finish",
    "Limits",
    "Notice",
    "RefuseTool",
    "Round",
    "RunState",
    "RunTool",
    "diagram",
    "kept_messages",
    "reduce",
    "tool_records",
    "turn_messages",
]
