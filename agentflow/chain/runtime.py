"""What an agent lends to its runs, and what makes one run that run. Plain data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agentflow.bus import EventBus
from agentflow.events import AgentEvent
from agentflow.messages import ToolSpec
from agentflow.models.base import ChatModel
from agentflow.operators import MAX_BATCH_BYTES, WINDOW_SECONDS
from agentflow.state import Limits
from agentflow.stores.base import SessionKey, Store
from agentflow.streams import Clock, TaskOwner
from agentflow.tools.pools import Pools
from agentflow.tools.registry import ToolRegistry

Transform: TypeAlias = Callable[[AgentEvent], AgentEvent]


@dataclass(frozen=True, slots=True)
class Runtime:
    """Shared by all runs of one agent. `owner` owns the tasks that outlive a run's own, such as its writer.

    `timeout` is in seconds, for a whole run; `run_log_bytes` bounds the encoded events of one run.
    `describe_tools` gives the tools as a model sees them and the estimate of their tokens.
    """

    name: str
    instructions: str
    store: Store
    bus: EventBus
    tools: ToolRegistry
    describe_tools: Callable[[], tuple[tuple[ToolSpec, ...], int]]
    pools: Pools
    clock: Clock
    owner: TaskOwner
    limits: Limits = field(default_factory=Limits)
    timeout: float = 600.0
    window: float = WINDOW_SECONDS
    max_batch_bytes: int = MAX_BATCH_BYTES
    run_log_bytes: int = 16 * 1024 * 1024
    temperature: float | None = None
    max_tokens: int | None = None
    transforms: tuple[Transform, ...] = ()


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run: who asked what, of which model. The root chain's id is the run's."""

    run_id: str
    session: SessionKey
    trace_id: str
    path: tuple[str, ...]
    text: str
    model: ChatModel
    model_name: str
    metadata: dict[str, Any]

    def header(self) -> dict[str, Any]:
        """The common fields of the root chain's events, but for `iteration` and what the writer stamps."""
        return {
            "run_id": self.run_id,
            "chain_id": self.run_id,
            "session_id": self.session.session_id,
            "path": self.path,
            "trace_id": self.trace_id,
        }
