"""Agents as tools of other agents: what such a tool is, and how the answer of its chain becomes the call's result.

The chain itself is run like the root's, by the same machine and the same performer.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn, Protocol

import msgspec

from agentflow.chain.runtime import RunInfo, Runtime
from agentflow.errors import AgentflowError, ToolFailedError
from agentflow.events import AgentEvent, ErrorInfo, FinishReason, ToolCompleteEvent, ToolErrorEvent, ToolStatus
from agentflow.models.base import ChatModel
from agentflow.state import Call, ChainState, Limits
from agentflow.state.rounds import last_calls_failed
from agentflow.tools.execution import capped
from agentflow.tools.registry import Tool, ToolRegistry
from agentflow.tools.schema import opaque

MAX_DEPTH: Final = 5  # chains below the root

# How a chain ended that gave no answer of its own, as the status of the call that called it.
_STATUS: Final[dict[FinishReason, ToolStatus]] = {
    "max_iterations": "limit",
    "budget": "limit",
    "loop": "loop",
    "degraded": "degraded",
}

_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "input": {
            "type": "string",
            "description": "The task with all that it takes to do it: nothing else of this conversation is seen.",
        }
    },
    "required": ["input"],
    "additionalProperties": False,
}


class Callee(Protocol):
    """An agent, as far as a chain needs to know it to call it."""

    name: str
    tools: ToolRegistry

    def lend(self) -> tuple[Runtime, tuple[ChatModel, ...], str]:
        """What its chains share, the models to try in turn, and their name. Raises `ConfigError`."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class AgentTool(Tool):
    """A tool whose call is a chain of `agent`. Its one argument is the `input` of that chain."""

    agent: Callee


def callees(agent: Callee) -> Iterator[tuple[str, Callee]]:
    """The agents that `agent` has as tools, each with the tool's name."""
    for tool in agent.tools:
        if isinstance(tool, AgentTool):
            yield tool.name, tool.agent


def below(agent: Callee) -> Iterator[Callee]:
    """The agents that `agent`, or another below it, has as tools, each once; also those that form a circle."""
    found, waiting = {id(agent)}, [agent]
    while waiting:
        for _, callee in callees(waiting.pop()):
            if id(callee) not in found:
                found.add(id(callee))
                waiting.append(callee)
                yield callee


def limits_of(agent: Callee, depth: int = 0, made: dict[tuple[int, int], Limits] | None = None) -> Limits:
    """What the machine decides by for `agent`, with the agents below as far as they can be called.

    `made` are those of this run so far: agents that call each other can be reached in a great many ways.
    """
    made = {} if made is None else made
    if (id(agent), depth) not in made:
        limits = agent.lend()[0].limits
        sequential = frozenset(tool.name for tool in agent.tools if tool.sequential)
        reached = callees(agent) if depth < MAX_DEPTH else ()
        children = {name: limits_of(callee, depth + 1, made) for name, callee in reached}
        if sequential or children:
            limits = msgspec.structs.replace(limits, sequential=sequential, children=children)
        made[id(agent), depth] = limits
    return made[id(agent), depth]


def agent_tool(agent: Callee, *, name: str, description: str, **declared: Any) -> AgentTool:
    """The tool that calls `agent`; `declared` are further fields of `Tool`."""

    def function(**_: Any) -> NoReturn:
        raise AgentflowError(f"the agent {agent.name!r} as a tool is run by a chain, not called")

    contract = opaque(_PARAMETERS, name=name, description=description)
    return AgentTool(
        name=name,
        description=description,
        function=function,
        kind="coroutine",
        contract=contract,
        agent=agent,
        **declared,
    )


def child_of(above: Runtime, parent: RunInfo, tool: AgentTool, text: str) -> tuple[Runtime, RunInfo]:
    """A chain of the tool's agent below `parent`, in the same run: store, bus, time and gate are the run's."""
    runtime, models, model_name = tool.agent.lend()
    runtime = replace(runtime, store=above.store, bus=above.bus, clock=above.clock, owner=above.owner, gate=above.gate)
    info = replace(
        parent,
        chain_id=str(uuid.uuid4()),
        parent_chain_id=parent.chain_id,
        path=(*parent.path, tool.agent.name),
        text=text,
        content=text,
        models=models,
        model_name=model_name,
    )
    return runtime, info


def answer_event(call: Call, chain: ChainState, reason: FinishReason, fields: dict[str, Any]) -> AgentEvent:
    """The event that closes `call`, whose chain has come to its end for `reason`: its text is the result.

    An answer that nothing supports is none, however it is put: the last calls of the agent have all failed.
    """
    status, text = _STATUS.get(reason), chain.round.text
    message = f"the agent came to its end without an answer of its own ({reason})"
    if status is None and last_calls_failed(chain):
        status, message = "error", "the last tool calls of this agent have all failed"
        text = f"{message}; it says:\n{text}"
    common = _common(call) | fields
    if status is None:
        result, truncated = capped("[success]", text)
        return ToolCompleteEvent(result=result, truncated=truncated, **common)
    kind = ToolFailedError.kind if status == "error" else status
    result, _ = capped("[degraded]" if status == "degraded" else f"[error: {kind}]", text)
    return ToolErrorEvent(status=status, error=ErrorInfo(kind=kind, message=message), result=result, **common)


def failure_event(call: Call, kind: str, message: str, fields: dict[str, Any]) -> ToolErrorEvent:
    """The event that closes `call`, whose chain has failed."""
    return ToolErrorEvent(
        status="error",
        error=ErrorInfo(kind=kind, message=message),
        result=f"[error: {kind}]\n{message}",
        **_common(call) | fields,
    )


def _common(call: Call) -> dict[str, Any]:
    return {"call_id": call.call.call_id, "tool": call.call.name, "attempt": call.attempt}
