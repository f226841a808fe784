"""Tools: ordinary functions that a model may call, their schemas, and how they are run."""

from agentflow.tools.asking import ask_user
from agentflow.tools.builtin import BUILTIN_TOOLS, calculator, current_time
from agentflow.tools.coercion import Correction
from agentflow.tools.execution import ToolOutcome, execute
from agentflow.tools.pools import Pools, ThreadPool
from agentflow.tools.registry import Tool, ToolObject, ToolRegistry, tool
from agentflow.tools.resolvers import DEFAULT_RESOLVERS, Resolved, Resolver, resolve
from agentflow.tools.schema import ToolContext

__all__ = [
    "BUILTIN_TOOLS",
    "DEFAULT_RESOLVERS",
    "Correction",
    "Pools",
    "Resolved",
    "Resolver",
    "ThreadPool",
    "Tool",
    "ToolContext",
    "ToolObject",
    "ToolOutcome",
    "ToolRegistry",
    "ask_user",
    "calculator",
    "current_time",
    "execute",
    "resolve",
    "tool",
]
