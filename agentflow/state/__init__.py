"""The state machine of a run: its table, its data, its commands, and `reduce`. Pure: no clock, await or I/O."""

from agentflow.state.chains import (
    TERMINAL_STATES,
    Call,
    ChainState,
    Change,
    Limits,
    Round,
    RunState,
    kept_messages,
    state_changes,
    tool_records,
    turn_messages,
)
from agentflow.state.commands import (
    Ask,
    CallModel,
    Command,
    CompleteTool,
    FailChild,
    Finish,
    Notice,
    RefuseTool,
    RunTool,
    StopTool,
    Warn,
)
from agentflow.state.reducer import reduce
from agentflow.state.rounds import TOKENS_NOTICE, resume
from agentflow.state.table import TABLE, diagram

__all__ = [
    "TABLE",
    "TERMINAL_STATES",
    "TOKENS_NOTICE",
    "Ask",
    "Call",
    "CallModel",
    "ChainState",
    "Change",
    "Command",
    "CompleteTool",
    "FailChild",
    "Finish",
    "Limits",
    "Notice",
    "RefuseTool",
    "Round",
    "RunState",
    "RunTool",
    "StopTool",
    "Warn",
    "diagram",
    "kept_messages",
    "reduce",
    "resume",
    "state_changes",
    "tool_records",
    "turn_messages",
]
