"""agentflow: LLM agents as observable chains of typed events.

The names most programs need. Everything else is imported from the module that names the thing:
`agentflow.events`, `agentflow.errors`, `agentflow.operators`, `agentflow.testing` and so on.
"""

from agentflow.agent import Agent
from agentflow.bus import EventBus
from agentflow.chain import AgentChain, AgentReply, AgentRequest
from agentflow.chain.fact_tools import fact_tools
from agentflow.errors import AgentflowError, ConfigError, RunCancelled, RunFailed, StoreError
from agentflow.events import AgentEvent, EventType, State
from agentflow.messages import Message, ToolCall, Usage
from agentflow.models.base import ChatModel, ModelChunk, ModelRequest
from agentflow.operators import micro_batch, of_type
from agentflow.settings import Settings
from agentflow.stores.in_memory import InMemoryStore
from agentflow.stores.sqlite import SqliteStore
from agentflow.tools import ToolContext, tool

__all__ = [
    "Agent",
    "AgentChain",
    "AgentEvent",
    "AgentReply",
    "AgentRequest",
    "AgentflowError",
    "ChatModel",
    "ConfigError",
    "EventBus",
    "EventType",
    "InMemoryStore",
    "Message",
    "ModelChunk",
    "ModelRequest",
    "RunCancelled",
    "RunFailed",
    "Settings",
    "SqliteStore",
    "State",
    "StoreError",
    "ToolCall",
    "ToolContext",
    "Usage",
    "fact_tools",
    "micro_batch",
    "of_type",
    "tool",
]
